"""A replicated range's log: numbers, truncation, rolls, commit and waiters, apart from any group (docs/raft.md, 7)."""

from __future__ import annotations

import os
from typing import Any

import pytest
from range_model import make_batch
from replica_model import (
    FOLDER,
    SMALL,
    TOPIC,
    ReplicaWorld,
    batch_entry,
    create,
    open_one,
    read_all,
    states,
)
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from storage.cache import SegmentCache
from storage.check import check_directory
from storage.format import (
    MEMBERS_FLAG,
    Numbered,
    bare_size,
    decode_bare,
    decode_header_block,
    encode_bare,
    encode_header_block,
)
from storage.layout import RollEvent, SegmentInfo
from storage.lost_positions import LostPositions
from storage.numbering import MEMBERSHIP, NOOP, NORMAL, PLACE_EVERY_BYTES, Entry, Numbering
from storage.payloads import BadPayload, Batch, Roll, decode, encode_roll
from storage.recovery import open_ranges
from storage.replica import NotTaken, RangeReplica
from storage.scan import BareEntry, Scanner
from storage.sealed import SealedSegment
from storage.segment import Segment
from wire.errors import ErrorCode, KafkaError

SEEDS = int(os.environ.get("SEALOG_REPLICA_SEEDS", "200"))


class Rig:
    """One replica, led by the test."""

    def __init__(self, **more: Any) -> None:
        self.scheduler = SimScheduler()
        self.disk = SimDisk(self.scheduler, flush_delay_ms=1.0)
        self.replica = create(self.disk, self.scheduler, **more)
        self.taken: list[bytes] = []
        self.refuses = False
        self.told: list[Any] = []

    def propose(self, payloads: Any) -> int:
        if self.refuses:
            raise NotTaken("not now")
        first = self.replica.last_index + 1 + len(self.taken)
        self.taken += payloads
        return first

    def lead(self, term: int) -> None:
        self.replica.write(None, [Entry(term, self.replica.last_index + 1, NOOP, b"")])
        self.replica.begin_leading(term, self.propose)

    def append(self, partition: int, *, producer: int = -1, sequence: int = 0, number: int = 0) -> Any:
        header, data = make_batch(b"x" * 30, producer_id=producer, base_sequence=sequence)
        appended = self.replica.append(partition, header, data)
        self.replica.when_durable(appended.lsn, lambda error: self.told.append((number, error)))
        return appended

    def write_taken(self, term: int) -> None:
        """What was proposed comes back to be written."""
        self.scheduler.run_ready()
        first = self.replica.last_index + 1
        entries = [Entry(term, first + at, NORMAL, payload) for at, payload in enumerate(self.taken)]
        self.taken = []
        self.replica.write(None, entries)
        self.scheduler.run_ready()

    def reopen(self, **more: Any) -> RangeReplica:
        self.replica.close()
        self.replica = open_one(self.disk, self.scheduler, **more)
        return self.replica


def fill(rig: Rig, terms: list[int], *, partition: int = 0) -> None:
    for term in terms:
        offset = rig.replica.partition(partition).end_offset
        rig.replica.write(None, [batch_entry(term, rig.replica.last_index + 1, partition, offset)])


# Bytes.


def test_a_header_block_numbers_its_entries_or_does_not() -> None:
    plain = encode_header_block(TOPIC, 7, 0, 3, 2, 5, (9,))
    assert decode_header_block(plain, "x").numbered is None
    numbered = Numbered(1 << 40, 12, b"members")
    block = encode_header_block(TOPIC, 7, 0, 3, 2, 5, tuple(range(256)), numbered=numbered)
    found = decode_header_block(block, "x")
    assert (found.numbered, found.parents) == (numbered, tuple(range(256)))


@pytest.mark.parametrize("size", [0, 5, 52, 53, 54, 300])
def test_bare_entries_are_whole_or_nothing(size: int) -> None:
    payload = bytes(range(256))[:size] + bytes(max(0, size - 256))
    entry = encode_bare(MEMBERS_FLAG, payload, 3, 0, 99, 4096)
    assert len(entry) == bare_size(payload)
    assert decode_bare(entry[32:]) == payload
    for at in (33, 40, len(entry) - 1):
        damaged = bytearray(entry)
        damaged[at] ^= 0x40
        assert decode_bare(bytes(damaged[32:])) != payload or at >= 40 + size
    assert decode_bare(entry[32:-1]) is None


def test_payloads_say_what_they_are() -> None:
    entry = batch_entry(4, 1, 1, 10, producer=5)
    found = decode(entry.payload, 4)
    assert isinstance(found, Batch)
    assert (found.partition, found.txn_seq, found.header.base_offset) == (1, 9, 10)
    assert decode(encode_roll(Roll(8, 3)), 4) == Roll(8, 3)
    with pytest.raises(BadPayload, match="term 4 in an entry of term 5"):
        decode(entry.payload, 5)
    damaged = entry.payload[:-1] + bytes([entry.payload[-1] ^ 1])
    with pytest.raises(BadPayload, match="damaged"):
        decode(damaged, 4)
    for payload in (b"", b"\x03", encode_roll(Roll(8, 3))[:-1]):
        with pytest.raises(BadPayload):
            decode(payload, 4)


def test_places_are_sparse_and_survive_a_footer() -> None:
    numbering = Numbering(10)
    for number in range(1000):
        numbering.add(4096 + number * 1000, 1 + number // 400)
    assert len(numbering.places) == -(-1000 * 1000 // (PLACE_EVERY_BYTES // 1000 * 1000 + 1000))
    assert [numbering.term_at(index) for index in (9, 10, 409, 410, 1009, 1010)] == [None, 1, 1, 2, 3, None]
    index, position = numbering.place_before(500)
    assert position == 4096 + (index - 10) * 1000
    assert 500 - PLACE_EVERY_BYTES // 1000 <= index <= 500
    numbering.truncate(411)
    assert (numbering.last_index, numbering.terms) == (410, [(10, 1), (410, 2)])
    assert max(numbering.places) <= 410


def test_lost_positions() -> None:
    lost = LostPositions()
    lost.add(10, 20)
    lost.add(30, 40)
    lost.add(25, 45)
    assert [lsn in lost for lsn in (0, 10, 11, 20, 21, 25, 26, 45, 46)] == [
        False, False, True, True, False, False, True, True, False,
    ]  # fmt: skip
    for number in range(2000):
        lost.add(100 + 2 * number, 101 + 2 * number)
    assert 15 in lost, "what is long ago is told as gone"
    assert 3 in lost


# The log.


def test_entries_are_read_by_their_numbers_across_rolls() -> None:
    rig = Rig()
    rig.replica.write(None, [Entry(1, 1, NOOP, b"")])
    fill(rig, [1, 1, 2])
    rig.replica.write(
        None, [Entry(2, 5, MEMBERSHIP, b"others"), Entry(2, 6, NORMAL, encode_roll(Roll(2, 77)))]
    )
    fill(rig, [3, 3])
    replica = rig.replica
    assert [replica.term_at(index) for index in range(10)] == [0, 1, 1, 1, 2, 2, 2, 3, 3, None]
    assert [segment.segment_id for segment in replica.segments] == [1, 2]
    header = replica.active.header
    assert (header.numbered, header.created_ms, header.term, header.parents) == (
        Numbered(7, 2, b"others"), 77, 2, (1,),
    )  # fmt: skip
    found = read_all(replica)
    assert [(entry.term, entry.index, entry.kind) for entry in found] == [
        (1, 1, NOOP), (1, 2, NORMAL), (1, 3, NORMAL), (2, 4, NORMAL), (2, 5, MEMBERSHIP), (2, 6, NORMAL),
        (3, 7, NORMAL), (3, 8, NORMAL),
    ]  # fmt: skip
    assert len(replica.entries(2, 8, 1)) == 1, "one in any case"
    assert [entry.index for entry in replica.entries(5, 8, 1 << 20)] == [5, 6], "no further than the segment"
    assert replica.members_known() == [(0, b"first"), (5, b"others")]
    again = rig.reopen()
    assert read_all(again) == found
    assert again.members_known() == [(0, b"first"), (5, b"others")]


def test_no_offset_is_spent_on_what_the_group_says_to_itself() -> None:
    rig = Rig()
    rig.replica.write(None, [Entry(1, 1, NOOP, b""), Entry(1, 2, MEMBERSHIP, b"m")])
    fill(rig, [1])
    rig.replica.write(None, [Entry(2, 4, NOOP, b"")])
    fill(rig, [2])
    rig.replica.commit_to(5)
    log = rig.replica.partition(0)
    assert (log.high_watermark, log.end_offset) == (2, 2)
    read = rig.replica.read(0, 0, limit_offset=2, max_bytes=1 << 20)
    assert [batch.base_offset for batch in read.batches] == [0, 1]
    assert log.epochs == [(1, 0), (2, 1)]
    segment = rig.replica.active
    scanner = Scanner(segment.file(), segment.header, 4096, segment.end)
    assert len(list(scanner)) == 2
    scanner = Scanner(segment.file(), segment.header, 4096, segment.end)
    assert sum(isinstance(entry, BareEntry) for entry in scanner.all()) == 3


def test_a_flush_moves_no_high_watermark_and_a_commit_does() -> None:
    moved: list[list[int]] = []
    rig = Rig(on_progress=lambda partitions: moved.append(list(partitions)))
    done: list[Any] = []
    fill(rig, [1, 1])
    rig.replica.when_all_durable(done.append)
    rig.scheduler.advance(10)
    assert done == [None]
    assert rig.replica.partition(0).high_watermark == 0
    rig.replica.commit_to(1)
    assert rig.replica.partition(0).high_watermark == 1
    assert moved == [[0]]


def test_a_truncation_is_on_the_device_before_anything_is_written_in_its_place() -> None:
    rig = Rig()
    fill(rig, [1, 1, 3, 3])
    rig.replica.when_all_durable(lambda error: None)
    rig.scheduler.advance(10)
    path = rig.replica.active.path
    end = rig.replica.active.end
    flushes = rig.disk.flushes[path]
    rig.replica.write(3, [batch_entry(4, 3, 0, 2)])
    assert rig.disk.flushes[path] == flushes + 1
    assert not any(rig.disk.durable_content(path)[end - 130 : end]), "the device has nothing of the old end"
    assert rig.replica.partition(0).epochs == [(1, 0), (4, 2)]


def test_what_is_committed_is_never_truncated() -> None:
    rig = Rig()
    fill(rig, [1, 1])
    rig.replica.commit_to(2)
    with pytest.raises(AssertionError, match="committed and would be truncated"):
        rig.replica.write(2, [batch_entry(2, 2, 0, 1)])


def test_a_batch_that_does_not_follow_ends_the_replica() -> None:
    rig = Rig()
    fill(rig, [1])
    with pytest.raises(OSError, match="ends at 1, the batch begins at 7"):
        rig.replica.write(None, [batch_entry(1, 2, 0, 7)])
    assert rig.replica.state == "FAILED"


# Rolls.


def test_a_roll_is_named_and_its_parent_sealed_only_when_it_is_committed() -> None:
    named: list[RollEvent] = []
    rig = Rig(on_rolled=named.append)
    fill(rig, [1, 1])
    rig.replica.write(None, [Entry(1, 3, NORMAL, encode_roll(Roll(2, 0)))])
    fill(rig, [1])
    rig.replica.when_all_durable(lambda error: None)
    rig.scheduler.advance(50)
    assert not named
    assert rig.replica.segments[0].state == "FULL"
    rig.replica.commit_to(3)
    rig.scheduler.advance(50)
    assert named == [RollEvent(1, 2, {0: 2})]
    assert rig.replica.segments[0].state == "SEALED"
    rig.replica.commit_to(4)
    assert all(finding.status == "ok" for finding in check_directory(rig.disk, FOLDER))
    with SealedSegment(rig.disk, rig.replica.segments[0].path) as sealed:
        assert [entry.header.base_offset for entry in sealed.entries()] == [0, 1]
    assert rig.reopen().commit_index == 3, "what is sealed was committed"
    assert [entry.index for entry in read_all(rig.replica)] == [1, 2, 3, 4]


def test_an_undone_roll_leaves_no_file_and_the_parent_goes_on() -> None:
    rig = Rig()
    fill(rig, [1])
    rig.replica.write(None, [Entry(1, 2, NORMAL, encode_roll(Roll(2, 0)))])
    fill(rig, [1], partition=1)
    rig.replica.write(None, [Entry(1, 4, NORMAL, encode_roll(Roll(3, 0)))])
    fill(rig, [1], partition=1)
    rig.replica.write(2, [batch_entry(2, 2, 0, 1)])
    assert [segment.segment_id for segment in rig.replica.segments] == [1]
    assert [name for name in rig.disk.list(FOLDER) if name.endswith(".seg")] == [f"{1:020d}.seg"]
    assert rig.replica.partition(1).end_offset == 0
    assert not rig.replica.partition(1).indexes
    assert [entry.term for entry in read_all(rig.reopen())] == [1, 2]


def test_a_child_that_a_power_cut_took_is_made_anew() -> None:
    rig = Rig()
    fill(rig, [1])
    rig.replica.write(None, [Entry(1, 2, NORMAL, encode_roll(Roll(2, 44)))])
    rig.disk = rig.disk.kill(rig.scheduler)
    rig.disk.remove(f"{FOLDER}/{2:020d}.seg")
    rig.replica = open_one(rig.disk, rig.scheduler)
    assert rig.replica.active.header.created_ms == 44
    fill(rig, [2])
    assert [entry.term for entry in read_all(rig.replica)] == [1, 1, 2]


def test_ranges_of_a_broker_on_its_own_are_not_replicas() -> None:
    rig = Rig()
    rig.replica.close()
    with pytest.raises(Exception, match="replicated by a group of its own"):
        open_ranges(
            rig.disk,
            rig.scheduler,
            directory=FOLDER,
            topic_id=TOPIC,
            term=9,
            segments=[SegmentInfo(1, 0, 1, "ACTIVE")],
            allocate_segment_id=lambda: 2,
            publish=lambda event, done: None,
        )


def test_a_checkpoint_speaks_of_what_is_committed() -> None:
    rig = Rig()
    for number in range(12):
        fill(rig, [1], partition=number % 2)
    name = f"{FOLDER}/{1:020d}.ckpt"
    rig.replica.when_all_durable(lambda error: None)
    rig.scheduler.advance(20)
    assert not rig.disk.exists(name)
    rig.replica.commit_to(12)
    rig.scheduler.advance(20)
    assert rig.disk.exists(name)
    rig.disk = rig.disk.kill(rig.scheduler)
    replica = open_one(rig.disk, rig.scheduler)
    assert 0 < replica.commit_index <= 12
    ends = [replica.partition(at).high_watermark for at in (0, 1)]
    assert sum(ends) == replica.commit_index


# Leading.


def test_a_turns_appends_are_proposed_together_and_answered_by_the_commit() -> None:
    rig = Rig()
    rig.lead(1)
    first = rig.append(0, number=1)
    rig.append(1, number=2)
    rig.append(0, number=3)
    assert (first.base_offset, first.segment_id) == (0, 1)
    rig.scheduler.run_ready()
    assert len(rig.taken) == 3
    written: list[Any] = []
    rig.replica.when_written(written.append)
    assert not written
    rig.write_taken(1)
    assert written == [None]
    rig.scheduler.advance(20)
    assert not rig.told, "durable is not committed"
    rig.replica.commit_to(3)
    assert not rig.told, "one position stands for the turn"
    rig.replica.commit_to(4)
    assert rig.told == [(1, None), (2, None), (3, None)]
    assert rig.replica.partition(0).epochs == [(1, 0)]


def test_a_follower_takes_no_appends() -> None:
    rig = Rig()
    with pytest.raises(KafkaError) as refused:
        rig.append(0)
    assert refused.value.code is ErrorCode.not_leader_or_follower


def test_who_waits_hears_at_once_that_the_leader_stepped_down() -> None:
    rig = Rig()
    rig.lead(1)
    rig.append(0, producer=5, number=1)
    rig.write_taken(1)
    kept = rig.append(0, producer=5, sequence=1, number=2)
    rig.replica.stop_leading()
    rig.scheduler.run_ready()
    assert [(number, error.code) for number, error in rig.told] == [
        (1, ErrorCode.not_leader_or_follower),
        (2, ErrorCode.not_leader_or_follower),
    ]
    log = rig.replica.partition(0)
    assert log.end_offset == 1, "what was not proposed never was"
    assert states(log.producers) == {5: (0, [(0, 0, 0, 0)])}
    rig.replica.write(None, [Entry(2, 3, NOOP, b"")])
    rig.replica.commit_to(3)
    assert log.high_watermark == 1, "what was proposed is in the log"
    rig.lead(3)
    rig.append(0, number=3)
    rig.write_taken(3)
    rig.replica.commit_to(5)
    assert rig.told[-1] == (3, None)
    later: list[Any] = []
    rig.replica.when_durable(kept.lsn, later.append)
    rig.scheduler.run_ready()
    assert later[0].code is ErrorCode.not_leader_or_follower, "a lost position is never told as done"


@pytest.mark.parametrize("kind", [NOOP, NORMAL])
def test_what_another_leader_replaced_before_it_was_written_is_taken_back(kind: int) -> None:
    rig = Rig()
    rig.lead(1)
    rig.append(0, producer=5, number=1)
    rig.append(1, producer=5, number=2)
    rig.scheduler.run_ready()
    assert len(rig.taken) == 2
    other = Entry(2, 2, NOOP, b"") if kind == NOOP else batch_entry(2, 2, 1, 0)
    rig.replica.write(None, [other])
    rig.scheduler.run_ready()
    assert [error.code for _, error in rig.told] == [ErrorCode.not_leader_or_follower] * 2
    assert [rig.replica.partition(at).end_offset for at in (0, 1)] == [0, int(kind == NORMAL)]
    assert not states(rig.replica.partition(0).producers)
    assert not rig.replica.leads


def test_a_leaders_own_entries_are_kept_up_to_the_one_that_was_replaced() -> None:
    rig = Rig()
    rig.lead(1)
    for number in range(3):
        rig.append(0, producer=5, sequence=number, number=number)
    rig.scheduler.run_ready()
    rig.replica.write(None, [Entry(1, 2, NORMAL, rig.taken[0]), batch_entry(2, 3, 0, 1, producer=6)])
    log = rig.replica.partition(0)
    assert log.end_offset == 2
    assert states(log.producers) == {5: (0, [(0, 0, 0, 0)]), 6: (0, [(0, 0, 1, 1)])}


def test_what_the_group_does_not_take_is_taken_back() -> None:
    rig = Rig()
    rig.lead(1)
    rig.refuses = True
    rig.append(0, producer=5, number=1)
    rig.scheduler.run_ready()
    assert rig.told[0][1].code is ErrorCode.not_leader_or_follower
    assert rig.replica.partition(0).end_offset == 0
    rig.refuses = False
    rig.append(0, producer=5, number=2)
    rig.write_taken(1)
    rig.replica.commit_to(2)
    assert rig.told[1] == (2, None)


def test_a_repeat_waits_for_what_it_repeats() -> None:
    rig = Rig()
    rig.lead(1)
    rig.append(0, producer=5, number=1)
    rig.write_taken(1)
    rig.lead(2)
    repeated = rig.append(0, producer=5, number=2)
    assert repeated.duplicate
    rig.scheduler.run_ready()
    assert [number for number, _ in rig.told] == [1], "the one of before heard of the end of that leadership"
    rig.replica.commit_to(3)
    assert rig.told[-1] == (2, None)


def test_a_leader_rolls_when_a_segment_is_full_and_says_where_appends_go() -> None:
    rig = Rig(allocate=lambda: 9)
    rig.lead(1)
    while not rig.replica._roll_is_under_way:
        rig.append(0)
        rig.write_taken(1)
    assert rig.append(0).segment_id == 9
    rig.scheduler.run_ready()
    assert isinstance(decode(rig.taken[0], 1), Roll)
    rig.write_taken(1)
    assert [segment.segment_id for segment in rig.replica.segments] == [1, 9]
    assert rig.replica.active.end > 4096, "what was appended behind the roll is in the child"
    assert rig.replica._rolled[0].ends[0] == rig.replica.partition(0).end_offset - 1


def test_a_full_disk_refuses_an_append_and_ends_a_follower() -> None:
    rig = Rig()
    rig.lead(1)
    rig.disk.fail("allocate", error=28, times=1)
    while (
        rig.append(0)
        and rig.replica.active.end + rig.replica._queued_bytes + 130 <= rig.replica.active.allocated
    ):
        pass
    with pytest.raises(KafkaError, match="cannot grow"):
        rig.append(0)
    assert rig.replica.state == "OPEN"
    follower = Rig()
    follower.disk.fail("write", FOLDER)
    with pytest.raises(OSError):
        fill(follower, [1])
    assert follower.replica.state == "FAILED"


# Many lives.


def test_a_replica_under_changing_leaders_on_a_disk_that_mixes() -> None:
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        world = ReplicaWorld(seed)
        try:
            world.run(60)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for name, count in world.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts["cuts"] > 5 * SEEDS
    assert counts["rolls undone"] > SEEDS
    assert counts["recoveries"] > 3 * SEEDS
    assert counts["cut in the middle"] > SEEDS // 2
    assert counts["sealed"] > SEEDS // 4


def test_segments_without_numbers_open_as_before() -> None:
    disk = SimDisk()
    disk.replace("00000000000000000007.seg", encode_header_block(TOPIC, 7, 0, 3, 2, 5, (9,)) + bytes(4096))
    segment = Segment.open(disk, "", 7, SegmentCache(), readonly=True)
    assert segment.numbering is None
    assert SMALL.segment_bytes == 4000
