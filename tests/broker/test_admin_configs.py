"""AlterConfigs, IncrementalAlterConfigs, DescribeConfigs: what is set is checked, durable, shown with its source, and
in force at once."""

from __future__ import annotations

from typing import Any

import pytest
from support.sim_admin import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    change,
    describe,
    replace,
    run_turns,
    send,
)
from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import Producer, batches, create_topic, fetch_one, list_offset, produce_fields

from broker.broker_settings import FIELDS
from broker.topic_config import SETTINGS
from wire.apis import ApiKey
from wire.batch import parse_header
from wire.building import timestamp_ms
from wire.errors import ErrorCode
from wire.records import iterate_records

NOW_MS = 1_700_000_000_000


def world_with_topic(**settings: str) -> SimNode:
    world = SimNode()
    create_topic(world.client(), "t", 2, **settings)
    return world


def value(client: SimClient, name: str, kind: int = TOPIC, resource: str = "t") -> str:
    found: str = describe(client, kind, resource, name)[name].value
    return found


def sources(
    client: SimClient, name: str, kind: int = TOPIC, resource: str = "t"
) -> list[tuple[str, str, int]]:
    """(name, value, source) of every synonym; the first is the one in force."""
    config = describe(client, kind, resource, name)[name]
    found = [(one.name, one.value, one.source) for one in config.synonyms]
    assert (config.value, config.config_source) == found[0][1:]
    return found


class TestTopics:
    @pytest.mark.parametrize("version", [0, 1])
    def test_set_and_delete(self, version: int) -> None:
        world = world_with_topic()
        client = world.client()
        assert (
            change(client, TOPIC, "t", [("retention.ms", SET, "5000")], version=version)[0] is ErrorCode.none
        )
        assert (
            change(client, TOPIC, "t", [("segment.bytes", SET, "70000")], version=version)[0]
            is ErrorCode.none
        )
        for ending in ("", "kill", "cut_power", "restart"):
            if ending:
                getattr(world, ending)()
            client = world.client()
            assert (value(client, "retention.ms"), value(client, "segment.bytes")) == ("5000", "70000")
        done = change(client, TOPIC, "t", [("retention.ms", DELETE, None)], version=version)
        assert done[0] is ErrorCode.none
        assert (value(client, "retention.ms"), value(client, "segment.bytes")) == ("-1", "70000")

    def test_append_and_subtract_are_for_lists(self) -> None:
        client = world_with_topic().client()

        def policy(*changes: tuple[int, str]) -> str:
            for operation, text in changes:
                assert change(client, TOPIC, "t", [("cleanup.policy", operation, text)])[0] is ErrorCode.none
            return value(client, "cleanup.policy")

        assert policy((APPEND, "compact")) == "delete,compact", "to what is the default"
        assert policy((APPEND, "compact,delete")) == "delete,compact"
        assert policy((SUBTRACT, "delete")) == "compact"
        assert change(client, TOPIC, "t", [("retention.ms", APPEND, "1")])[0] is ErrorCode.invalid_config
        assert change(client, TOPIC, "t", [("nonsense", SUBTRACT, "1")])[0] is ErrorCode.invalid_config
        assert policy((SUBTRACT, "compact")) == "", "no policy at all, as Kafka has it"
        assert policy((APPEND, "compact")) == "compact"

    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_replacing_sets_back_what_is_not_named(self, version: int) -> None:
        client = world_with_topic(**{"retention.ms": "5000"}).client()
        assert replace(client, TOPIC, "t", {"segment.bytes": "70000"}, version=version) is ErrorCode.none
        assert (value(client, "retention.ms"), value(client, "segment.bytes")) == ("-1", "70000")
        assert replace(client, TOPIC, "t", {}, version=version) is ErrorCode.none
        assert value(client, "segment.bytes") == str(1 << 30)

    def test_one_bad_value_changes_nothing(self) -> None:
        client = world_with_topic().client()
        for bad in (
            ("nonsense", SET, "1"),
            ("max.message.bytes", SET, "-5"),
            ("max.message.bytes", SET, "1e3"),
            ("max.message.bytes", SET, "1_000"),
            ("cleanup.policy", SET, "burn"),
            ("min.cleanable.dirty.ratio", SET, "2"),
            ("min.cleanable.dirty.ratio", SET, "nan"),
            ("message.timestamp.type", SET, "Whenever"),
            ("preallocate", SET, "maybe"),
        ):
            code, message = change(client, TOPIC, "t", [("retention.ms", SET, "5"), bad])
            assert code is ErrorCode.invalid_config, bad
            assert bad[0] in (message or "")
            assert value(client, "retention.ms") == "-1"
        assert replace(client, TOPIC, "t", {"retention.ms": "5", "nonsense": "1"}) is ErrorCode.invalid_config
        assert value(client, "retention.ms") == "-1"
        assert change(client, TOPIC, "t", [("nonsense", DELETE, None)])[0] is ErrorCode.none, "as in Kafka"

    def test_requests_that_make_no_sense(self) -> None:
        client = world_with_topic().client()
        assert change(client, TOPIC, "absent", [("retention.ms", SET, "5")])[0] is (
            ErrorCode.unknown_topic_or_partition
        )
        twice = [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)]
        assert change(client, TOPIC, "t", twice)[0] is ErrorCode.invalid_request
        assert change(client, TOPIC, "t", [("retention.ms", SET, None)])[0] is ErrorCode.invalid_request
        assert change(client, TOPIC, "t", [("retention.ms", 9, "5")])[0] is ErrorCode.invalid_request
        assert replace(client, TOPIC, "t", {"retention.ms": None}) is ErrorCode.invalid_request
        for kind in (0, 8, 16, 32, 99):
            assert change(client, kind, "t", [("retention.ms", SET, "5")])[0] is ErrorCode.invalid_request
        resource = {"resource_type": TOPIC, "resource_name": "t", "configs": ()}
        answer = client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=(resource, resource), validate_only=False
        )
        assert [one.error_code for one in answer.responses] == [ErrorCode.invalid_request] * 2

    def test_validate_only_changes_nothing(self) -> None:
        client = world_with_topic().client()
        good, bad = [("retention.ms", SET, "5")], [("retention.ms", SET, "x")]
        assert change(client, TOPIC, "t", good, validate_only=True)[0] is ErrorCode.none
        assert change(client, TOPIC, "t", bad, validate_only=True)[0] is ErrorCode.invalid_config
        assert replace(client, TOPIC, "t", {"retention.ms": "5"}, validate_only=True) is ErrorCode.none
        assert value(client, "retention.ms") == "-1"

    def test_changes_under_way_build_on_each_other(self) -> None:
        world = world_with_topic()
        one, two = world.client(), world.client()

        def begin(client: SimClient, name: str) -> int:
            configs = ({"name": name, "config_operation": SET, "value": "70000"},)
            resources = ({"resource_type": TOPIC, "resource_name": "t", "configs": configs},)
            return client.send(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)

        begin(one, "retention.ms")
        begin(two, "segment.bytes")
        world.scheduler.advance(100)
        for ending in ("", "cut_power"):
            if ending:
                getattr(world, ending)()
            client = world.client()
            assert (value(client, "retention.ms"), value(client, "segment.bytes")) == ("70000", "70000")

    @pytest.mark.parametrize("keep", ["none", "prefix", "all"])
    def test_what_was_answered_outlives_a_power_cut_at_any_moment(self, keep: str) -> None:
        answered = 0
        for turns in range(10):
            world = world_with_topic()
            client = world.client()
            configs = ({"name": "retention.ms", "config_operation": SET, "value": "5"},)
            number = client.send(
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                1,
                resources=({"resource_type": TOPIC, "resource_name": "t", "configs": configs},),
                validate_only=False,
            )
            run_turns(world, turns)
            done = number in client.answers
            answered += done
            world.cut_power(keep=keep)
            assert value(world.client(), "retention.ms") in (("5",) if done else ("5", "-1"))
        assert 0 < answered < 10

    def test_the_largest_batch_is_in_force_at_once(self) -> None:
        client = world_with_topic().client()
        assert send(client, "t", {0: [bytes(5_000)]})[0].error_code is ErrorCode.none
        change(client, TOPIC, "t", [("max.message.bytes", SET, "2000")])
        assert send(client, "t", {0: [bytes(5_000)]})[0].error_code is ErrorCode.message_too_large
        assert send(client, "t", {0: [bytes(1_000)]})[0].error_code is ErrorCode.none
        change(client, TOPIC, "t", [("max.message.bytes", SET, "2000000")])
        big = send(client, "t", {0: [bytes(1_500_000)]})[0]
        assert big.error_code is ErrorCode.none, "a topic may take more than the broker's default"

    def test_the_segment_size_is_in_force_at_once(self) -> None:
        world = world_with_topic()
        client = world.client()
        for _ in range(10):
            send(client, "t", {0: [bytes(9_000)]})
        log = world.node.topics.get("t").ranges[0]
        assert len(log.segments) == 1
        change(client, TOPIC, "t", [("segment.bytes", SET, "65536")])
        for _ in range(10):
            send(client, "t", {0: [bytes(9_000)]})
            world.scheduler.advance(100)
        assert len(log.segments) > 1

    def test_settings_for_what_does_not_exist_are_kept_and_say_so(self) -> None:
        """Applications send them when they create topics; nothing is claimed of their effect."""
        streams = {
            "cleanup.policy": "compact,delete",
            "retention.ms": "90000000",
            "segment.bytes": "52428800",
            "segment.ms": "600000",
            "message.timestamp.type": "CreateTime",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "100",
        }
        world = world_with_topic(**streams)
        world.restart()
        shown = describe(world.client(), TOPIC, "t")
        assert {name: shown[name].value for name in streams} == streams
        assert set(shown) == set(SETTINGS)
        for name in ("preallocate", "segment.jitter.ms", "flush.messages"):
            assert "kept and shown" in shown[name].documentation.lower()
        assert "kept and shown" not in shown["max.message.bytes"].documentation.lower()


class TestTimestamps:
    def test_log_append_time_is_the_brokers(self) -> None:
        world = world_with_topic(**{"message.timestamp.type": "LogAppendTime"})
        client = world.client()
        world.scheduler.advance(5_000)
        now_ms = world.scheduler.now_ms()
        result = send(client, "t", {0: [b"a", b"b"]}, timestamp=NOW_MS - 10**9)[0]
        assert result.error_code is ErrorCode.none
        assert _append_time_ms(result) == now_ms
        (stored,) = batches(fetch_one(client, "t", 0).records)
        header = parse_header(stored)
        assert header.has_log_append_time
        assert header.max_timestamp == now_ms
        assert header.base_timestamp == NOW_MS - 10**9, "stays, as in Kafka"
        assert [record.timestamp for record in iterate_records(stored, verify_crc=True)] == [now_ms] * 2
        assert list_offset(client, "t", at=now_ms) == 0
        assert list_offset(client, "t", at=now_ms + 1) == -1
        world.cut_power()
        assert list_offset(world.client(), "t", at=now_ms) == 0

    def test_produce_answers_the_time(self) -> None:
        world = world_with_topic()
        client = world.client()
        assert _append_time_ms(send(client, "t", {0: [b"a"]})[0]) == -1
        change(client, TOPIC, "t", [("message.timestamp.type", SET, "LogAppendTime")])
        world.scheduler.advance(777)
        began = world.scheduler.now_ms()
        assert _append_time_ms(send(client, "t", {0: [b"b"]})[0]) == began
        change(client, TOPIC, "t", [("message.timestamp.type", DELETE, None)])
        assert _append_time_ms(send(client, "t", {0: [b"c"]})[0]) == -1

    def test_a_repeated_batch_gets_the_time_of_the_first(self) -> None:
        world = world_with_topic(**{"message.timestamp.type": "LogAppendTime"})
        client = world.client()
        data = batch(b"once", producer_id=7, epoch=0, sequence=0)
        first = client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: data}))
        world.scheduler.advance(60_000)
        again = client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: data}))
        one, two = (answer.responses[0].partition_responses[0] for answer in (first, again))
        assert (two.base_offset, _append_time_ms(two)) == (0, _append_time_ms(one))
        assert list_offset(client, "t") == 1

    def test_inside_transactions_too(self) -> None:
        world = world_with_topic(**{"message.timestamp.type": "LogAppendTime"})
        producer = Producer(world.client(), "p")
        producer.init()
        producer.send("t", {0: [b"x"]})
        producer.end()
        world.kill()
        (stored,) = batches(fetch_one(world.client(), "t", 0).records)
        assert parse_header(stored).has_log_append_time
        assert parse_header(stored).is_transactional
        assert len(list(iterate_records(stored, verify_crc=True))) == 1

    def test_too_far_ahead_or_behind_is_refused(self) -> None:
        world = world_with_topic()
        client = world.client()
        now_ms = world.scheduler.now_ms()

        def code(timestamp: int) -> ErrorCode:
            result: ErrorCode = send(client, "t", {0: [b"x"]}, timestamp=timestamp)[0].error_code
            return result

        assert code(now_ms + 3_600_000) is ErrorCode.none
        assert code(now_ms + 3_700_000) is ErrorCode.invalid_timestamp, "an hour is Kafka's default"
        assert code(1) is ErrorCode.none
        change(
            client,
            TOPIC,
            "t",
            [
                ("message.timestamp.after.max.ms", SET, "10000"),
                ("message.timestamp.before.max.ms", SET, "10000"),
            ],
        )
        assert code(now_ms + 5_000) is ErrorCode.none
        assert code(now_ms + 20_000) is ErrorCode.invalid_timestamp
        assert code(now_ms - 5_000) is ErrorCode.none
        assert code(now_ms - 20_000) is ErrorCode.invalid_timestamp
        assert code(-1) is ErrorCode.none, "a record without a timestamp"
        change(client, TOPIC, "t", [("message.timestamp.type", SET, "LogAppendTime")])
        assert code(now_ms + 10**12) is ErrorCode.none, "with LogAppendTime nobody asks"


def _append_time_ms(result: Any) -> int:
    return timestamp_ms(result.log_append_time)


class TestBroker:
    def test_levels_and_sources(self) -> None:
        world = SimNode(message_max_bytes=2_000_000)
        client = world.client()
        create_topic(client, "t")
        static = [("message.max.bytes", "2000000", 4), ("message.max.bytes", "1048588", 5)]
        assert sources(client, "max.message.bytes") == static
        assert change(client, BROKER, "", [("message.max.bytes", SET, "3000000")])[0] is ErrorCode.none
        assert change(client, BROKER, "1", [("message.max.bytes", SET, "4000000")])[0] is ErrorCode.none
        assert change(client, TOPIC, "t", [("max.message.bytes", SET, "5000000")])[0] is ErrorCode.none
        broker = [("message.max.bytes", "4000000", 2), ("message.max.bytes", "3000000", 3), *static]
        for ending in ("", "kill", "cut_power", "restart"):
            if ending:
                getattr(world, ending)()
            client = world.client()
            assert sources(client, "max.message.bytes") == [("max.message.bytes", "5000000", 1), *broker]
            assert sources(client, "message.max.bytes", BROKER, "1") == broker
            assert sources(client, "message.max.bytes", BROKER, "") == [("message.max.bytes", "3000000", 3)]
            assert list(describe(client, BROKER, "")) == ["message.max.bytes"]
        change(client, TOPIC, "t", [("max.message.bytes", DELETE, None)])
        change(client, BROKER, "1", [("message.max.bytes", DELETE, None)])
        assert sources(client, "max.message.bytes") == broker[1:]
        assert replace(client, BROKER, "", {}) is ErrorCode.none
        assert sources(client, "max.message.bytes") == static

    def test_a_topics_default_is_the_brokers_at_once(self) -> None:
        world = world_with_topic()
        client = world.client()
        big = {0: [bytes(1_500_000)]}
        assert send(client, "t", big)[0].error_code is ErrorCode.message_too_large
        change(client, BROKER, "1", [("message.max.bytes", SET, "2000000")])
        assert send(client, "t", big)[0].error_code is ErrorCode.none
        assert world.node.topics.get("t").ranges[0].config.max_batch_bytes == 2_000_000
        change(client, BROKER, "1", [("log.segment.bytes", SET, "70000")])
        assert world.node.topics.get("t").ranges[0].config.segment_bytes == 70_000
        create_topic(client, "u")
        assert world.node.topics.get("u").ranges[0].config.segment_bytes == 70_000

    def test_other_dynamic_settings_are_in_force_at_once(self) -> None:
        world = SimNode()
        client = world.client()

        def init(timeout_ms: int) -> ErrorCode:
            return Producer(client, "p", timeout_ms=timeout_ms).init()

        assert init(900_001) is ErrorCode.invalid_transaction_timeout
        change(client, BROKER, "1", [("transaction.max.timeout.ms", SET, "1000000")])
        assert init(900_001) is ErrorCode.none
        change(
            client,
            BROKER,
            "1",
            [("auto.create.topics.enable", SET, "false"), ("num.partitions", SET, "3")],
        )

        def auto_created() -> ErrorCode:
            answer = client.ask(
                ApiKey.METADATA, 9, topics=({"name": "auto"},), allow_auto_topic_creation=True
            )
            code: ErrorCode = answer.topics[0].error_code
            return code

        assert auto_created() is ErrorCode.unknown_topic_or_partition
        change(client, BROKER, "1", [("auto.create.topics.enable", SET, "TRUE")])
        assert auto_created() is ErrorCode.none
        assert len(world.node.topics.get("auto").partitions) == 3
        assert self.join(client, 1_500) is ErrorCode.member_id_required
        change(client, BROKER, "1", [("group.min.session.timeout.ms", SET, "2000")])
        assert self.join(client, 1_500) is ErrorCode.invalid_session_timeout

    @staticmethod
    def join(client: SimClient, session_timeout_ms: int) -> ErrorCode:
        answer = client.ask(
            ApiKey.JOIN_GROUP,
            5,
            group_id="g",
            session_timeout=session_timeout_ms,
            rebalance_timeout=60_000,
            member_id="",
            group_instance_id=None,
            protocol_type="consumer",
            protocols=({"name": "range", "metadata": b""},),
        )
        code: ErrorCode = answer.error_code
        return code

    def test_what_cannot_be_changed_is_refused(self) -> None:
        client = SimNode().client()

        def code(name: str, text: str | None, resource: str = "1", operation: int = SET) -> ErrorCode:
            return change(client, BROKER, resource, [(name, operation, text)])[0]

        assert code("nonsense", "1") is ErrorCode.invalid_config
        assert code("nonsense", None, operation=DELETE) is ErrorCode.none
        assert code("limits", "1") is ErrorCode.invalid_config
        assert code("node.id", "7") is ErrorCode.invalid_request
        assert code("num.partitions", "0") is ErrorCode.invalid_config
        assert code("num.partitions", "many") is ErrorCode.invalid_config
        assert code("num.partitions", "9" * 30) is ErrorCode.invalid_config
        assert code("num.partitions", "1", operation=APPEND) is ErrorCode.invalid_config
        assert code("auto.create.topics.enable", "1") is ErrorCode.invalid_config
        assert code("group.min.session.timeout.ms", "1800001") is ErrorCode.invalid_config
        assert code("num.partitions", "2", resource="2") is ErrorCode.invalid_request
        assert code("num.partitions", "2", resource="one") is ErrorCode.invalid_request

    def test_values_that_depend_on_each_other_come_back_together(self) -> None:
        world = SimNode()
        both = {"group.min.session.timeout.ms": "2000000", "group.max.session.timeout.ms": "3000000"}
        assert replace(world.client(), BROKER, "1", both) is ErrorCode.none
        world.restart()
        assert world.node.config.group_min_session_timeout_ms == 2_000_000
        assert world.node.config.group_max_session_timeout_ms == 3_000_000

    def test_changes_of_two_levels_under_way_cannot_contradict_each_other(self) -> None:
        world = SimNode()
        one, two = world.client(), world.client()

        def begin(client: SimClient, level: str, name: str, text: str) -> int:
            configs = ({"name": name, "config_operation": SET, "value": text},)
            resources = ({"resource_type": BROKER, "resource_name": level, "configs": configs},)
            return client.send(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False)

        first = begin(one, "1", "group.min.session.timeout.ms", "5000")
        second = begin(two, "", "group.max.session.timeout.ms", "4000")
        world.scheduler.advance(100)
        assert one.answers[first].responses[0].error_code is ErrorCode.none
        assert two.answers[second].responses[0].error_code is ErrorCode.invalid_config
        assert world.node.config.group_min_session_timeout_ms == 5_000

    def test_a_setting_that_a_later_version_lacks_does_not_stop_a_start(self) -> None:
        from txn import keys
        from txn.metastore import Put

        world = SimNode()
        stored = {"num.partitions": "4", "of.another.age": "1"}
        world.node.store.apply([Put(keys.broker_config("broker"), stored)])
        world.restart()
        assert world.node.config.num_partitions == 4

    def test_every_setting_is_shown_and_only_dynamic_ones_can_be_written(self) -> None:
        client = SimNode().client()
        shown = describe(client, BROKER, "1")
        assert set(shown) == set(FIELDS)
        assert shown["node.id"].read_only
        assert not shown["num.partitions"].read_only
        for name, config in shown.items():
            code, _ = change(client, BROKER, "1", [(name, SET, config.value)], validate_only=True)
            assert (code is ErrorCode.none) is not config.read_only, name

    @pytest.mark.parametrize("version", [1, 2, 3, 4])
    def test_describing_what_is_not_there(self, version: int) -> None:
        client = world_with_topic().client()
        resources = [(TOPIC, "absent"), (BROKER, "9"), (BROKER, "x"), (16, "m"), (TOPIC, "t")]
        answer = client.ask(
            ApiKey.DESCRIBE_CONFIGS,
            version,
            resources=tuple(
                {"resource_type": kind, "resource_name": name, "configuration_keys": ("retention.ms", "zzz")}
                for kind, name in resources
            ),
        )
        assert [result.error_code for result in answer.results] == [
            ErrorCode.unknown_topic_or_partition,
            *[ErrorCode.invalid_request] * 3,
            ErrorCode.none,
        ]
        assert [config.name for config in answer.results[-1].configs] == ["retention.ms"]
        assert answer.results[-1].configs[0].synonyms == ()
