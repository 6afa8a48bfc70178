"""Deleting by age and size: whole sealed segments, log starts first, no crash loses or brings back anything."""

from __future__ import annotations

import pytest
from support.sim_admin import run_turns
from support.sim_layout import files_named, files_on_disk, seal
from support.sim_node import SimNode, batch
from support.sim_producer import (
    Producer,
    create_topic,
    fetch_one,
    list_offset,
    produce_fields,
    read_all,
)

from storage.retention import Candidate, Policy, decide
from txn import keys
from wire.apis import ApiKey
from wire.errors import ErrorCode

HOUR_MS = 3_600_000
PARTITIONS = 3


def world_with_topic(**configs: str) -> SimNode:
    world = SimNode(retention_check_interval_ms=1_000, producer_id_expiration_ms=2 * HOUR_MS)
    create_topic(world.client(), "t", PARTITIONS, **configs)
    return world


def write(world: SimNode, value: bytes, partition: int = 0) -> int:
    data = {partition: batch(value, timestamp=world.scheduler.now_ms())}
    answer = world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", data))
    (one,) = answer.responses[0].partition_responses
    assert one.error_code is ErrorCode.none
    offset: int = one.base_offset
    return offset


def test_what_is_old_goes_and_readers_are_told_where_the_log_starts() -> None:
    world = world_with_topic(**{"retention.ms": str(HOUR_MS)})
    write(world, b"old", 0)
    write(world, b"old", 1)
    seal(world)
    world.scheduler.advance(HOUR_MS / 2)
    write(world, b"young", 0)
    seal(world)
    write(world, b"active", 0)
    world.scheduler.advance(HOUR_MS / 2 + 5_000)
    assert len(files_on_disk(world)) == 2
    assert files_on_disk(world) == files_named(world)
    client = world.client()
    assert [list_offset(client, "t", p, at=-2) for p in range(PARTITIONS)] == [1, 1, 0]
    assert list_offset(client, "t", 0, at=0) == 1, "by time, too"
    assert read_all(client, "t", 0)[0] == [b"young", b"active"]
    late = fetch_one(client, "t", 0)
    assert late.error_code is ErrorCode.offset_out_of_range
    assert late.log_start_offset in (1, -1)
    assert fetch_one(client, "t", 1).log_start_offset == 1
    for number, ending in enumerate(("kill", "cut_power", "restart")):
        getattr(world, ending)()
        assert [list_offset(world.client(), "t", p, at=-2) for p in range(PARTITIONS)] == [1, 1, 0]
        assert [list_offset(world.client(), "t", p, at=-1) for p in range(PARTITIONS)] == [3, 1 + number, 0]
        assert write(world, b"next", 1) == 1 + number


def test_a_topic_that_nobody_writes_to_is_emptied_too() -> None:
    """An active segment whose records are all too old is sealed, so that it can go."""
    world = world_with_topic(**{"retention.ms": str(HOUR_MS)})
    for number in range(5):
        write(world, b"%d" % number, number % PARTITIONS)
    world.scheduler.advance(HOUR_MS + 10_000)
    client = world.client()
    assert [list_offset(client, "t", p, at=-2) for p in range(PARTITIONS)] == [2, 2, 1]
    assert len(files_on_disk(world)) == 1
    world.cut_power(keep="none")
    assert [list_offset(world.client(), "t", p) for p in range(PARTITIONS)] == [2, 2, 1], "offsets go on"
    assert write(world, b"x", 2) == 1


def test_a_segment_is_sealed_at_its_age() -> None:
    world = world_with_topic(**{"segment.ms": str(HOUR_MS)})
    write(world, b"a")
    world.scheduler.advance(HOUR_MS / 2)
    assert len(files_on_disk(world)) == 1
    world.scheduler.advance(HOUR_MS / 2 + 5_000)
    assert len(files_on_disk(world)) == 2
    world.scheduler.advance(3 * HOUR_MS)
    assert len(files_on_disk(world)) == 2, "an empty one stays"
    assert read_all(world.client(), "t")[0] == [b"a"]


def test_what_is_too_much_goes() -> None:
    world = world_with_topic(**{"retention.bytes": "10000"})
    for number in range(10):
        write(world, b"%d" % number + bytes(9_000), number % 2)
        seal(world)
    world.scheduler.advance(5_000)
    topic = world.node.topics.get("t")
    assert topic is not None
    left = sum(segment.file_size or segment.end for segment in topic.ranges[0].segments)
    largest = max(segment.file_size for segment in topic.ranges[0].segments)
    assert 30_000 <= left <= 30_000 + largest, (
        "so much per partition, times three, and the last one beyond it"
    )
    kept = read_all(world.client(), "t", 0)[0] + read_all(world.client(), "t", 1)[0]
    assert {value[:1] for value in kept} == {b"%d" % number for number in range(10 - len(kept), 10)}


def test_an_open_transaction_holds_its_segment_until_its_timeout() -> None:
    world = world_with_topic(**{"retention.ms": "60000"})
    producer = Producer(world.client(), "p", timeout_ms=600_000)
    producer.init()
    producer.send("t", {0: [b"open"]})
    seal(world)
    world.scheduler.advance(300_000)
    assert list_offset(world.client(), "t", at=-2) == 0
    world.scheduler.advance(310_000)
    assert list_offset(world.client(), "t", at=-2) == 1
    assert read_all(world.client(), "t") == ([], 1)
    assert world.node.store.count(keys.ABORTED) == 0, "known outcomes go with their segment"


def test_outcomes_go_with_their_segment() -> None:
    world = world_with_topic(**{"retention.ms": "60000"})
    producer = Producer(world.client(), "p")
    producer.init()
    for commit in (False, True, False):
        producer.send("t", {0: [b"x"]})
        producer.end(commit=commit)
    world.scheduler.advance(1_000)
    assert world.node.store.count(keys.ABORTED) == 2
    assert world.node.store.count(keys.RESOLVED) == 1
    seal(world)
    world.scheduler.advance(2 * HOUR_MS + 200_000)
    assert world.node.store.count(keys.ABORTED) == world.node.store.count(keys.RESOLVED) == 0
    assert len(files_on_disk(world)) == 1


def test_producers_are_remembered_over_the_end_of_their_records() -> None:
    """The last sealed segment stays on the disk, hidden, as long as it tells a start who the producers are."""
    world = world_with_topic(**{"retention.ms": "60000"})
    data = {0: batch(b"a", producer_id=7, epoch=0, sequence=0, timestamp=world.scheduler.now_ms())}
    world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", data))
    seal(world)
    world.scheduler.advance(120_000)
    assert list_offset(world.client(), "t", at=-2) == 1
    assert len(files_on_disk(world)) == 2
    world.cut_power(keep="none")
    data = {0: batch(b"b", producer_id=7, epoch=0, sequence=1, timestamp=world.scheduler.now_ms())}
    answer = world.client().ask(ApiKey.PRODUCE, 9, **produce_fields("t", data))
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
    seal(world)
    world.scheduler.advance(3 * HOUR_MS)
    assert len(files_on_disk(world)) <= 2


def test_delete_records_gives_the_space_back() -> None:
    world = world_with_topic(**{"cleanup.policy": "delete"})
    for number in range(4):
        write(world, b"%d" % number)
    seal(world)
    write(world, b"4")
    seal(world)
    answer = world.client().ask(
        ApiKey.DELETE_RECORDS,
        2,
        topics=({"name": "t", "partitions": ({"partition_index": 0, "offset": 4},)},),
        timeout=30_000,
    )
    assert answer.topics[0].partitions[0].low_watermark == 4
    world.scheduler.advance(5_000)
    assert len(files_on_disk(world)) == 2
    assert read_all(world.client(), "t")[0] == [b"4"]


def test_a_parent_of_several_ranges_goes_when_all_of_it_may() -> None:
    world = world_with_topic(**{"retention.ms": str(HOUR_MS)})
    for partition in range(PARTITIONS):
        write(world, b"parent", partition)
    topic = world.node.topics.get("t")
    assert topic is not None
    answers: list[object] = []
    world.node.layouts.split(topic, [1, 2], answers.append)
    world.scheduler.run_until(lambda: bool(answers))
    for partition in range(PARTITIONS):
        write(world, b"child", partition)
    world.scheduler.advance(HOUR_MS + 10_000)
    assert [list_offset(world.client(), "t", p, at=-2) for p in range(PARTITIONS)] == [2, 2, 2]
    assert len(files_on_disk(world)) == PARTITIONS
    world.cut_power(keep="none")
    for partition in range(PARTITIONS):
        assert write(world, b"next", partition) == 2
        assert read_all(world.client(), "t", partition)[0] == [b"next"]


TURNS = 30


def world_that_begins_to_delete() -> SimNode:
    world = world_with_topic(**{"retention.bytes": "1000"})
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(3):
        producer.send("t", {0: [b"%d" % number + bytes(2_000)], 1: [b"%d" % number]})
        producer.end(commit=number != 1)
        world.scheduler.advance(100)
        seal(world)
    topic = world.node.topics.get("t")
    assert topic is not None
    world.node.retention.sweep(topic)
    return world


def test_a_deletion_is_over_within_the_turns_that_are_cut() -> None:
    world = world_that_begins_to_delete()
    before = len(files_on_disk(world))
    turns = 0
    while len(files_on_disk(world)) == before:
        run_turns(world, 1)
        turns += 1
    assert turns < TURNS - 2


@pytest.mark.parametrize("keep", ["none", "prefix", "sectors", "all"])
@pytest.mark.parametrize("turn", range(TURNS))
def test_a_power_cut_at_every_turn(turn: int, keep: str) -> None:
    world = world_that_begins_to_delete()
    run_turns(world, turn)
    shown = list_offset(world.client(), "t", at=-2) if turn % 5 == 0 else 0
    world.cut_power(keep=keep)
    start = list_offset(world.client(), "t", at=-2)
    assert start >= shown, "a log start never moves back"
    assert start in (0, 1, 2, 3)
    values = [value[:1] for value in read_all(world.client(), "t")[0]]
    assert values == [b"%d" % number for number in range(start, 3) if number != 1]
    assert files_on_disk(world) == files_named(world), "no orphan"
    world.scheduler.advance(5_000)
    assert list_offset(world.client(), "t") == 3
    assert files_on_disk(world) == files_named(world)


NOW = 10_000_000
KEEP = Policy(delete=True, retention_ms=-1, retention_bytes=-1)
BY_AGE = Policy(delete=True, retention_ms=1_000, retention_bytes=-1)
BY_SIZE = Policy(delete=True, retention_ms=-1, retention_bytes=250)
COMPACT_ONLY = Policy(delete=False, retention_ms=1_000, retention_bytes=0)


def one(number: int, *parents: int, **more: object) -> Candidate:
    defaults = {"size_bytes": 100, "newest_ms": NOW, "ready": True, "hidden": False, "needed": False}
    return Candidate(number, parents, **(defaults | more))  # type: ignore[arg-type]


OLD = {"newest_ms": NOW - 1_001}
CASES = {
    "nothing to do": (KEEP, [one(1, **OLD), one(2, 1)], (), ()),
    "old": (BY_AGE, [one(1, **OLD), one(2, 1)], (1,), (1,)),
    "old, to the millisecond": (BY_AGE, [one(1, newest_ms=NOW - 1_000), one(2, 1)], (), ()),
    "old behind a young one": (BY_AGE, [one(1), one(2, 1, **OLD), one(3, 2)], (), ()),
    "old behind an open transaction": (BY_AGE, [one(1, ready=False, **OLD), one(2, 1, **OLD)], (), ()),
    "old and needed": (BY_AGE, [one(1, **OLD), one(2, 1, needed=True, **OLD), one(3, 2)], (1, 2), (1,)),
    "too much": (BY_SIZE, [one(n, n - 1) for n in range(1, 6)], (1, 2), (1, 2)),
    "enough": (BY_SIZE, [one(1), one(2, 1)], (), ()),
    "hidden, whatever the policy": (COMPACT_ONLY, [one(1, hidden=True), one(2, 1, **OLD)], (1,), (1,)),
    "a merge waits for both": (BY_AGE, [one(1, **OLD), one(2), one(3, 1, 2, **OLD)], (1,), (1,)),
    "a parent that went before": (BY_AGE, [one(7, 6, **OLD), one(8, 7)], (7,), (7,)),
}


@pytest.mark.parametrize("case", CASES)
def test_decide(case: str) -> None:
    policy, candidates, hide, remove = CASES[case]
    verdict = decide(candidates, policy, NOW)
    assert (verdict.hide, verdict.remove) == (hide, remove)
    assert set(verdict.reasons) == set(hide)
