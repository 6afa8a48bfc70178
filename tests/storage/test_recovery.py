"""Opening a range: what is cut, what is refused, and what the layout may say."""

from __future__ import annotations

import dataclasses
import errno
import random
import uuid

import pytest
from crc32c import crc32c
from range_model import DIRECTORY, SMALL, TOPIC, Owner, fill, hand_owner, make_batch, open_range

from storage import checkpoint
from storage.check import check_directory
from storage.format import (
    GUARDED_BYTES,
    HEADER_BLOCK_BYTES,
    CorruptLog,
    UnknownFormat,
    checkpoint_name,
    encode_checkpoint,
    encode_header_block,
    segment_name,
)
from storage.layout import LogConfig, SegmentInfo
from storage.range_log import RangeLog
from storage.recovery import create_range
from storage.scan import ScannedEntry, Scanner
from wire.errors import KafkaError

ONE = f"{DIRECTORY}/{segment_name(1)}"
PLAIN = dataclasses.replace(
    SMALL, segment_bytes=1 << 20, checkpoint_bytes=1 << 20, close_checkpoint_bytes=1 << 20
)


def entries_of(owner: Owner, number: int = 0) -> list[ScannedEntry]:
    segment = owner.log.segments[number]
    return list(Scanner(segment.file(), segment.header, HEADER_BLOCK_BYTES, segment.end))


def make(appends: int = 8, config: LogConfig = PLAIN, *, each_flushed: bool = True) -> Owner:
    owner = Owner(config=config, max_flush_ms=0.0)
    owner.create()
    for number in range(appends):
        owner.append(number % 3, b"x" * 60, producer_id=number)
        if each_flushed:
            owner.log.request_flush()
        owner.scheduler.run_ready()
    return owner


def read_all(owner: Owner) -> None:
    for partition in range(3):
        owner.check_read(partition, 0, owner.log.partition(partition).high_watermark, 1 << 30)


def rolled(appends: int = 70) -> Owner:
    owner = make(0, SMALL)
    for number in range(appends):
        owner.append(number % 3, b"x" * 60, producer_id=number % 5)
        owner.scheduler.advance(3)
    owner.scheduler.run_until_idle()
    assert len(owner.log.segments) >= 3
    return owner


def refused(owner: Owner) -> CorruptLog:
    owner.power_cut(0, keep="none")
    before = {path: owner.disk.content(f"{DIRECTORY}/{path}") for path in owner.disk.list(DIRECTORY)}
    with pytest.raises(CorruptLog) as caught:
        owner.open()
    # Nothing was touched: somebody may want to look at it, or to repair the disk.
    assert before == {path: owner.disk.content(f"{DIRECTORY}/{path}") for path in owner.disk.list(DIRECTORY)}
    assert not owner.disk.open_files
    return caught.value


# Torn tails.


def test_torn_tail_is_cut_and_reported() -> None:
    owner = make(8)
    entries = entries_of(owner)
    owner.append(0, b"y" * 500)
    owner.scheduler.run_turn()
    end = entries[-1].end
    written = owner.disk.content(ONE)[end:].rstrip(b"\0")
    owner.power_cut(0, keep="none")
    owner.disk.overwrite(ONE, end, written[:200])
    owner.recover()
    (cut,) = owner.report.cuts
    assert (cut.path, cut.position, cut.dropped, cut.entries_kept) == (ONE, end, 200, 8)
    assert cut.reason
    assert owner.report.entries_scanned == 8
    # What is there now is zeros, so nothing of it can come back later.
    owner.append(0, b"z")
    assert not owner.disk.content(ONE)[end:].strip(b"\0")


def test_clean_tail_is_no_cut() -> None:
    owner = make(8)
    owner.power_cut(0, keep="none")
    owner.recover()
    assert owner.report.cuts == []
    assert owner.report.orphans_removed == []


def test_old_bytes_never_come_back() -> None:
    """An entry beyond a cut, valid in its place, must not follow on what is written over the cut."""
    owner = make(4)
    end = entries_of(owner)[-1].end
    owner.append(0, b"first" + b"x" * 50)
    owner.scheduler.run_turn()
    owner.append(0, b"second" + b"x" * 49)
    owner.scheduler.run_turn()
    content = owner.disk.content(ONE)
    first = len(content[end:].rstrip(b"\0")) // 2
    owner.power_cut(0, keep="none")
    # The device kept the second and lost the first.
    owner.disk.overwrite(ONE, end + first, content[end + first : end + 2 * first])
    owner.recover()
    assert owner.report.cuts[0].position == end
    owner.append(0, b"third" + b"x" * 50)
    owner.scheduler.run_turn()
    owner.kill()
    owner.recover()
    assert [batch.base_offset for batch in owner.batches[0]] == [0, 1, 2]
    assert owner.log.partition(0).end_offset == 3


# Damage.


def test_every_damaged_byte_of_flushed_entries_is_refused_or_unproven() -> None:
    owner = make(5)
    entries = entries_of(owner)
    content = owner.disk.content(ONE)
    # The last entry may be damaged unnoticed: nothing was written after it was durable.
    for position in range(HEADER_BLOCK_BYTES, entries[-1].position):
        fork = owner.fork(0)
        fork.power_cut(0, keep="none")
        fork.disk.overwrite(ONE, position, bytes([content[position] ^ 4]))
        with pytest.raises(CorruptLog) as caught:
            fork.open()
        damaged = max(entry.position for entry in entries if entry.position <= position)
        assert (caught.value.path, caught.value.position) == (ONE, damaged)
        assert "was durable" in caught.value.reason


@pytest.mark.parametrize("size", [1, 7, 512, 5000])
def test_holes_in_flushed_data_are_refused(size: int) -> None:
    owner = make(60)
    entries = entries_of(owner)
    for position in range(HEADER_BLOCK_BYTES, entries[-1].position - size, 331):
        fork = owner.fork(0)
        fork.power_cut(0, keep="none")
        if not fork.disk.content(ONE)[position : position + size].strip(b"\0"):
            continue
        fork.disk.overwrite(ONE, position, bytes(size))
        with pytest.raises(CorruptLog):
            fork.open()
        (finding,) = check_directory(fork.disk)
        assert finding.damaged


def test_damage_behind_what_was_flushed_is_a_torn_tail() -> None:
    owner = make(5)
    entries = entries_of(owner)
    for _ in range(6):
        owner.append(0, b"unflushed")
        owner.scheduler.run_turn()
    owner.power_cut(0, keep="all")
    owner.disk.overwrite(ONE, entries[-1].end + 40, b"\xff\xff")
    owner.recover()
    assert owner.report.cuts[0].position == entries[-1].end


def test_shorter_file_than_its_checkpoint_is_refused() -> None:
    owner = make(30, dataclasses.replace(PLAIN, checkpoint_bytes=1000))
    owner.scheduler.run_until_idle()
    assert checkpoint_name(1) in owner.disk.list(DIRECTORY)
    owner.power_cut(0, keep="none")
    owner.disk.replace(ONE, owner.disk.content(ONE)[: HEADER_BLOCK_BYTES + 900])
    with pytest.raises(CorruptLog, match="was durable up to byte"):
        owner.open()


def test_damaged_footers_are_refused_or_their_entries_read() -> None:
    owner = rolled()
    segment = owner.log.segments[1]
    size = len(owner.disk.content(segment.path))
    for position in (size - 64 - 3, segment.end + GUARDED_BYTES + 7):
        fork = owner.fork(0)
        fork.power_cut(0, keep="none")
        content = fork.disk.content(segment.path)
        fork.disk.overwrite(segment.path, position, bytes([content[position] ^ 1]))
        try:
            fork.open()
        except CorruptLog as error:
            assert error.path == segment.path  # noqa: PT017 - one of two outcomes
        else:
            # An index is read on demand.
            with pytest.raises(KafkaError, match=segment_name(segment.segment_id)):
                read_all(fork)
    fork = owner.fork(0)
    fork.power_cut(0, keep="none")
    fork.disk.overwrite(segment.path, size - 20, b"\xff")
    fork.recover()
    assert fork.report.sealed == [segment.segment_id]


def test_missing_entries_between_segments_are_refused() -> None:
    owner = rolled()
    # The middle segment is not in the layout.
    del owner.layout[1]
    error = refused(owner)
    assert error.path == owner.log.segments[2].path
    assert "starts at offset" in error.reason


def test_missing_entries_before_a_scanned_child_are_refused() -> None:
    owner = make(30, dataclasses.replace(SMALL, checkpoint_bytes=1 << 20))
    owner.scheduler.run_until_idle()
    owner.append(0, b"in the child", producer_id=50)
    owner.log.request_flush()
    owner.scheduler.run_until_idle()
    last = owner.layout[-1]
    owner.layout[:] = [dataclasses.replace(last, parents=())]
    error = refused(owner)
    assert "though all before it is complete" in error.reason


@pytest.mark.parametrize("partitions", [(0, 1, 2), (1, 2)])
def test_parent_shorter_than_its_child_proves_is_refused(partitions: tuple[int, ...]) -> None:
    """The parent without a footer lost an entry though the child was written to after that was durable."""
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    owner.append(0, b"the parent's last")
    owner.answer()
    owner.disk.fail("write", segment_name(1), error=errno.ENOSPC)  # so it gets no footer
    for number in range(6):
        owner.append(partitions[number % len(partitions)], b"x" * 60)
        owner.log.request_flush()
        owner.scheduler.run_ready()
    parent = owner.log.segments[0]
    assert parent.state == "FULL"
    last = entries_of(owner)[-1]
    # Seen by what is left of the entry, or by the gap it leaves in its partition.
    damages = [b"\xff"] + [bytes(last.end - last.position)] * (0 in partitions)
    for damage in damages:
        fork = owner.fork(0)
        fork.power_cut(0, keep="none")
        fork.disk.overwrite(parent.path, last.position, damage)
        with pytest.raises(CorruptLog) as caught:
            fork.open()
        assert (caught.value.path, caught.value.position) == (parent.path, last.position)
    owner.power_cut(0, keep="none")
    owner.recover()


def test_offsets_that_go_back_are_refused() -> None:
    owner = make(8)
    owner.power_cut(0, keep="none")
    # The same file under a layout that says its partitions start later.
    owner.layout[0] = dataclasses.replace(owner.layout[0], start_offsets={0: 2})
    with pytest.raises(CorruptLog, match="goes back from offset 2 to 0"):
        owner.open()


def test_ends_that_the_layout_knows_are_checked() -> None:
    owner = rolled()
    ends = dict(owner.sealed[1])
    owner.layout[0] = dataclasses.replace(owner.layout[0], end_offsets={**ends, 0: ends[0] + 1})
    assert "the layout says" in refused(owner).reason


def test_segment_in_the_wrong_place_is_refused() -> None:
    owner = make(3)
    owner.power_cut(0, keep="none")
    content = owner.disk.content(ONE)

    def block(topic: uuid.UUID, first: int, last: int, term: int) -> bytes:
        return encode_header_block(topic, 1, first, last, term, 0, ())

    for header, message in (
        (block(uuid.UUID(int=3), 0, 2, 1), "belongs to topic"),
        (block(TOPIC, 0, 5, 1), r"holds partitions 0\.\.5"),
        (block(TOPIC, 0, 2, 9), "of term 9, later than"),
    ):
        owner.disk.overwrite(ONE, 0, header)
        with pytest.raises(CorruptLog, match=message):
            owner.open()
    owner.disk.overwrite(ONE, 0, content[:HEADER_BLOCK_BYTES])
    owner.recover()


def test_unknown_format_is_refused_clearly() -> None:
    owner = make(3)
    owner.power_cut(0, keep="none")
    block = bytearray(owner.disk.content(ONE)[:HEADER_BLOCK_BYTES])
    block[9] = 7
    block[-4:] = crc32c(bytes(block[:-4])).to_bytes(4, "big")
    owner.disk.overwrite(ONE, 0, bytes(block))
    with pytest.raises(UnknownFormat, match="format version 7 is unknown"):
        owner.open()


def test_missing_file_is_refused() -> None:
    owner = make(3)
    owner.power_cut(0, keep="none")
    owner.disk.remove(ONE)
    with pytest.raises(CorruptLog, match="its file is absent"):
        owner.open()


def test_entries_of_a_later_term_are_refused() -> None:
    owner = make(3)
    owner.power_cut(0, keep="none")
    owner.recover()
    owner.append(0, b"x")
    owner.log.close()
    owner.term = 0
    with pytest.raises(CorruptLog, match="of term 2, later than 1"):
        owner.open()


def test_sealed_tail_is_refused() -> None:
    owner = rolled()
    owner.layout.pop()
    assert "the last segment of the range is sealed" in refused(owner).reason


def test_no_segments_is_a_mistake() -> None:
    owner = make(1)
    owner.layout.clear()
    with pytest.raises(ValueError, match="at least one"):
        owner.open()


# Checkpoints.


@pytest.mark.parametrize("damage", ["flip", "empty", "foreign", "absent", "temporary"])
def test_damaged_checkpoint_costs_a_scan_and_nothing_else(damage: str) -> None:
    owner = make(30, dataclasses.replace(PLAIN, checkpoint_bytes=1000))
    owner.scheduler.run_until_idle()
    path = f"{DIRECTORY}/{checkpoint_name(1)}"
    good = owner.fork(0)
    good.power_cut(0, keep="none")
    good.recover()
    assert good.report.checkpoints_used == 1
    assert good.report.entries_scanned < 15
    owner.power_cut(0, keep="none")
    content = owner.disk.content(path)
    if damage == "flip":
        owner.disk.overwrite(path, len(content) // 2, bytes([content[len(content) // 2] ^ 1]))
    elif damage == "empty":
        owner.disk.replace(path, b"")
    elif damage == "foreign":
        owner.disk.replace(path, encode_checkpoint(1234, [5000, [], []]))
    elif damage == "absent":
        owner.disk.remove(path)
    else:
        owner.disk.rename(path, path + ".tmp")
    owner.recover()
    assert owner.report.checkpoints_used == 0
    assert owner.report.entries_scanned == 30
    assert owner.report.orphans_removed == ([checkpoint_name(1) + ".tmp"] if damage == "temporary" else [])


@pytest.mark.parametrize("limit", [{"checkpoint_bytes": 3000}, {"checkpoint_entries": 30}])
def test_kills_in_quick_succession_do_not_make_each_start_scan_more(limit: dict[str, int]) -> None:
    """No life writes enough for a checkpoint; all of them together do."""
    owner = make(0, dataclasses.replace(PLAIN, **limit))
    scanned = []
    for life in range(1, 41):
        for number in range(5):
            owner.wait_durable(number % 3, owner.append(number % 3, b"x" * 60, producer_id=number))
        owner.scheduler.run_until_idle()
        owner.power_cut(0, keep="none")
        owner.recover()
        scanned.append(owner.report.entries_scanned)
        assert owner.log.partition(0).end_offset == 2 * life
    assert max(scanned) <= 40
    assert scanned[:3] == [5, 10, 15], "it grows until there is a checkpoint"
    read_all(owner)


def test_small_entries_bring_a_checkpoint_by_their_number() -> None:
    owner = make(70, dataclasses.replace(PLAIN, checkpoint_entries=30))
    owner.scheduler.run_until_idle()
    owner.power_cut(0, keep="none")
    owner.recover()
    assert owner.report.checkpoints_used == 1
    assert owner.report.entries_scanned < 30


def test_checkpoints_become_rarer_as_the_index_grows() -> None:
    """Each has the whole index in it."""
    owner = make(0, dataclasses.replace(PLAIN, checkpoint_entries=10, run_bytes=1))
    for number in range(600):
        owner.wait_durable(number % 3, owner.append(number % 3, b"x"))
        owner.scheduler.run_until_idle()
    written = owner.disk.writes[f"{DIRECTORY}/{checkpoint_name(1)}.tmp"]
    assert 20 < written < 30, "600 entries, every tenth at first"
    owner.power_cut(0, keep="none")
    owner.recover()
    assert owner.report.entries_scanned <= 600 / 8


def test_checkpoint_says_nothing_of_what_is_queued() -> None:
    """Else a producer's lost batch would be taken for a duplicate after the crash."""
    owner = make(30, dataclasses.replace(PLAIN, checkpoint_bytes=1000), each_flushed=False)
    written = owner.log.appended_lsn
    queued = owner.append(0, b"queued", producer_id=77)
    # A commit waits for what was written before: its flush begins while a batch is queued.
    owner.log.when_durable(written, lambda error: None)
    owner.scheduler.run_ready()
    assert owner.log.durable_lsn < queued.lsn
    owner.power_cut(0, keep="none")
    owner.recover()
    assert 77 not in owner.log.partition(0).producers.states
    assert owner.log.partition(0).end_offset == queued.base_offset


@pytest.mark.parametrize("kind", ["create", "write", "flush", "rename", "flush_dir"])
def test_checkpoint_that_fails_harms_nothing(kind: str) -> None:
    owner = make(0, dataclasses.replace(PLAIN, checkpoint_bytes=1000))
    path = DIRECTORY if kind == "flush_dir" else ".ckpt"
    owner.disk.fail(kind, path)
    for number in range(60):
        owner.wait_durable(0, owner.append(0, b"x" * 60, producer_id=number % 7))
        owner.scheduler.run_ready()
    assert not owner.disk._failures
    assert owner.log.state == "OPEN"
    assert owner.promised[0] == 60
    # The next one is due after as many bytes again.
    assert checkpoint_name(1) in owner.disk.list(DIRECTORY)
    owner.power_cut(1)
    owner.recover()


def test_checkpoint_of_a_foreign_segment_is_none() -> None:
    owner = make(10)
    packed = checkpoint.capture(owner.log.active, [])
    checkpoint.write_now(owner.disk, DIRECTORY, owner.log.active, packed)
    loaded = checkpoint.load(owner.disk, DIRECTORY, owner.log.active)
    assert loaded is not None
    assert loaded.position == owner.log.active.end
    owner.log.active.salt ^= 1
    assert checkpoint.load(owner.disk, DIRECTORY, owner.log.active) is None


# Layouts.


def test_orphans_are_removed_and_strangers_are_not() -> None:
    owner = make(3)
    owner.power_cut(0, keep="none")
    for name in (segment_name(9), checkpoint_name(9), checkpoint_name(1) + ".tmp", "notes.txt"):
        owner.disk.replace(f"{DIRECTORY}/{name}", b"something")
    owner.recover()
    assert sorted(owner.report.orphans_removed) == sorted(
        [segment_name(9), checkpoint_name(9), checkpoint_name(1) + ".tmp"]
    )
    assert owner.disk.list(DIRECTORY) == [segment_name(1), "notes.txt"]


def test_layout_hears_of_footers_it_does_not_know_of() -> None:
    owner = rolled()
    owner.layout[:] = [dataclasses.replace(info, state="ACTIVE", end_offsets=None) for info in owner.layout]
    sealed = dict(owner.sealed)
    owner.sealed.clear()
    owner.power_cut(0, keep="none")
    owner.recover()
    assert owner.sealed == {}
    owner.scheduler.run_ready()
    assert owner.sealed == sealed
    assert owner.report.sealed == []


def test_killed_before_the_trailer_was_flushed() -> None:
    owner = rolled()
    owner.layout[:] = [dataclasses.replace(info, state="ACTIVE", end_offsets=None) for info in owner.layout]
    segment = owner.log.segments[0]
    inode = owner.disk._inode(segment.path)
    owner.log.close()
    # As if the last flush had not come back: the page cache has a trailer that the device has not.
    inode.pending.append((len(inode.durable) - 64, bytes(inode.durable[-64:])))
    inode.durable[-64:] = b""
    owner.kill()
    owner.recover()
    owner.power_cut(0, keep="none")
    owner.recover()
    assert owner.report.sealed == []


def test_dropped_parents_leave_offsets_where_they_were() -> None:
    """Retention took the first segments: footers and the owner's log starts say where the rest begins."""
    owner = rolled()
    owner.append(1, b"x", producer_id=6)
    owner.scheduler.run_until_idle()
    ends = owner.log.end_offsets()
    starts = dict(owner.log.segments[0].end_offsets())
    owner.log.close()
    first = owner.layout.pop(0)
    owner.term += 1
    log, report = open_range(
        owner.disk, owner.scheduler, segments=owner.layout, log_start_offsets=starts, **owner.hooks()
    )
    assert report.orphans_removed == [segment_name(first.segment_id)]
    assert log.end_offsets() == ends
    for partition, start in starts.items():
        assert log.partition(partition).log_start_offset == start
        assert (
            log.read(partition, start, limit_offset=ends[partition], max_bytes=1).batches[0].base_offset
            == start
        )


def test_idle_partition_keeps_its_end_when_all_its_entries_are_dropped() -> None:
    owner = make(0, SMALL)
    owner.append(2, b"only", b"these")
    for number in range(60):
        owner.append(number % 2, b"x" * 60)
        owner.scheduler.advance(3)
    owner.scheduler.run_until_idle()
    assert len(owner.layout) >= 3
    owner.log.close()
    # By the footer of a later segment.
    layout = owner.layout[1:]
    owner.term += 1
    log, _ = open_range(owner.disk, owner.scheduler, segments=layout, **owner.hooks())
    assert log.partition(2).end_offset == log.partition(2).log_start_offset == 2
    log.close()
    # By the owner, where only the active segment is left.
    layout = owner.layout[-1:]
    owner.term += 1
    log, _ = open_range(
        owner.disk, owner.scheduler, segments=layout, log_start_offsets={2: 2}, **owner.hooks()
    )
    assert log.partition(2).end_offset == log.partition(2).high_watermark == 2


def test_log_start_beyond_the_end_is_refused() -> None:
    owner = make(3)
    owner.log.close()
    with pytest.raises(CorruptLog, match="its log start is 9"):
        open_range(
            owner.disk, owner.scheduler, segments=owner.layout, log_start_offsets={0: 9}, **owner.hooks()
        )
    assert not owner.disk.open_files


def test_partitions_that_start_where_a_split_says() -> None:
    owner = Owner(max_flush_ms=0.0)
    owner.term = 1
    made: list[RangeLog] = []
    create_range(
        owner.disk,
        owner.scheduler,
        lambda log, error: made.append(log),  # type: ignore[arg-type]
        segment_id=1,
        start_offsets={0: 10, 2: 30},
        **owner.hooks(),
    )
    owner.scheduler.run_ready()
    (log,) = made
    header, batch = make_batch(b"x", b"y")
    assert [log.append(partition, header, batch).base_offset for partition in range(3)] == [10, 0, 30]
    owner.log = log
    log.close()
    owner.term = 2
    info = SegmentInfo(1, 0, 2, "ACTIVE", (), {0: 10, 2: 30})
    log, report = open_range(owner.disk, owner.scheduler, segments=[info], **owner.hooks())
    assert log.end_offsets() == {0: 12, 1: 2, 2: 32}
    assert log.partition(0).log_start_offset == 10
    assert report.entries_scanned == 3


# Producers.


def test_producers_come_from_the_footer_and_the_tail() -> None:
    owner = rolled(90)
    for seed in range(4):
        owner.power_cut(seed)
        owner.recover()
        assert owner.log.partition(0).producers.states
        for number in range(random.Random(seed).randrange(12)):
            owner.append(number % 3, b"x" * 60, producer_id=number % 5)
            owner.scheduler.advance(2)


def test_recovered_producers_count_as_active_now() -> None:
    owner = make(3, dataclasses.replace(PLAIN, producer_ttl_ms=1000))
    owner.power_cut(0, keep="none")
    owner.scheduler.advance(5000)
    owner.recover()
    assert owner.log.expire_producers() == 0
    owner.scheduler.advance(1001)
    assert owner.log.expire_producers() == 3


def test_failed_recovery_closes_its_files() -> None:
    owner = make(3)
    owner.power_cut(0, keep="none")
    for kind in ("read", "flush"):
        owner.disk.fail(kind)
        with pytest.raises(OSError, match="Input/output"):
            owner.open()
        assert not owner.disk.open_files


def test_full_disk_at_a_start_leaves_the_footer_for_later() -> None:
    owner = hand_owner()
    fill(owner, lambda: bool(owner.asked))
    owner.append(0, b"the parent's last")
    owner.answer()
    owner.power_cut(0, keep="all")
    # What is there is written over, which takes no space; the footer does.
    owner.disk.fail("write", segment_name(1), error=errno.ENOSPC, after=1)
    owner.recover()
    assert owner.report.sealed == []
    assert owner.log.segments[0].state == "FULL"
    owner.append(0, b"goes on")
    owner.log.close()
    owner.recover()
    assert owner.report.sealed == [1]
