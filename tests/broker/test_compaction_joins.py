"""Small segments that were compacted and follow each other become one; no crash loses or brings back anything."""

from __future__ import annotations

from contextlib import suppress

import pytest
from support.sim_admin import delete_records, run_turns
from support.sim_disk import PowerCut
from support.sim_layout import files_on_disk, seal
from support.sim_node import SimNode
from support.sim_producer import Producer, batches, create_topic, fetch_one, list_offset, produce_fields
from support.sim_sealed import all_settled, sealed_paths

from broker.layout_controller import Arranged
from storage.check import check_directory
from storage.compaction import JOIN_AT_LEAST, Candidate, Policy, choose
from storage.sealed import SealedSegment
from txn import keys
from wire.apis import ApiKey
from wire.batch import TRANSACTIONAL_BIT, parse_header
from wire.errors import ErrorCode
from wire.records import Record, build_batch, iterate_records

PARTITIONS = 2


def world_with_topic(**configs: str) -> SimNode:
    """Compaction runs when a test asks for it."""
    world = SimNode(compaction_interval_ms=1 << 40, retention_check_interval_ms=1_000)
    defaults = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    create_topic(world.client(), "t", PARTITIONS, **(defaults | configs))
    return world


def write(world: SimNode, producer: Producer, partition: int, key: bytes, value: bytes) -> None:
    sequence = producer.sequences.get(("t", partition), 0)
    producer.sequences["t", partition] = sequence + 1
    data = build_batch(
        [Record(key, value, timestamp=world.scheduler.now_ms())],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )
    fields = produce_fields("t", {partition: data}, transactional_id=producer.name)
    answer = world.client().ask(ApiKey.PRODUCE, 12, **fields)
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


def write_segments(world: SimNode, count: int = JOIN_AT_LEAST + 1) -> None:
    """Each with a key of its own, the same key as all, and something aborted."""
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(count):
        for partition in range(PARTITIONS):
            write(world, producer, partition, b"own-%d" % number, b"%d" % number)
            write(world, producer, partition, b"same", b"%d" % number)
        assert producer.end() is ErrorCode.none
        write(world, producer, 0, b"aborted", b"%d" % number)
        assert producer.end(commit=False) is ErrorCode.none
        world.scheduler.advance(300)
        seal(world)


def read(
    world: SimNode, partition: int = 0, start: int | None = None
) -> dict[int, tuple[bytes | None, bytes | None]]:
    """offset -> (key, value), to the end that a reader is told."""
    client = world.client()
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    position = list_offset(client, "t", partition, at=-2) if start is None else start
    end = list_offset(client, "t", partition)
    while position < end:
        one = fetch_one(client, "t", position, partition, max_bytes=200)
        assert one.error_code is ErrorCode.none
        assert one.records, f"a reader is stuck at {position} of {end}"
        for data in batches(one.records):
            header = parse_header(data)
            if not header.is_control:
                found |= {r.offset: (r.key, r.value) for r in iterate_records(data) if r.offset >= position}
            position = header.last_offset + 1
    return found


def expected(count: int = JOIN_AT_LEAST + 1, partition: int = 0) -> dict[int, tuple[bytes, bytes]]:
    each = 3 if partition == 0 else 2
    own = {each * number: (b"own-%d" % number, b"%d" % number) for number in range(count)}
    return own | {each * (count - 1) + 1: (b"same", b"%d" % (count - 1))}


def compact(world: SimNode, ms: int = 3_000) -> None:
    """As many jobs, one after another, as there are to do."""
    world.node.compactor.run()
    world.scheduler.advance(ms)


def layout(world: SimNode) -> list[tuple[int, list[int], int]]:
    record = world.node.store.get(keys.layout("t"))
    assert record is not None
    return [(one["id"], one["parents"], one["generation"]) for one in record.value["segments"]]


def assert_whole(world: SimNode, *, from_offsets: bool = False) -> None:
    for partition in range(PARTITIONS):
        wanted = expected(partition=partition)
        assert read(world, partition) == wanted
        for start in range(0, 14, 3) if from_offsets else ():
            assert read(world, partition, start) == {at: kv for at, kv in wanted.items() if at >= start}
    assert not [finding for finding in check_directory(world.disk) if finding.damaged]
    named = {(segment_id, generation) for segment_id, _, generation in layout(world)}
    assert len(files_on_disk(world)) == len(named), "no orphan"


def test_small_neighbours_become_one() -> None:
    world = world_with_topic()
    write_segments(world)
    before = layout(world)
    compact(world)
    (first, _, _), *_, (last, _, _), (active, _, _) = before
    assert layout(world) == [(last, [], 1 + world_generation(world, last)), (active, [last], 0)]
    assert_whole(world, from_offsets=True)
    assert world.node.store.count(keys.RESOLVED) == 1
    assert world.node.store.count(keys.ABORTED) <= 1
    assert all_settled(world)
    with SealedSegment(world.disk, sealed_paths(world)[0]) as segment:
        found = [r.value for b in segment.committed(0) for r in iterate_records(b.data)]
        assert found == [value for _, value in expected().values()]
        assert segment.header.parents == ()
        assert segment.partitions[0].start_offset == 0
        assert first not in segment.header.parents
    for ending in ("kill", "cut_power", "restart"):
        getattr(world, ending)()
        assert_whole(world, from_offsets=True)
        assert world.node.store.count(keys.TXNS) == 0, "nothing settled is taken for unknown"
    # More come, and are joined among themselves; the producer goes on where it was.
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(JOIN_AT_LEAST):
        write(world, producer, 1, b"later-%d" % number, b"x")
        producer.end()
        world.scheduler.advance(1_000)
        seal(world)
    compact(world)
    assert len(layout(world)) == 2, "the one from before is small, too"
    later = {at: kv for at, kv in read(world, 1).items() if kv[0].startswith(b"later")}  # type: ignore[union-attr]
    assert len(later) == JOIN_AT_LEAST
    world.cut_power(keep="none")
    assert read(world, 0) == expected()


def world_generation(world: SimNode, segment_id: int) -> int:
    """That of the last segment before it was joined."""
    return next(generation for found, _, generation in layout(world) if found == segment_id) - 1


def test_a_power_cut_at_every_change_of_the_disk() -> None:
    cuts = 0
    for change in range(1, 400):
        world = world_with_topic()
        write_segments(world)
        world.scheduler.advance(4_000)
        world.node.compactor.run()
        # The compaction first, until its layout is durable: the joining alone is cut here.
        topic = world.node.topics.get("t")
        assert topic is not None
        while not any(segment.header.generation for segment in topic.segments().values()):
            run_turns(world, 1)
        world.disk.stop_after(change)
        over = False
        with suppress(PowerCut):
            world.scheduler.advance(3_000)
            over = True
        if not over:
            world.kill() if change % 5 == 0 else world.cut_power(keep=("none", "sectors")[change % 2])
        assert_whole(world)
        world.node.compactor.run()
        world.disk.stop_after(1 << 40)
        world.scheduler.advance(4_000)
        assert_whole(world)
        assert len(layout(world)) == 2
        assert all_settled(world)
        if over:
            break
        cuts += 1
    assert cuts >= 20


def test_a_parent_of_several_ranges_is_joined_with_what_is_before_it() -> None:
    world = world_with_topic()
    write_segments(world)
    topic = world.node.topics.get("t")
    assert topic is not None
    answers: list[object] = []
    world.node.layouts.split(topic, [1], answers.append)
    world.scheduler.run_until(lambda: bool(answers))
    assert isinstance(answers[0], Arranged)
    world.scheduler.advance(2_000)
    compact(world)
    assert_whole(world)
    shape = layout(world)
    assert len(shape) == 3, shape
    (parent, _, generation), *children = shape
    assert generation > 0
    assert [parents for _, parents, _ in children] == [[parent], [parent]]
    for ending in ("kill", "cut_power"):
        getattr(world, ending)()
        assert_whole(world)


def test_log_start_and_deletion_go_on_as_before() -> None:
    world = world_with_topic(**{"cleanup.policy": "compact,delete"})
    write_segments(world)
    delete_records(world.client(), "t", {0: 4})
    compact(world)
    assert read(world) == {at: kv for at, kv in expected().items() if at >= 4}
    with SealedSegment(world.disk, sealed_paths(world)[0]) as segment:
        assert segment.settled is not None
        assert segment.settled.partitions[0].first == 4
        assert segment.settled.partitions[1].first == 0
    world.cut_power(keep="none")
    assert read(world) == {at: kv for at, kv in expected().items() if at >= 4}
    end = list_offset(world.client(), "t"), list_offset(world.client(), "t", 1)
    delete_records(world.client(), "t", {0: end[0], 1: end[1]})
    world.scheduler.advance(25 * 3_600_000 // 100)
    assert read(world) == {}
    assert (list_offset(world.client(), "t"), list_offset(world.client(), "t", 1)) == end


NOW = 1_000_000
POLICY = Policy(
    min_lag_ms=0, max_lag_ms=1 << 40, delete_retention_ms=60_000, min_dirty_ratio=0.5, segment_bytes=1_000
)


def one(number: int, size: int = 100, *parents: int, **more: object) -> Candidate:
    defaults = {"max_timestamp_ms": 0, "ready": True, "cleaned_ms": 0, "first": 0, "last": 3}
    return Candidate(number, parents or (number - 1,), size, **(defaults | more))  # type: ignore[arg-type]


CASES: dict[str, tuple[list[Candidate], tuple[int, ...]]] = {
    "four": ([one(n) for n in range(1, 5)], (1, 2, 3, 4)),
    "three are not worth it": ([one(n) for n in range(1, 4)], ()),
    "as many as fit": ([one(n) for n in range(1, 15)], tuple(range(1, 11))),
    "none beside a large one": ([one(1, 900), one(2, 20), one(3, 20), one(4, 20)], ()),
    "small ones behind a large one": ([one(1, 900), *[one(n, 20) for n in range(2, 6)]], (2, 3, 4, 5)),
    "small ones before a large one": ([*[one(n, 20) for n in range(1, 5)], one(5, 900)], (1, 2, 3, 4)),
    "one that is not compacted yet": ([one(1), one(2), one(3, cleaned_ms=None), one(4), one(5)], ()),
    "marks of deletion": ([one(1), one(2), one(3, tombstones=True, cleaned_ms=NOW), one(4), one(5)], ()),
    "an open transaction": ([one(1), one(2), one(3), one(4, ready=False)], ()),
    "not over a split": ([one(1), one(2), one(3, 100, 2, last=1), one(4, 100, 2, first=2)], ()),
    "not over a merge": ([one(1, last=1), one(2, 100, 0, first=2), one(3, 100, 1, 2), one(4), one(5)], ()),
}


@pytest.mark.parametrize("case", CASES)
def test_choose(case: str) -> None:
    candidates, wanted = CASES[case]
    choice = choose(candidates, POLICY, NOW)
    assert (choice.segments if choice is not None else ()) == wanted
    assert choice is None or (choice.join and not choice.dirty)
