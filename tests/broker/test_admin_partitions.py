"""CreatePartitions: a topic grows by a range of its own, whole or not at all, whenever the power goes."""

from __future__ import annotations

import itertools

import pytest
from support.sim_admin import delete_topic, grow, grow_fields, run_turns, send
from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import Producer, create_topic, list_offset, produce_fields, read_all

from broker.config import Limits
from storage.check import check_directory
from storage.format import SEGMENT_SUFFIX
from storage.layout import SegmentInfo, chain_of, tails
from txn import keys
from wire.apis import ApiKey
from wire.errors import ErrorCode


def world_with_topic(**config: object) -> SimNode:
    world = SimNode(**config)  # type: ignore[arg-type]
    create_topic(world.client(), "t", 2)
    return world


def partition_count(client: SimClient, name: str = "t") -> int:
    answer = client.ask(ApiKey.METADATA, 9, topics=({"name": name},), allow_auto_topic_creation=False)
    assert answer.topics[0].error_code is ErrorCode.none
    indexes = [one.partition_index for one in answer.topics[0].partitions]
    assert indexes == list(range(len(indexes)))
    return len(indexes)


def segment_files(world: SimNode) -> int:
    return sum(
        name.endswith(SEGMENT_SUFFIX)
        for folder in world.disk.list("topics")
        for name in world.disk.list(f"topics/{folder}")
    )


def named_segments(world: SimNode) -> int:
    return sum(len(record.value["segments"]) for _, record in world.node.store.scan(keys.LAYOUTS))


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_topic_grows_and_keeps_what_it_has(version: int) -> None:
    world = world_with_topic()
    client = world.client()
    send(client, "t", {0: [b"old-0"], 1: [b"old-1"]})
    topic_id = world.node.topics.get("t").id
    assert grow(client, "t", 5, version) is ErrorCode.none
    assert partition_count(client) == 5
    assert world.node.topics.get("t").id == topic_id
    assert {p: r.error_code for p, r in send(client, "t", {1: [b"more"], 4: [b"new"]}).items()} == {
        1: ErrorCode.none,
        4: ErrorCode.none,
    }
    expected = {0: [b"old-0"], 1: [b"old-1", b"more"], 2: [], 3: [], 4: [b"new"]}
    for ending in ("", "kill", "cut_power", "restart"):
        if ending:
            getattr(world, ending)()
        client = world.client()
        assert partition_count(client) == 5
        for partition, values in expected.items():
            assert read_all(client, "t", partition)[0] == values, (ending, partition)
    ranges = world.node.topics.get("t").ranges
    assert [(log.first, log.last) for log in ranges] == [(0, 1), (2, 4)]


def test_growing_again_and_again_and_rolling_in_every_range() -> None:
    world = world_with_topic(segment_bytes=1 << 16)
    client = world.client()
    written: dict[int, list[bytes]] = {}
    for round_, count in enumerate([2, 3, 6, 7]):
        if count > 2:
            assert grow(client, "t", count) is ErrorCode.none
        for number in range(3):
            records = {p: [b"%d-%d-%d" % (round_, number, p) + bytes(9_000)] for p in range(count)}
            send(client, "t", records)
            for partition, values in records.items():
                written.setdefault(partition, []).extend(values)
        world.scheduler.advance(1_000)
    assert named_segments(world) > 8, "every range has rolled"
    for ending in ("kill", "cut_power", "restart", "cut_power"):
        getattr(world, ending)()
        assert [report.orphans_removed for report in world.report.ranges] == [[]]
        assert segment_files(world) == named_segments(world)
        client = world.client()
        for partition, values in written.items():
            assert read_all(client, "t", partition)[0] == values
    assert all(finding.status == "ok" for finding in check_directory(world.disk, "topics"))


@pytest.mark.parametrize("ending", ["kill", "cut_power-none", "cut_power-prefix", "cut_power-all"])
def test_a_growth_cut_anywhere_is_whole_or_absent(ending: str) -> None:
    """The process or the power goes at each turn of the loop between the request and what follows its answer."""
    kind, _, keep = ending.partition("-")
    counts = set()
    for turns in itertools.count():
        world = world_with_topic(flush_linger_ms=60_000)
        client = world.client()
        send(client, "t", {0: [b"kept"]})
        number = client.send(ApiKey.CREATE_PARTITIONS, 3, **grow_fields({"t": 4}))
        run_turns(world, turns)
        answer = client.answers.get(number)
        if kind == "kill":
            world.kill()
        else:
            world.cut_power(keep=keep)
        count = partition_count(world.client())
        counts.add(count)
        assert count in (2, 4)
        if answer is not None:
            assert answer.results[0].error_code is ErrorCode.none
            assert count == 4, "what was answered is there"
        assert segment_files(world) == named_segments(world), "no orphans"
        assert read_all(world.client(), "t")[0] == [b"kept"]
        assert grow(world.client(), "t", 6) is ErrorCode.none
        send(world.client(), "t", {5: [b"new"]})
        world.cut_power()
        assert read_all(world.client(), "t", 5)[0] == [b"new"]
        if answer is not None:
            break
    assert counts == {2, 4}


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    world = SimNode(limits=Limits(partitions_per_topic=6, partitions=10))
    client = world.client()
    create_topic(client, "t", 3)
    create_topic(client, "u", 3)
    assert grow(client, "t", 3) is ErrorCode.invalid_partitions
    assert grow(client, "t", 2) is ErrorCode.invalid_partitions
    assert grow(client, "t", 0) is ErrorCode.invalid_partitions
    assert grow(client, "t", -1) is ErrorCode.invalid_partitions
    assert grow(client, "t", 7) is ErrorCode.invalid_partitions, "the limit of a topic"
    assert grow(client, "absent", 7) is ErrorCode.unknown_topic_or_partition
    assert grow(client, "t", 6) is ErrorCode.none
    assert grow(client, "u", 5) is ErrorCode.invalid_partitions, "the limit of the broker"
    assert grow(client, "u", 4) is ErrorCode.none
    assert (partition_count(client), partition_count(client, "u")) == (6, 4)
    assert delete_topic(client, "t") is ErrorCode.none
    assert grow(client, "u", 6) is ErrorCode.none, "a deleted topic makes room"


def test_the_limit_counts_each_partition_once_also_after_a_start() -> None:
    world = SimNode(limits=Limits(partitions=4))
    create_topic(world.client(), "t", 3)
    world.restart()
    assert grow(world.client(), "t", 4) is ErrorCode.none
    world.restart()
    assert grow(world.client(), "t", 5) is ErrorCode.invalid_partitions


def test_validate_only_says_so_and_does_nothing() -> None:
    world = world_with_topic()
    client = world.client()
    assert grow(client, "t", 4, validate_only=True) is ErrorCode.none
    assert grow(client, "t", 1, validate_only=True) is ErrorCode.invalid_partitions
    assert partition_count(client) == 2
    assert segment_files(world) == 1


def test_assignments_may_name_this_broker_alone() -> None:
    world = world_with_topic()
    client = world.client()

    def assigned(*brokers: tuple[int, ...]) -> ErrorCode:
        return grow(client, "t", 4, assignments=tuple({"broker_ids": ids} for ids in brokers))

    assert assigned((1,)) is ErrorCode.invalid_replica_assignment
    assert assigned((1,), (2,)) is ErrorCode.invalid_replica_assignment
    assert assigned((1,), (1, 2)) is ErrorCode.invalid_replica_assignment
    assert assigned((1,), ()) is ErrorCode.invalid_replica_assignment
    assert assigned((1,), (1,)) is ErrorCode.none


def test_a_topic_named_twice_is_refused_and_others_are_not() -> None:
    world = world_with_topic()
    client = world.client()
    create_topic(client, "u", 1)
    fields = grow_fields({"t": 4, "u": 2})
    fields["topics"] = (*fields["topics"], fields["topics"][0])
    answer = client.ask(ApiKey.CREATE_PARTITIONS, 3, **fields)
    assert {result.name: result.error_code for result in answer.results} == {
        "t": ErrorCode.invalid_request,
        "u": ErrorCode.none,
    }


def test_requests_for_one_topic_wait_for_each_other() -> None:
    world = world_with_topic()
    one, two, three = world.client(), world.client(), world.client()
    numbers = [
        client.send(ApiKey.CREATE_PARTITIONS, 3, **grow_fields({"t": count}))
        for client, count in ((one, 4), (two, 3), (three, 6))
    ]
    world.scheduler.advance(1_000)
    codes = [
        client.answers[number].results[0].error_code
        for client, number in zip((one, two, three), numbers, strict=True)
    ]
    assert codes == [ErrorCode.none, ErrorCode.invalid_partitions, ErrorCode.none]
    assert partition_count(world.client()) == 6
    world.cut_power()
    assert partition_count(world.client()) == 6


def test_a_topic_deleted_while_it_grows_is_gone() -> None:
    for turns in range(12):
        world = world_with_topic(limits=Limits(partitions=4))
        client, other = world.client(), world.client()
        number = client.send(ApiKey.CREATE_PARTITIONS, 3, **grow_fields({"t": 4}))
        run_turns(world, turns)
        assert delete_topic(other, "t") is ErrorCode.none
        world.scheduler.advance(1_000)
        code = client.answers[number].results[0].error_code
        assert code in (ErrorCode.none, ErrorCode.unknown_topic_or_partition)
        assert world.disk.list("topics") == [], turns
        create_topic(other, "u", 4)  # nothing of it counts against the limit any more
        assert delete_topic(other, "u") is ErrorCode.none
        world.kill()
        assert len(world.node.topics) == 0
        create_topic(world.client(), "t", 2)
        assert partition_count(world.client()) == 2


@pytest.mark.parametrize("kind", ["write", "allocate", "flush"])
def test_a_disk_that_fails_leaves_the_topic_as_it_was(kind: str) -> None:
    world = world_with_topic()
    client = world.client()
    send(client, "t", {0: [b"kept"]})
    world.disk.fail(kind, "topics/", times=1)
    assert grow(client, "t", 4) is ErrorCode.kafka_storage_error
    assert partition_count(client) == 2
    assert read_all(client, "t")[0] == [b"kept"]
    assert segment_files(world) == 1
    assert grow(client, "t", 4) is ErrorCode.none
    send(client, "t", {3: [b"new"], 0: [b"more"]})
    world.cut_power()
    assert read_all(world.client(), "t")[0] == [b"kept", b"more"]
    assert read_all(world.client(), "t", 3)[0] == [b"new"]


def test_after_the_metadata_store_has_failed_nothing_grows_and_everybody_hears_so() -> None:
    """The layout in memory is ahead by the range whose record never became durable."""
    world = world_with_topic()
    world.disk.fail("flush", "metadata")
    for _ in range(3):
        assert grow(world.client(), "t", 4) is ErrorCode.kafka_storage_error
    assert partition_count(world.client()) == 2


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("keep", ["none", "prefix", "all"])
def test_a_transaction_spans_old_and_new_ranges_and_commits_as_one(v2: bool, keep: str) -> None:
    world = world_with_topic(flush_linger_ms=60_000)
    producer = Producer(world.client(), "p", v2=v2)
    producer.init()
    producer.send("t", {0: [b"before"]})
    assert grow(world.client(), "t", 4) is ErrorCode.none
    producer.send("t", {1: [b"old"], 3: [b"new"]})
    assert producer.end() is ErrorCode.none
    world.cut_power(keep=keep)
    assert [read_all(world.client(), "t", p)[0] for p in range(4)] == [[b"before"], [b"old"], [], [b"new"]]
    producer.client = world.client()
    producer.init()
    producer.send("t", {0: [b"x"], 2: [b"y"]})
    assert producer.end(commit=False) is ErrorCode.none
    world.scheduler.advance(70_000)  # nobody waits for aborted records: they are flushed within the linger
    world.cut_power(keep=keep)
    assert read_all(world.client(), "t", 2) == ([], 1)
    assert list_offset(world.client(), "t", 2) == 1


def test_a_write_hears_that_its_topic_went_while_it_waited() -> None:
    """Also where a narrower topic of the same name has come since."""
    world = world_with_topic()
    client, other = world.client(), world.client()
    assert grow(other, "t", 5) is ErrorCode.none
    both = {4: batch(b"x"), 0: batch(b"y")}
    client.send(ApiKey.PRODUCE, 9, **produce_fields("t", both))
    world.scheduler.run_turn()  # its flush is under way: what comes now waits for the next one
    number = client.send(ApiKey.PRODUCE, 9, **produce_fields("t", both))
    assert delete_topic(other, "t") is ErrorCode.none
    create_topic(other, "t", 1)
    world.scheduler.advance(1_000)
    results = client.answers[number].responses[0].partition_responses
    assert {one.index: one.error_code for one in results} == {
        0: ErrorCode.unknown_topic_or_partition,
        4: ErrorCode.unknown_topic_or_partition,
    }


@pytest.mark.parametrize("partition", [0, 4])
def test_a_failed_range_does_not_fail_what_another_took(partition: int) -> None:
    world = world_with_topic(flush_linger_ms=60_000)
    client = world.client()
    assert grow(client, "t", 5) is ErrorCode.none
    ranges = world.node.topics.get("t").ranges
    failing = ranges[0] if partition == 0 else ranges[1]
    world.disk.fail("flush", failing.active.path)
    results = send(client, "t", {0: [b"x"], 4: [b"y"]})
    codes = {0: ErrorCode.none, 4: ErrorCode.none} | {partition: ErrorCode.kafka_storage_error}
    assert {index: one.error_code for index, one in results.items()} == codes
    assert results[partition].base_offset == -1


def test_chains_follow_parents() -> None:
    def info(number: int, first: int, last: int, *parents: int) -> SegmentInfo:
        return SegmentInfo(number, first, last, "ACTIVE", parents)

    def ids(*segments: SegmentInfo) -> list[list[int]]:
        return [
            [segment.segment_id for segment in chain]
            for chain in (chain_of(tail, segments) for tail in tails(segments))
        ]

    assert ids(info(1, 0, 3)) == [[1]]
    assert ids(info(1, 0, 1), info(2, 2, 3), info(3, 0, 1, 1), info(4, 2, 3, 2)) == [[1, 3], [2, 4]]
    assert ids(info(5, 0, 1, 1), info(6, 0, 1, 5)) == [[5, 6]], "a parent that was dropped"
    split = (info(1, 0, 3), info(2, 0, 1, 1), info(3, 2, 3, 1))
    assert ids(*split) == [[1, 2], [1, 3]], "a shared parent"
    assert ids(*split, info(4, 0, 3, 2, 3)) == [[1, 2, 3, 4]], "a merge"
