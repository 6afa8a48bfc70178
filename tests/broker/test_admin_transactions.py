"""DescribeProducers, DescribeTransactions, ListTransactions, and an administrator who ends or fences a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.sim_admin import grow, send
from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import Producer, create_topic, list_offset, produce_fields, read_all

from wire.apis import ApiKey
from wire.building import timestamp_ms, to_ms
from wire.errors import ErrorCode

both_protocols = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])


def world_with_topic() -> SimNode:
    world = SimNode()
    create_topic(world.client(), "t", 3)
    return world


def open_transaction(world: SimNode, name: str = "p", *, v2: bool = True, partition: int = 0) -> Producer:
    producer = Producer(world.client(), name, v2=v2)
    producer.init()
    assert producer.send("t", {partition: [b"x"]}) == {partition: ErrorCode.none}
    return producer


class PatchingClient(SimClient):
    """The decoder refuses -1 in a time that is never null, which is what Kafka sends for none: 0 is put there."""

    def write(self, buffers: Sequence[Any]) -> None:
        super().write([b"".join(bytes(buffer) for buffer in buffers).replace(b"\xff" * 8, bytes(8), 1)])


NO_TIME_MS = 0


def describe_transaction(world: SimNode, name: str) -> Any:
    client = PatchingClient(world.node, world.scheduler)
    answer = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(name,))
    return answer.transaction_states[0]


def list_transactions(client: SimClient, version: int = 2, **filters: Any) -> dict[str, str]:
    """State by transactional id."""
    fields = {"state_filters": (), "producer_id_filters": ()} | filters
    answer = client.ask(ApiKey.LIST_TRANSACTIONS, version, **fields)
    assert answer.error_code is ErrorCode.none, answer
    return {one.transactional_id: one.transaction_state for one in answer.transaction_states}


def producers(client: SimClient, partition: int = 0) -> dict[int, tuple[int, int, int, int]]:
    """Per producer id: (epoch, last sequence, coordinator epoch, first offset of its open transaction)."""
    answer = client.ask(
        ApiKey.DESCRIBE_PRODUCERS, 0, topics=({"name": "t", "partition_indexes": (partition,)},)
    )
    one = answer.topics[0].partitions[0]
    assert one.error_code is ErrorCode.none, one
    return {
        p.producer_id: (p.producer_epoch, p.last_sequence, p.coordinator_epoch, p.current_txn_start_offset)
        for p in one.active_producers
    }


def write_markers(
    client: SimClient,
    producer_id: int,
    epoch: int,
    partitions: tuple[int, ...] = (0,),
    *,
    commit: bool = False,
    topic: str = "t",
    version: int = 1,
) -> list[ErrorCode]:
    answer = client.ask(
        ApiKey.WRITE_TXN_MARKERS,
        version,
        markers=(
            {
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "transaction_result": commit,
                "topics": ({"name": topic, "partition_indexes": partitions},),
                "coordinator_epoch": 0,
            },
        ),
    )
    (marker,) = answer.markers
    assert marker.producer_id == producer_id
    return [one.error_code for one in marker.topics[0].partitions]


class TestProducers:
    def test_who_wrote_and_whose_transaction_is_open(self) -> None:
        world = world_with_topic()
        client = world.client()
        send(client, "t", {0: [b"plain"]})
        idempotent = batch(b"a", b"b", b"c", producer_id=900, epoch=4, sequence=0)
        client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: idempotent}))
        producer = open_transaction(world)
        producer.send("t", {0: [b"y"]})
        found = producers(client)
        assert found == {
            900: (4, 2, -1, -1),
            producer.producer_id: (producer.epoch, 1, -1, 4),
        }
        assert producers(client, 1) == {}
        identity = producer.producer_id, producer.epoch
        producer.end()
        assert producers(client)[identity[0]] == (identity[1], 1, -1, -1)

    def test_open_transactions_are_known_again_after_a_kill(self) -> None:
        world = world_with_topic()
        producer = open_transaction(world)
        world.kill()
        assert producers(world.client())[producer.producer_id][3] == 0

    def test_partitions_that_are_not_there(self) -> None:
        answer = (
            world_with_topic()
            .client()
            .ask(
                ApiKey.DESCRIBE_PRODUCERS,
                0,
                topics=(
                    {"name": "t", "partition_indexes": (0, 3)},
                    {"name": "absent", "partition_indexes": (0,)},
                ),
            )
        )
        codes = [one.error_code for topic in answer.topics for one in topic.partitions]
        assert codes == [ErrorCode.none, *[ErrorCode.unknown_topic_or_partition] * 2]


class TestTransactions:
    @both_protocols
    def test_the_life_of_one(self, v2: bool) -> None:
        world = world_with_topic()
        producer = Producer(world.client(), "p", v2=v2, timeout_ms=12_345)
        producer.init()

        def shown() -> tuple[str, dict[str, tuple[int, ...]]]:
            found = describe_transaction(world, "p")
            assert found.error_code is ErrorCode.none
            assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
            assert to_ms(found.transaction_timeout) == 12_345
            return found.transaction_state, {topic.topic: topic.partitions for topic in found.topics}

        assert shown() == ("Empty", {})
        assert timestamp_ms(describe_transaction(world, "p").transaction_start_time) == NO_TIME_MS
        world.scheduler.advance(1_000)
        began = world.scheduler.now_ms()
        producer.send("t", {2: [b"x"], 0: [b"y"]})
        producer.commit_offsets("g", {("t", 1): 1})
        assert shown() == ("Ongoing", {"t": (0, 2)}), "group offsets have no topic here"
        assert timestamp_ms(describe_transaction(world, "p").transaction_start_time) == began
        world.kill()
        producer.client = world.client()
        assert shown()[0] == "Ongoing"
        assert timestamp_ms(describe_transaction(world, "p").transaction_start_time) == began
        producer.end()
        assert shown() == ("CompleteCommit", {})
        producer.send("t", {0: [b"z"]})
        producer.end(commit=False)
        assert shown() == ("CompleteAbort", {})

    def test_ids_that_are_not_there(self) -> None:
        world = world_with_topic()
        assert describe_transaction(world, "nobody").error_code is ErrorCode.transactional_id_not_found
        assert describe_transaction(world, "").error_code is ErrorCode.invalid_request

    def test_an_added_range_is_named_too(self) -> None:
        world = world_with_topic()
        grow(world.client(), "t", 5)
        producer = open_transaction(world, partition=4)
        (topic,) = describe_transaction(world, producer.name).topics
        assert topic.partitions == (4,)

    @pytest.mark.parametrize("version", [0, 1, 2])
    def test_filters(self, version: int) -> None:
        world = world_with_topic()
        client = world.client()
        old = open_transaction(world, "app-old")
        world.scheduler.advance(10_000)
        new = open_transaction(world, "app-new")
        done = open_transaction(world, "other")
        done.end()
        Producer(client, "app-idle").init()
        everything = {
            "app-old": "Ongoing",
            "app-new": "Ongoing",
            "other": "CompleteCommit",
            "app-idle": "Empty",
        }
        assert list_transactions(client, version) == everything
        assert set(list_transactions(client, version, state_filters=("Ongoing",))) == {"app-old", "app-new"}
        assert set(list_transactions(client, version, state_filters=("Empty", "CompleteCommit"))) == {
            "other",
            "app-idle",
        }
        ids = (old.producer_id, new.producer_id)
        assert set(list_transactions(client, version, producer_id_filters=ids)) == {"app-old", "app-new"}
        both = list_transactions(
            client, version, producer_id_filters=ids[:1], state_filters=("Ongoing", "Dead")
        )
        assert set(both) == {"app-old"}
        if version >= 1:
            assert set(list_transactions(client, version, duration_filter=5_000)) == {"app-old"}
            assert list_transactions(client, version, duration_filter=60_000) == {}
            assert list_transactions(client, version, duration_filter=-1) == everything
        if version >= 2:
            pattern = {"transactional_id_pattern": "app-(old|idle)"}
            assert set(list_transactions(client, version, **pattern)) == {"app-old", "app-idle"}
            assert list_transactions(client, version, transactional_id_pattern="app") == {}, "the whole id"
            assert list_transactions(client, version, transactional_id_pattern="") == everything

    def test_states_that_nobody_knows_are_named(self) -> None:
        client = world_with_topic().client()
        answer = client.ask(
            ApiKey.LIST_TRANSACTIONS,
            0,
            state_filters=("Ongoing", "Fancy", "PrepareEpochFence"),
            producer_id_filters=(),
        )
        assert answer.unknown_state_filters == ("Fancy",)
        assert answer.transaction_states == ()

    @pytest.mark.parametrize("pattern", ["(", "[", "(?=x)", "x" * 5_000])
    def test_a_bad_pattern_is_refused(self, pattern: str) -> None:
        answer = (
            world_with_topic()
            .client()
            .ask(
                ApiKey.LIST_TRANSACTIONS,
                2,
                state_filters=(),
                producer_id_filters=(),
                transactional_id_pattern=pattern,
            )
        )
        assert answer.error_code is ErrorCode.invalid_regular_expression

    def test_a_costly_pattern_costs_little(self) -> None:
        """A backtracking engine would not come back from this one."""
        world = world_with_topic()
        Producer(world.client(), "a" * 200).init()
        assert list_transactions(world.client(), transactional_id_pattern="(a*)*b") == {}


class TestAborts:
    @both_protocols
    @pytest.mark.parametrize("version", [1, 2])
    def test_the_whole_transaction_ends_and_its_producer_is_fenced(self, v2: bool, version: int) -> None:
        world = world_with_topic()
        producer = open_transaction(world, v2=v2)
        producer.send("t", {1: [b"too"]})
        world.scheduler.advance(100)
        assert list_offset(world.client(), "t") == 0
        identity = producer.producer_id, producer.epoch
        assert write_markers(world.client(), *identity, (0,), version=version) == [ErrorCode.none]
        assert read_all(world.client(), "t", 0) == ([], 1)
        assert read_all(world.client(), "t", 1) == ([], 1)
        assert describe_transaction(world, "p").transaction_state == "CompleteAbort"
        assert producer.send("t", {0: [b"late"]}, add=False) == {0: ErrorCode.invalid_producer_epoch}
        assert producer.end() is ErrorCode.producer_fenced
        assert write_markers(world.client(), *identity, (0, 1)) == [ErrorCode.none] * 2, "nothing is open"
        world.cut_power()
        assert read_all(world.client(), "t", 0) == ([], 1)
        producer.client = world.client()
        assert producer.init() is ErrorCode.none
        producer.send("t", {0: [b"again"]})
        assert producer.end() is ErrorCode.none
        assert read_all(world.client(), "t", 0)[0] == [b"again"]

    def test_what_is_refused(self) -> None:
        world = world_with_topic()
        producer = open_transaction(world)
        producer.end()
        producer.send("t", {0: [b"y"]})
        client, producer_id, epoch = world.client(), producer.producer_id, producer.epoch
        assert write_markers(client, producer_id, epoch, commit=True) == [ErrorCode.invalid_request]
        assert write_markers(client, producer_id, epoch - 1) == [ErrorCode.invalid_producer_epoch]
        assert write_markers(client, producer_id, epoch, (7,)) == [ErrorCode.unknown_topic_or_partition]
        assert write_markers(client, producer_id, epoch, topic="absent") == [
            ErrorCode.unknown_topic_or_partition
        ]
        assert write_markers(client, producer_id, epoch, (1,)) == [ErrorCode.none], "not open there"
        assert write_markers(client, 987_654, 0) == [ErrorCode.none], "nothing of it is open"
        assert producer.end() is ErrorCode.none, "nothing of that touched the transaction"
        assert read_all(world.client(), "t", 0)[0] == [b"x", b"y"]

    def test_an_abort_that_comes_while_the_producer_commits(self) -> None:
        world = world_with_topic()
        producer = open_transaction(world)
        identity = producer.producer_id, producer.epoch
        number = producer.end_request(True)
        admin = world.client()
        (code,) = write_markers(admin, *identity)
        assert code is ErrorCode.invalid_txn_state, "too late: it has committed"
        assert producer.take_end(producer.client.answers[number]) is ErrorCode.none
        assert read_all(world.client(), "t", 0)[0] == [b"x"]

    def test_fencing_from_outside(self) -> None:
        """fenceProducers and forceTerminateTransaction of the Java administrator: an InitProducerId of its own."""
        world = world_with_topic()
        producer = open_transaction(world)
        answer = world.client().ask(
            ApiKey.INIT_PRODUCER_ID,
            5,
            transactional_id="p",
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        assert answer.error_code is ErrorCode.none
        assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, producer.epoch + 2)
        assert producer.end() is ErrorCode.producer_fenced
        assert read_all(world.client(), "t", 0) == ([], list_offset(world.client(), "t"))
