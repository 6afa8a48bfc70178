"""A replica takes over a chain that was copied from another one: the files are the old ones or the new ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from replica_chains import PER_SEGMENT, Chain, aside_of, content, copy_sealed, noop
from replica_model import FOLDER, batch_entry, open_one, states
from support.sim_disk import PowerCut, SimDisk
from support.sim_loop import SimScheduler

from storage.check import check_directory
from storage.format import CorruptLog, segment_name
from storage.layout import LogConfig
from storage.replica_front import ReplicaFront
from storage.replica_takeover import is_taking_over, take_over


@pytest.fixture(scope="module")
def source() -> Chain:
    """Its begin is gone."""
    chain = Chain(4)
    drop_below(chain, 2 * PER_SEGMENT)
    assert chain.replica.first_index == 2 * PER_SEGMENT + 1
    return chain


def drop_below(chain: Chain, index: int) -> ReplicaFront:
    """Everything up to the entry is below the log starts."""
    replica = chain.replica
    for segment in replica.segments:
        if segment.numbering is not None and segment.numbering.last_index <= index:
            for partition, end in segment.end_offsets().items():
                replica.partition(partition).advance_log_start(end)
    front = ReplicaFront(chain.disk, chain.scheduler, replica)
    front.drop()
    chain.scheduler.advance(100)
    return front


def reopened(disk: SimDisk) -> Any:
    scheduler = SimScheduler()
    disk.scheduler = scheduler
    return open_one(disk, scheduler)


def go(target: Chain, source: Chain, until: int | None = None) -> None:
    """As `broker.replication.range_restore` does it; the power is cut at the change `until`."""
    if until is not None:
        target.disk.stop_after(until)
    aside = aside_of(target.disk)
    copy_sealed(source.replica, aside, target.disk)
    told: list[Any] = []
    aside.name(told.append)
    target.scheduler.run_until(lambda: bool(told), max_ms=100)
    assert told == [None]
    target.replica.close()
    target.replica = reopened(target.disk)


def shape(replica: Any) -> Any:
    """All that there is to see of a log."""
    partitions = replica._partitions
    return (
        content(replica),
        [segment.segment_id for segment in replica.segments],
        replica.commit_index,
        [(log.end_offset, log.high_watermark, log.epochs, states(log.producers)) for log in partitions],
    )


def test_the_new_chain_is_the_sources_up_to_what_it_has_sealed(source: Chain) -> None:
    target = Chain(1, tail=3, committed=False)
    go(target, source)
    replica, theirs = target.replica, source.replica
    last = 4 * PER_SEGMENT
    assert (replica.first_index, replica.last_index) == (2 * PER_SEGMENT + 1, last)
    assert replica.commit_index == last
    assert content(replica) == content(theirs)[: last - 2 * PER_SEGMENT]
    assert [one.segment_id for one in replica.segments] == [one.segment_id for one in theirs.segments]
    child = replica.active.file().pread(4096, 0)
    assert child == theirs.active.file().pread(4096, 0), "the child is the same file everywhere"
    for mine, other in zip(replica._partitions, theirs._partitions, strict=True):
        assert mine.log_start_offset == other.indexes[0].start_offset
        assert mine.high_watermark == mine.end_offset == theirs.segments[1].end_offsets()[mine.partition]
    # It goes on with what comes next.
    rest = theirs.entries(last + 1, theirs.last_index, 10_000)
    replica.write(None, rest)
    replica.commit_to(theirs.last_index)
    assert content(replica) == content(theirs)
    for mine, other in zip(replica._partitions, theirs._partitions, strict=True):
        assert (mine.end_offset, mine.high_watermark) == (other.end_offset, other.high_watermark)
        assert states(mine.producers) == states(other.producers)
    replica.close()
    assert {finding.status for finding in check_directory(target.disk, FOLDER)} == {"ok"}
    assert not [name for name in target.disk.list(FOLDER) if "taking" in name or name.endswith(".tmp")]


@pytest.mark.parametrize("keep", ["none", "all", "random", "sectors"])
def test_a_crash_at_any_change_leaves_the_old_chain_or_the_new_one(source: Chain, keep: str) -> None:
    whole = Chain(1, tail=3)
    old = shape(whole.replica)
    go(whole, source)
    new = shape(whole.replica)
    seen = {"old": 0, "new": 0}
    at = 0
    while True:
        at += 1
        target = Chain(1, tail=3)
        try:
            go(target, source, at)
        except PowerCut:
            pass
        else:
            break
        disk = target.disk.crash(at, keep=keep)
        is_named = is_taking_over(disk, FOLDER)
        assert not any(finding.damaged for finding in check_directory(disk, FOLDER))
        found = shape(reopened(disk))
        assert found[0] in (old[0], new[0])
        if found[0] == new[0]:
            assert found == new
            seen["new"] += 1
        else:
            assert not is_named
            assert found[1] == old[1]
            assert found[3][0][0] == old[3][0][0]
            seen["old"] += 1
        assert not is_taking_over(disk, FOLDER)
        assert not [name for name in disk.list(FOLDER) if name.endswith(".tmp") and "seg" in name]
    assert seen["old"] > 10, seen
    assert seen["new"] > 10, seen


def test_a_crash_while_a_start_goes_on_with_it_is_one_more_start(source: Chain) -> None:
    whole = Chain(1, tail=3)
    go(whole, source)
    new = shape(whole.replica)
    at = 0
    while True:
        at += 1
        target = Chain(1, tail=3)
        aside = aside_of(target.disk)
        copy_sealed(source.replica, aside, target.disk)
        told: list[Any] = []
        aside.name(told.append)
        target.scheduler.run_until(lambda told=told: bool(told), max_ms=100)
        disk = target.disk.crash(at)
        disk.stop_after(at)
        try:
            reopened(disk)
        except PowerCut:
            assert shape(reopened(disk.crash(at))) == new
        else:
            break
    assert at > 10


def test_a_start_throws_away_what_was_not_named(source: Chain) -> None:
    target = Chain(1)
    before = shape(target.replica)
    copy_sealed(source.replica, aside_of(target.disk), target.disk)
    target.replica.close()
    assert not take_over(target.disk, FOLDER, LogConfig())
    assert any(name.endswith(".seg.tmp") for name in target.disk.list(FOLDER))
    replica = reopened(target.disk)
    assert shape(replica)[0] == before[0]
    assert not any(name.endswith(".seg.tmp") for name in target.disk.list(FOLDER))


def test_a_list_that_is_damaged_is_refused(source: Chain) -> None:
    target = Chain(1)
    aside = aside_of(target.disk)
    copy_sealed(source.replica, aside, target.disk)
    aside.name(lambda _: None)
    target.scheduler.advance(10)
    target.disk.overwrite(f"{FOLDER}/taking-over", 5, b"\x07")
    with pytest.raises(CorruptLog, match="damaged"):
        reopened(target.disk)


def copied(target: Chain, source: Chain, at: int, *, change: Any = lambda data: data) -> Any:
    """The check of one segment's copy that may have been changed on the way."""
    segment = source.replica.segments[at]
    aside = aside_of(target.disk)
    file = aside.create(segment.segment_id)
    data = segment.file().pread(segment.file_size or segment.end, 0)
    file.pwritev([change(data)], 0)
    list(aside.check(segment.segment_id))
    return aside


def test_every_byte_of_a_copy_is_checked(source: Chain) -> None:
    target = Chain(1)
    size = source.replica.segments[0].file_size
    copied(target, source, 0)

    def flipped(at: int) -> Any:
        return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    end = source.replica.segments[0].end
    wrong = [*range(0, 40, 5), *range(4096, size - 1, 3)]
    for at in wrong:
        if end <= at < end + 93:
            continue  # the end mark has told a start what it had to, and counts for nothing behind a footer
        with pytest.raises(CorruptLog):
            copied(target, source, 0, change=flipped(at))
    with pytest.raises(CorruptLog):
        copied(target, source, 0, change=lambda data: data[:-1])
    with pytest.raises(CorruptLog, match="no sealed segment"):
        copied(target, source, -1)


def test_a_copy_that_does_not_continue_the_one_before_is_refused(source: Chain) -> None:
    longer = Chain(5)
    target = Chain(1)
    aside = copied(target, source, 0)
    segment = longer.replica.segments[4]
    file = aside.create(segment.segment_id)
    file.pwritev([segment.file().pread(segment.file_size, 0)], 0)
    with pytest.raises(CorruptLog, match="does not continue"):
        list(aside.check(segment.segment_id))


def test_a_copy_of_another_range_is_refused(source: Chain) -> None:
    target = Chain(1)
    aside = aside_of(target.disk)
    aside._wanted = (aside._wanted[0], 0, 5)
    segment = source.replica.segments[0]
    file = aside.create(segment.segment_id)
    file.pwritev([segment.file().pread(segment.file_size, 0)], 0)
    with pytest.raises(CorruptLog, match="another range"):
        list(aside.check(segment.segment_id))


def test_a_check_sees_what_a_start_would_do_with_the_files(source: Chain) -> None:
    target = Chain(1)
    copy_sealed(source.replica, aside_of(target.disk), target.disk)
    assert {finding.status for finding in check_directory(target.disk, FOLDER)} == {"ok"}
    aside = aside_of(target.disk)
    copy_sealed(source.replica, aside, target.disk)
    aside.name(lambda _: None)
    target.scheduler.advance(10)
    changes = target.disk.changes
    assert {finding.status for finding in check_directory(target.disk, FOLDER)} == {"left over"}
    assert target.disk.changes == changes
    target.disk.overwrite(f"{FOLDER}/taking-over", 5, b"\x07")
    assert [one.path for one in check_directory(target.disk, FOLDER) if one.damaged] == [
        f"{FOLDER}/taking-over"
    ]


@pytest.mark.parametrize("segment_id", [1, 2, 3])
def test_a_segment_whose_header_block_is_damaged_is_missed(segment_id: int) -> None:
    """Of the oldest one, too: a begin that was dropped leaves no file."""
    chain = Chain(3)
    chain.replica.close()
    chain.disk.overwrite(f"{FOLDER}/{segment_name(segment_id)}", 20, b"\xff\xff")
    assert any(finding.damaged for finding in check_directory(chain.disk, FOLDER))
    with pytest.raises(CorruptLog):
        reopened(chain.disk)


def test_a_segment_that_is_gone_from_the_middle_is_missed() -> None:
    chain = Chain(3)
    chain.replica.close()
    chain.disk.remove(f"{FOLDER}/{segment_name(2)}")
    damaged = [finding for finding in check_directory(chain.disk, FOLDER) if finding.damaged]
    assert "the file that continues it is absent" in damaged[0].detail


def test_a_child_that_was_being_made_is_no_damage() -> None:
    chain = Chain(2)
    chain.replica.close()
    chain.disk.open(f"{FOLDER}/{segment_name(9)}", create=True).close()
    statuses = {finding.path[-5:-4]: finding.status for finding in check_directory(chain.disk, FOLDER)}
    assert statuses == {"1": "ok", "2": "ok", "3": "ok", "9": "left over"}
    assert reopened(chain.disk).last_index == chain.replica.last_index


# Dropping the begin.


def test_the_begin_goes_by_whole_segments_below_the_log_starts() -> None:
    chain = Chain(4)
    replica = chain.replica
    before = content(replica)
    ends = replica.segments[1].end_offsets()
    front = ReplicaFront(chain.disk, chain.scheduler, replica)
    assert front.drop() == []
    replica.partition(0).advance_log_start(ends[0])
    assert front.drop() == [], "partition 1 has records there still"
    replica.partition(1).advance_log_start(ends[1] - 1)
    assert front.drop() == [1]
    replica.partition(1).advance_log_start(ends[1])
    assert front.drop() == [2]
    assert replica.first_index == 2 * PER_SEGMENT + 1
    assert replica.term_at(2 * PER_SEGMENT) == 1
    assert replica.term_at(2 * PER_SEGMENT - 1) is None
    assert content(replica) == before[2 * PER_SEGMENT :]
    chain.scheduler.advance(50)
    assert not chain.disk.exists(f"{FOLDER}/{segment_name(1)}")
    assert not chain.disk.exists(f"{FOLDER}/{segment_name(2)}")
    replica.close()
    again = reopened(chain.disk)
    assert again.first_index == 2 * PER_SEGMENT + 1
    assert again.partition(0).end_offset == replica.partition(0).end_offset
    assert states(again.partition(0).producers) == states(replica.partition(0).producers)


def test_the_newest_sealed_segment_stays() -> None:
    chain = Chain(3)
    for partition in (0, 1):
        log = chain.replica.partition(partition)
        log.advance_log_start(log.high_watermark)
    front = ReplicaFront(chain.disk, chain.scheduler, chain.replica)
    assert front.drop() == [1, 2]
    chain.scheduler.advance(50)
    disk = chain.disk.crash(3)
    again = reopened(disk)
    assert [one.segment_id for one in again.segments] == [3, 4]
    for partition in (0, 1):
        assert again.partition(partition).end_offset == chain.replica.partition(partition).end_offset
        assert states(again.partition(partition).producers) == states(
            chain.replica.partition(partition).producers
        )


def test_a_crash_while_the_begin_goes_leaves_no_gap() -> None:
    first = set()
    at = 0
    while True:
        at += 1
        chain = Chain(4)
        chain.disk.stop_after(at)
        try:
            drop_below(chain, 3 * PER_SEGMENT)
        except PowerCut:
            pass
        else:
            break
        for seed in range(4):
            disk = chain.disk.crash(10 * at + seed)
            again = reopened(disk)
            first.add(again.segments[0].segment_id)
            assert again.last_index == chain.replica.last_index
            if seed < 3:
                chain.disk._alive = True
    assert first >= {1, 2, 3}


def test_a_file_that_cannot_be_removed_keeps_those_after_it() -> None:
    chain = Chain(4)
    chain.disk.fail("remove", segment_name(1))
    front = drop_below(chain, 3 * PER_SEGMENT)
    assert [chain.disk.exists(f"{FOLDER}/{segment_name(n)}") for n in (1, 2, 3)] == [True] * 3
    assert chain.replica.first_index == 3 * PER_SEGMENT + 1
    idle: list[None] = []
    front.when_idle(idle.append)
    chain.scheduler.run_ready()
    assert idle == [None]
    assert front.drop() == []
    chain.scheduler.advance(50)
    assert [chain.disk.exists(f"{FOLDER}/{segment_name(n)}") for n in (1, 2, 3)] == [False] * 3


def test_a_replica_whose_begin_is_gone_leads_and_is_truncated_as_any() -> None:
    chain = Chain(4)
    drop_below(chain, 3 * PER_SEGMENT)
    replica = chain.replica
    kept = replica.last_index
    replica.write(None, [noop(replica, 2)])
    replica.write(None, [batch_entry(2, kept + 2, 0, replica.partition(0).end_offset)])
    end = replica.partition(0).end_offset
    replica.write(kept + 2, [dataclasses.replace(noop(replica, 3), index=kept + 2)])
    assert replica.partition(0).end_offset == end - 1
    assert replica.term_at(kept + 2) == 3
