"""A replica's sealed segments written anew: all files of a job count or none does, whenever the power is cut."""

from __future__ import annotations

from typing import Any

import pytest
from replica_chains import Chain, aside_of, content, copy_sealed
from replica_model import FOLDER, open_one, states
from support.sim_disk import PowerCut, SimDisk
from support.sim_loop import SimScheduler

from storage.cache import SegmentCache
from storage.check import check_directory
from storage.compacted_names import read_names
from storage.compaction_job import Job, JobSegment, Outcome
from storage.compaction_rewrite import rewrite
from storage.format import CorruptLog, segment_name
from storage.numbering import NORMAL, Entry
from storage.payloads import encode_batch
from storage.replica_compaction import ReplicaCompaction
from storage.replica_front import ReplicaFront
from storage.settled import Aborted, SettledPartition
from wire.batch import TRANSACTIONAL_BIT, assign
from wire.records import Record, build_batch, iterate_records

KEYS = 3
PER_SEGMENT = 7
"""Entries: six keyed records in two partitions, and the roll."""


class KeyedChain(Chain):
    """Segments of records of a few keys; the value says at which entry it was written."""

    def __init__(self, segments: int = 3, *, terms: bool = False) -> None:
        self.terms = terms
        super().__init__(0, tail=0)
        for number in range(segments):
            self.fill(PER_SEGMENT - 1)
            self.roll(number + 2)
        self.settle()
        self.fill(2)
        self.settle()
        self.compaction = self.compaction_of()

    def compaction_of(self) -> ReplicaCompaction:
        self.front = ReplicaFront(self.disk, self.scheduler, self.replica)
        return ReplicaCompaction(self.disk, self.scheduler, self.replica, self.front, SegmentCache())

    def term(self) -> int:
        return 1 + (self.replica.last_index // 4 if self.terms else 0)

    def entry(self, *, producer: int, sequence: int) -> Entry:
        index = self.replica.last_index + 1
        partition = index % 2
        return self.keyed(partition, b"k%d" % (index // 2 % KEYS), b"v%d" % index, producer, sequence)

    def keyed(
        self, partition: int, key: bytes, value: bytes | None, producer: int, sequence: int, bits: int = 0
    ) -> Entry:
        data = build_batch(
            [Record(key, value)],
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence if producer >= 0 else -1,
            attributes=bits,
        )
        term, index = self.term(), self.replica.last_index + 1
        made = assign(data, self.ends[partition], term)
        self.ends[partition] += 1
        return Entry(term, index, NORMAL, encode_batch(partition, 9 if bits else 0, *made))

    def roll(self, child_id: int) -> None:
        from storage.payloads import Roll, encode_roll

        index = self.replica.last_index + 1
        self.replica.write(
            None, [Entry(self.term(), index, NORMAL, encode_roll(Roll(child_id, 100 + index)))]
        )


def job_of(replica: Any, dirty: Any = None, **more: Any) -> Job:
    sealed = [one for one in replica.segments if one.state == "SEALED"]
    return Job(
        topic="t",
        directory=FOLDER,
        segments=[
            JobSegment(
                segment_id=one.segment_id,
                generation=one.header.generation,
                learn=dirty is None or one.segment_id in dirty,
                without_tombstones=one.segment_id in more.get("over", ()),
                outcomes={
                    number: SettledPartition(index.start_offset, index.end_offset, more.get("aborted", []))
                    for number, index in one.indexes.items()
                },
                recorded=more.get("recorded", {}),
            )
            for one in sealed
        ],
        max_keys=more.get("max_keys", 1000),
    )


def compact(chain: KeyedChain, **more: Any) -> Outcome:
    chain.compaction.begin()
    outcome = rewrite(chain.disk, job_of(chain.replica, **more))
    told: list[Any] = []
    chain.compaction.adopt(outcome.segments, told.append)
    chain.scheduler.run_until(lambda: bool(told), max_ms=1000)
    assert told == [None]
    return outcome


def records(replica: Any) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
    """(offset, key, value) of each partition, as readers see them."""
    found: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {}
    for partition in (0, 1):
        log = replica.partition(partition)
        at, mine = log.log_start_offset, found.setdefault(partition, [])
        while at < log.high_watermark:
            read = replica.read(
                partition, at, limit_offset=log.high_watermark, max_bytes=400, at_least_one=True
            )
            assert read.batches, f"nothing gets past offset {at}"
            for batch in read.batches:
                mine += [(one.offset, one.key, one.value) for one in iterate_records(batch.data)]
            at = read.batches[-1].last_offset + 1
    return found


def last_values(replica: Any) -> dict[tuple[int, bytes | None], tuple[int, bytes | None]]:
    return {
        (partition, key): (offset, value)
        for partition, found in records(replica).items()
        for offset, key, value in found
    }


def shape(replica: Any) -> Any:
    """What compaction must not change."""
    return (
        replica.last_index,
        replica.commit_index,
        replica.last_term,
        [segment.segment_id for segment in replica.segments],
        [
            (
                log.log_start_offset,
                log.end_offset,
                log.high_watermark,
                log.epochs,
                states(log.producers),
            )
            for log in replica._partitions
        ],
        last_values(replica),
    )


def reopened(disk: SimDisk) -> Any:
    """Its group finds all of it committed."""
    scheduler = SimScheduler()
    disk.scheduler = scheduler
    replica = open_one(disk, scheduler)
    replica.commit_to(replica.last_index)
    return replica


def seg_files(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.list(FOLDER) if name.endswith(".seg"))


def test_the_last_value_of_each_key_stays_and_nothing_else_changes() -> None:
    chain = KeyedChain(terms=True)
    replica = chain.replica
    before = shape(replica)
    members = replica.members_known()[-1][1]
    count = sum(map(len, records(replica).values()))
    terms = {index: replica.term_at(index) for index in range(3 * PER_SEGMENT, replica.last_index + 1)}
    compact(chain)
    assert shape(replica) == before
    left = records(replica)
    assert sum(map(len, left.values())) < count - 10
    for partition, found in left.items():
        sealed = [one for one in found if one[0] < replica.active.indexes[partition].start_offset]
        assert len({key for _, key, _ in sealed}) == len(sealed) == KEYS
    assert seg_files(chain.disk) == [
        segment_name(1, 1),
        segment_name(2, 1),
        segment_name(3),
        segment_name(4),
    ], "there was nothing to take from the third one, and what was replaced is gone"
    # What a follower could still get by appends begins behind what was written anew.
    assert replica.first_index == 2 * PER_SEGMENT + 1
    assert replica.term_at(2 * PER_SEGMENT) is not None
    assert replica.term_at(2 * PER_SEGMENT - 1) is None
    assert {index: replica.term_at(index) for index in terms} == terms
    assert replica.members_known() == [(2 * PER_SEGMENT, members)]
    replica.close()
    assert {finding.status for finding in check_directory(chain.disk, FOLDER)} == {"ok"}
    again = reopened(chain.disk)
    assert shape(again) == before
    assert records(again) == left
    assert again.first_index == 2 * PER_SEGMENT + 1
    assert {index: again.term_at(index) for index in terms} == terms
    assert again.term_at(2 * PER_SEGMENT) == replica.term_at(2 * PER_SEGMENT)
    assert again.names == replica.names
    assert {one.cleaned_ms for one in again.names.values()} != {None}


def test_it_goes_on_as_a_log() -> None:
    chain = KeyedChain()
    compact(chain)
    chain.fill(4)
    # A roll that is taken back.
    kept = chain.replica.last_index
    chain.roll(5)
    chain.replica.write(kept + 1, [])
    chain.fill(1)
    chain.roll(5)
    chain.settle()
    compact(chain, dirty=[4])
    assert [one.header.generation for one in chain.replica.segments] == [1, 1, 1, 1, 0]
    assert chain.replica.first_index == chain.replica.last_index + 1, (
        "nothing but the active one is left to the group"
    )
    assert chain.replica.last_term == 1
    before = shape(chain.replica)
    chain.replica.close()
    assert shape(reopened(chain.disk)) == before


@pytest.mark.parametrize("keep", ["none", "all", "random", "sectors"])
def test_a_crash_at_any_change_leaves_the_old_files_or_the_new_ones(keep: str) -> None:
    whole = KeyedChain()
    before, old = shape(whole.replica), records(whole.replica)
    compact(whole)
    new = records(whole.replica)
    seen = {"old": 0, "new": 0}
    at = 0
    while True:
        at += 1
        chain = KeyedChain()
        chain.disk.stop_after(at)
        try:
            compact(chain)
        except PowerCut:
            pass
        else:
            break
        disk = chain.disk.crash(at, keep=keep)
        assert not any(finding.damaged for finding in check_directory(disk, FOLDER))
        replica = reopened(disk)
        assert shape(replica) == before
        found = records(replica)
        assert found in (old, new)
        seen["new" if found == new else "old"] += 1
        assert len(seg_files(disk)) == 4, "a start removes what does not count"
        # And the next compaction has the same end.
        chain.disk, chain.scheduler, chain.replica = disk, disk.scheduler, replica
        chain.compaction = chain.compaction_of()
        compact(chain)
        assert records(replica) == new
        assert shape(replica) == before
    assert seen["old"] > 10, seen
    assert seen["new"] > 2, seen


def test_a_crash_while_the_begin_goes_after_a_compaction_leaves_no_gap() -> None:
    at, first = 0, set()
    while True:
        at += 1
        chain = KeyedChain(4)
        chain.disk.stop_after(10_000)
        compact(chain)
        for segment in chain.replica.segments[:3]:
            for partition, end in segment.end_offsets().items():
                chain.replica.partition(partition).advance_log_start(end)
        chain.disk.stop_after(at)
        try:
            assert chain.front.drop() == [1, 2, 3]
            chain.scheduler.advance(100)
            compact(chain)
        except PowerCut:
            pass
        else:
            break
        replica = reopened(chain.disk.crash(at, keep="random"))
        first.add(replica.segments[0].segment_id)
        assert replica.last_index == chain.replica.last_index
    assert first == {1, 2, 3, 4}
    assert set(read_names(chain.disk, FOLDER)) == {4}, "of what is gone nothing is said any more"


def test_nothing_is_dropped_while_files_are_being_replaced() -> None:
    chain = KeyedChain()
    for segment in chain.replica.segments[:2]:
        for partition, end in segment.end_offsets().items():
            chain.replica.partition(partition).advance_log_start(end)
    chain.compaction.begin()
    assert not chain.compaction.may_begin
    assert chain.front.drop() == ()
    idle: list[Any] = []
    chain.front.when_idle(idle.append)
    chain.scheduler.advance(100)
    assert not idle
    chain.compaction.give_up()
    chain.scheduler.advance(10)
    assert idle == [None]
    assert chain.front.drop() == [1, 2]


def test_marks_of_deletion_stay_until_their_time_is_over() -> None:
    chain = KeyedChain(2)
    chain.replica.write(None, [chain.keyed(0, b"k0", None, -1, 0)])
    chain.roll(4)
    chain.settle()
    outcome = compact(chain)
    assert [one.tombstones for one in outcome.segments] == [False, False, True]
    assert last_values(chain.replica)[0, b"k0"][1] is None
    assert chain.replica.names[3].tombstones
    cleaned = chain.replica.names[3].cleaned_ms
    chain.fill(1)
    chain.settle()
    chain.scheduler.advance(10_000)
    compact(chain, dirty=[], over=[3])
    assert (0, b"k0") not in last_values(chain.replica)
    assert not chain.replica.names[3].tombstones
    assert chain.replica.names[3].cleaned_ms == cleaned, "counted from the first time"


def test_what_is_committed_is_found_in_its_place_until_that_is_on_record() -> None:
    """T1: a new coordinator may ask whether the last batch of a transaction is there."""
    chain = KeyedChain(1)
    first = chain.ends[0]
    for value in (b"one", b"two", b"three"):
        chain.replica.write(None, [chain.keyed(0, b"k", value, 500, 0, TRANSACTIONAL_BIT)])
    chain.roll(3)
    chain.replica.write(None, [chain.keyed(0, b"k", b"four", -1, 0)])
    chain.roll(4)
    chain.settle()
    compact(chain, recorded={0: first + 1})
    assert [value for _, key, value in records(chain.replica)[0] if key == b"k"] == [
        b"two",
        b"three",
        b"four",
    ]
    batch = chain.replica.batch_at(0, first + 2)
    assert batch is not None
    assert (batch.base_offset, batch.producer_id) == (first + 2, 500)
    compact(chain, recorded={0: first + 3})
    assert [value for _, key, value in records(chain.replica)[0] if key == b"k"] == [b"four"]


def test_what_is_aborted_goes_when_that_is_on_record() -> None:
    chain = KeyedChain(1)
    first = chain.ends[0]
    for value in (b"old", b"aborted", b"aborted too"):
        bits = 0 if value == b"old" else TRANSACTIONAL_BIT
        chain.replica.write(None, [chain.keyed(0, b"k", value, 500 if bits else -1, 0, bits)])
    chain.fill(2)
    chain.roll(3)
    chain.settle()
    aborted = {"aborted": [Aborted(500, first + 1, first + 2)]}
    before = shape(chain.replica)[:-1]
    compact(chain, recorded={0: first + 2}, **aborted)
    values = [value for _, key, value in records(chain.replica)[0] if key == b"k"]
    assert values == [b"old", b"aborted too"], "the second is only found out about by looking at it"
    compact(chain, recorded={0: first + 3}, **aborted)
    values = [value for _, key, value in records(chain.replica)[0] if key == b"k"]
    assert values == [b"old"]
    assert shape(chain.replica)[:-1] == before


@pytest.mark.parametrize("what", ["write", "flush", "rename", "remove", "flush_dir"])
def test_a_failing_disk_changes_nothing_or_ends_the_replica(what: str) -> None:
    chain = KeyedChain()
    before = records(chain.replica)
    chain.compaction.begin()
    outcome = rewrite(chain.disk, job_of(chain.replica))
    chain.disk.fail(what, {"flush_dir": "", "remove": ".seg"}.get(what, "compacted"))
    told: list[Any] = []
    chain.compaction.adopt(outcome.segments, told.append)
    chain.scheduler.advance(1000)
    if what == "remove":
        assert told == [None]
        assert len(records(chain.replica)[0]) < len(before[0])
    else:
        assert isinstance(told[0], OSError)
        assert records(chain.replica) == before
        assert chain.replica.state == ("FAILED" if what == "rename" else "OPEN")
        assert chain.front.is_idle == (what != "rename")
    if chain.replica.state == "OPEN":
        compact(chain)
        before = records(chain.replica)
        chain.replica.close()
    left = records(reopened(chain.disk))
    assert left == before or what == "rename"


def test_a_list_that_is_damaged_or_names_what_is_not_whole_is_refused() -> None:
    chain = KeyedChain()
    compact(chain)
    chain.replica.close()
    whole = chain.disk.content(f"{FOLDER}/{segment_name(2, 1)}")
    chain.disk.replace(f"{FOLDER}/{segment_name(2, 1)}", whole[:-1])
    with pytest.raises(CorruptLog, match="no footer"):
        reopened(chain.disk)
    chain.disk.replace(f"{FOLDER}/{segment_name(2, 1)}", whole)
    chain.disk.overwrite(f"{FOLDER}/compacted", 5, b"\x07")
    damaged = [finding for finding in check_directory(chain.disk, FOLDER) if finding.damaged]
    assert [one.path for one in damaged] == [f"{FOLDER}/compacted"]
    with pytest.raises(CorruptLog, match="damaged"):
        reopened(chain.disk)


def test_a_named_file_that_is_gone_is_missed() -> None:
    chain = KeyedChain()
    compact(chain)
    chain.replica.close()
    chain.disk.remove(f"{FOLDER}/{segment_name(2, 1)}")
    with pytest.raises(CorruptLog, match="absent"):
        reopened(chain.disk)


# Copies.


def test_a_chain_that_was_compacted_is_taken_over_as_it_is() -> None:
    source, target = KeyedChain(4, terms=True), KeyedChain(1)
    compact(source)
    assert any(one.header.generation for one in source.replica.segments)
    copy_sealed(source.replica, aside_of(target.disk), target.disk)
    aside = aside_of(target.disk)
    copy_sealed(source.replica, aside, target.disk)
    aside.name(lambda _: None)
    target.scheduler.advance(10)
    target.replica.close()
    replica = reopened(target.disk)
    theirs = source.replica
    assert replica.last_index == 4 * PER_SEGMENT
    assert replica.first_index == theirs.first_index
    replica.write(None, theirs.entries(replica.last_index + 1, theirs.last_index, 10_000))
    replica.commit_to(theirs.commit_index)
    assert shape(replica)[:4] == shape(theirs)[:4]
    assert records(replica) == records(theirs)
    assert content(replica) == content(theirs)
    for mine, other in zip(replica._partitions, theirs._partitions, strict=True):
        assert (mine.end_offset, mine.epochs) == (other.end_offset, other.epochs)
        assert states(mine.producers) == states(other.producers)
    # It does not know when that was done: it looks at all of it again.
    assert {one.cleaned_ms for one in replica.names.values()} == {None}
    replica.close()
    assert {finding.status for finding in check_directory(target.disk, FOLDER)} == {"ok"}


def test_a_chain_whose_newest_segment_was_compacted_names_the_same_child() -> None:
    source, target = KeyedChain(2), KeyedChain(0)
    for _ in range(2):
        source.replica.write(None, [source.keyed(0, b"k", b"again", -1, 0)])
    source.replica.write(None, [source.keyed(1, b"k", b"again", -1, 0)])
    source.roll(4)
    source.settle()
    compact(source)
    assert source.replica.segments[2].header.generation == 1
    assert source.replica.first_index == source.replica.active.header.numbered.first_index  # type: ignore[union-attr]
    aside = aside_of(target.disk)
    copy_sealed(source.replica, aside, target.disk)
    aside.name(lambda _: None)
    target.scheduler.advance(10)
    target.replica.close()
    replica = reopened(target.disk)
    assert replica.active.file().pread(4096, 0) == source.replica.active.file().pread(4096, 0)
    assert records(replica) == records(source.replica)


def test_a_crash_while_a_compacted_chain_is_taken_over_is_one_more_start() -> None:
    source = KeyedChain(4)
    compact(source)
    new = records(source.replica)
    at = 0
    while True:
        at += 1
        target = KeyedChain(2)
        compact(target)
        aside = aside_of(target.disk)
        copy_sealed(source.replica, aside, target.disk)
        told: list[Any] = []
        aside.name(told.append)
        target.scheduler.run_until(lambda told=told: bool(told), max_ms=100)
        disk = target.disk.crash(at, keep="random")
        disk.stop_after(at)
        try:
            replica = reopened(disk)
        except PowerCut:
            assert not any(finding.damaged for finding in check_directory(disk.crash(at), FOLDER))
            replica = reopened(disk.crash(at, keep="random"))
        else:
            break
        end = replica.partition(0).high_watermark
        assert records(replica)[0] == [one for one in new[0] if one[0] < end]
        assert replica.first_index == source.replica.first_index
    assert at > 10


def test_every_byte_of_a_compacted_copy_is_checked() -> None:
    source, target = KeyedChain(3), KeyedChain(0)
    compact(source)
    segment = source.replica.segments[1]
    assert segment.header.generation
    data = segment.file().pread(segment.file_size, 0)

    def check(changed: bytes) -> None:
        aside = aside_of(target.disk)
        file = aside.create(segment.segment_id)
        file.pwritev([changed], 0)
        for _ in aside.check(segment.segment_id):
            pass

    check(data)
    end = segment.end
    for at in (*range(0, 40, 5), *range(4096, len(data) - 1, 3)):
        if end <= at < end + 93:
            continue  # the end mark counts for nothing behind a footer
        with pytest.raises(CorruptLog):
            check(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
