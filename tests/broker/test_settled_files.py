"""Every settled segment has its outcomes beside it, whatever happened on the way, and they are what consumers see."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest
from support.sim_admin import delete_records, delete_topic, run_turns
from support.sim_disk import PowerCut
from support.sim_layout import seal
from support.sim_node import SimNode
from support.sim_producer import Producer, create_topic, list_offset, produce_fields, read_all
from support.sim_sealed import (
    all_settled,
    committed_on_disk,
    committed_values,
    sealed_paths,
    segment_paths,
    sidecars,
)

from storage.check import check_directory
from storage.format import CorruptLog, settled_name, settled_path
from storage.sealed import NotSettled, SealedSegment
from storage.settled import RANGES_PER_STEP, Aborted
from wire.apis import ApiKey
from wire.batch import TRANSACTIONAL_BIT
from wire.errors import ErrorCode
from wire.records import Record, build_batch

PARTITIONS = 3


def world_with_topic(**configs: str) -> SimNode:
    """No sweep of retention and no compaction but those that a test begins."""
    world = SimNode(retention_check_interval_ms=1 << 40, compaction_interval_ms=1 << 40)
    create_topic(world.client(), "t", PARTITIONS, **configs)
    return world


def write_rounds(world: SimNode, rounds: int = 3) -> None:
    """Committed and aborted transactions, a segment per round; the last one is active and stays empty."""
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(rounds):
        for commit in (True, False, number % 2 == 0):
            word = b"%d-%s" % (number, b"yes" if commit else b"no")
            assert producer.send("t", {0: [word, word], 1: [word]}) == {0: ErrorCode.none, 1: ErrorCode.none}
            assert producer.end(commit=commit) is ErrorCode.none
        seal(world)


def assert_files_say_what_consumers_see(world: SimNode) -> None:
    for partition in range(PARTITIONS):
        assert committed_on_disk(world, partition) == read_all(world.client(), "t", partition)[0]
    assert not [finding for finding in check_directory(world.disk) if finding.damaged]


def test_a_settled_segment_says_what_consumers_see() -> None:
    world = world_with_topic()
    write_rounds(world)
    assert sidecars(world) == []
    world.scheduler.advance(3_000)
    assert all_settled(world)
    assert len(sidecars(world)) == 3
    assert_files_say_what_consumers_see(world)
    assert sum(finding.settled for finding in check_directory(world.disk)) == 3
    path = sealed_paths(world)[0]
    with SealedSegment(world.disk, path) as segment:
        settled = segment.settled
        assert settled is not None
        assert segment.topic == "t"
        topic = world.node.topics.get("t")
        assert topic is not None
        assert segment.header.topic_id == settled.owner.topic_id == topic.id
        assert {p: (s.first, s.end) for p, s in settled.partitions.items()} == {0: (0, 6), 1: (0, 3)}
        (aborted,) = settled.partitions[0].aborted
        assert (aborted.first, aborted.last) == (2, 3)
        for start in range(7):
            everything = [b"0-yes"] * 2 + [b"0-no"] * 2 + [b"0-yes"] * 2
            expected = [value for at, value in enumerate(everything) if at >= start and value != b"0-no"]
            assert committed_values(segment, 0, start) == expected
        assert segment.producers()[0][0][0] == aborted.producer_id


def test_no_sidecar_before_the_outcome_is_known() -> None:
    world = world_with_topic()
    blocker, producer = (Producer(world.client(), name, timeout_ms=600_000) for name in "bp")
    blocker.init()
    producer.init()
    blocker.send("t", {0: [b"blocked"]})
    producer.send("t", {0: [b"done"], 1: [b"done"]})
    producer.end(commit=False)
    seal(world)
    seal(world)
    world.scheduler.advance(60_000)
    assert sidecars(world) == [], "the second is empty; but an empty segment is not sealed twice"
    (path,) = sealed_paths(world)
    with SealedSegment(world.disk, path) as segment:
        assert [batch.base_offset for batch in segment.batches(0)] == [0, 1]
        with pytest.raises(NotSettled, match=path):
            next(segment.committed(0))
    blocker.end()
    world.scheduler.advance(3_000)
    assert all_settled(world)
    assert committed_on_disk(world, 0) == [b"blocked"]
    assert committed_on_disk(world, 1) == []


def test_an_aborted_transaction_over_several_segments_is_told_in_each() -> None:
    world = world_with_topic()
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(3):
        producer.send("t", {0: [b"%d" % number]})
        seal(world)
    producer.end(commit=False)
    world.scheduler.advance(5_000)
    assert all_settled(world)
    for number, path in enumerate(sealed_paths(world)):
        with SealedSegment(world.disk, path) as segment:
            assert segment.settled is not None
            ranges = segment.settled.partitions[0].aborted
            assert ranges == [Aborted(producer.producer_id, number, number)]


def test_many_aborted_ranges_are_written_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.settled.RANGES_PER_STEP", 4)
    assert RANGES_PER_STEP > 4
    world = world_with_topic()
    producer = Producer(world.client(), "p")
    producer.init()
    for number in range(11):
        producer.send("t", {0: [b"%d" % number]})
        producer.end(commit=number == 5)
    seal(world)
    writes = world.disk.writes.copy()
    world.scheduler.advance(3_000)
    (path,) = sidecars(world)
    assert (world.disk.writes - writes)[f"{path}.tmp"] == 1 + 3 + 1, (
        "the owner, three pieces of 0, the header"
    )
    assert committed_on_disk(world, 0) == [b"5"]


def test_deleted_records_are_not_called_committed() -> None:
    world = world_with_topic()
    write_rounds(world, 1)
    delete_records(world.client(), "t", {0: 4})
    world.scheduler.advance(3_000)
    with SealedSegment(world.disk, sealed_paths(world)[0]) as segment:
        assert committed_values(segment, 0) == [b"0-yes"] * 2, "of what was deleted the outcome is forgotten"
        assert segment.offset_for_timestamp(0, 0) is not None
    assert_files_say_what_consumers_see(world)


def cut_at(world: SimNode, change: int) -> bool:
    """Cut the power at that change of the disk, within the next seconds; whether it came so far."""
    world.disk.stop_after(change)
    came = False
    with suppress(PowerCut):
        world.scheduler.advance(4_000)
        came = True
    world.cut_power(keep=("none", "sectors", "all")[change % 3])
    return not came


def test_a_power_cut_at_every_change_of_the_disk() -> None:
    """From the sealing of a segment until its sidecar is there, and then while retention takes both away."""
    cuts = 0
    for change in range(1, 200):
        world = world_with_topic()
        write_rounds(world, 2)
        if not cut_at(world, change):
            break
        cuts += 1
        assert set(sidecars(world)) <= {settled_path(path) for path in sealed_paths(world)}, "no orphan"
        assert_files_say_what_consumers_see_when_settled(world)
    assert cuts >= 15, "two sidecars: create, writes, flush, rename, flush of the folder"


def assert_files_say_what_consumers_see_when_settled(world: SimNode) -> None:
    world.scheduler.advance(4_000)
    assert all_settled(world)
    assert_files_say_what_consumers_see(world)


def test_a_power_cut_at_every_change_while_retention_removes_both() -> None:
    cuts = 0
    for change in range(1, 200):
        world = world_with_topic(**{"retention.bytes": "1"})
        write_rounds(world, 2)
        world.scheduler.advance(4_000)
        assert all_settled(world)
        topic = world.node.topics.get("t")
        assert topic is not None
        world.node.retention.sweep(topic)
        if not cut_at(world, change):
            break
        cuts += 1
        assert set(sidecars(world)) <= {settled_path(path) for path in segment_paths(world)}, "no orphan"
        assert_files_say_what_consumers_see_from(world, list_offset(world.client(), "t", at=-2))
    assert cuts >= 4


def assert_files_say_what_consumers_see_from(world: SimNode, start: int) -> None:
    seen = read_all(world.client(), "t")[0]
    found = []
    for path in sealed_paths(world):
        with SealedSegment(world.disk, path) as segment:
            if segment.settled is not None:
                found += committed_values(segment, 0, start)
    assert set(found) <= set(seen)
    world.scheduler.advance(10_000)
    assert all_settled(world)


def test_a_power_cut_at_every_change_of_a_compaction() -> None:
    cuts = 0
    for change in range(1, 200):
        world = world_with_topic(
            **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
        )
        producer = Producer(world.client(), "p")
        producer.init()
        for number in range(2):
            for commit in (True, False):
                value = b"%d-%d" % (number, commit)
                keyed_send(world, producer, value)
                producer.end(commit=commit)
            seal(world)
        world.scheduler.advance(4_000)
        assert all_settled(world)
        world.node.compactor.run()
        came = cut_at(world, change)
        world.scheduler.advance(6_000)
        assert all_settled(world), sidecars(world)
        assert_files_say_what_consumers_see(world)
        if not came:
            break
        cuts += 1
    assert any(".1.settled" in path for path in sidecars(world)), "the last one came to its end"
    assert cuts >= 12


def keyed_send(world: SimNode, producer: Producer, value: bytes) -> None:
    sequence = producer.sequences.get(("t", 0), 0)
    producer.sequences["t", 0] = sequence + 1
    data = build_batch(
        [Record(b"k", value, timestamp=world.scheduler.now_ms())],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )
    answer = world.client().ask(
        ApiKey.PRODUCE, 12, **produce_fields("t", {0: data}, transactional_id=producer.name)
    )
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


def test_a_start_writes_what_is_missing_and_removes_what_is_left_over() -> None:
    world = world_with_topic()
    write_rounds(world)
    world.scheduler.advance(3_000)
    first, second, third = sidecars(world)
    content = world.disk.content(second)
    world.disk.remove(first)
    folder = third.rpartition("/")[0]
    orphan = f"{folder}/{settled_name(999)}"
    world.disk.replace(orphan, content)
    world.disk.replace(second + ".tmp", content[:50])
    world.kill()
    assert sidecars(world) == [second, third]
    world.scheduler.advance(3_000)
    assert sidecars(world) == [first, second, third]
    assert_files_say_what_consumers_see(world)
    assert world.node.settled_files._timer is None, "nothing is looked for any more"


@pytest.mark.parametrize("kind", ["create", "write", "flush", "rename", "flush_dir"])
def test_a_failed_step_is_tried_again(kind: str) -> None:
    world = world_with_topic()
    write_rounds(world, 1)
    part = ".settled" if kind != "flush_dir" else "topics/t"
    world.disk.fail(kind, part, error=errno.EIO)
    world.scheduler.advance(3_000)
    world.scheduler.advance(70_000)
    assert all_settled(world)
    assert_files_say_what_consumers_see(world)


def test_a_deleted_topic_takes_its_sidecars_along_at_any_turn() -> None:
    for turn in range(0, 24, 2):
        world = world_with_topic()
        write_rounds(world, 2)
        run_turns(world, 5)
        world.scheduler.advance(990)
        run_turns(world, turn)
        assert delete_topic(world.client(), "t") is ErrorCode.none
        world.scheduler.advance(5_000)
        assert world.disk.list("topics") == []


def test_damage_is_found_and_named() -> None:
    world = world_with_topic()
    write_rounds(world)
    world.scheduler.advance(3_000)
    first, second, _ = sidecars(world)
    content = world.disk.content(first)
    segment_path = sealed_paths(world)[0]
    for position in range(len(content)):
        world.disk.overwrite(first, position, bytes([content[position] ^ 4]))
        (finding,) = [finding for finding in check_directory(world.disk) if finding.damaged]
        assert finding.path == first
        with (
            SealedSegment(world.disk, segment_path) as segment,
            pytest.raises(CorruptLog, match=first),
        ):
            list(segment.committed(0))
        world.disk.overwrite(first, position, content[position : position + 1])
    world.disk.replace(first, world.disk.content(second))
    (finding,) = [finding for finding in check_directory(world.disk) if finding.damaged]
    assert "belongs to another segment" in finding.detail
