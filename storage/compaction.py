"""Compaction: sealed segments are written anew with the last value of every key only (cleanup.policy=compact).

Guarantees: offsets stay; a record goes only where a later one of its key is there, committed and durable, and a mark of
deletion only when its time is over; the last batch of each partition of a segment stays, emptied if need be, so that
every offset below the end can be read towards; producers and the ends of partitions are as before. A new file counts
only when it is whole and on the device, and its layout says so; the old one is removed after that.

`choose` is pure. `rewrite` reads and writes files and decodes records: it is meant for another process
(`storage.compaction_worker`), which is handed a `Job` as plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from crc32c import crc32c

from storage.cache import SegmentCache
from storage.disk import Disk
from storage.format import (
    BATCH_PREFIX_BYTES,
    ENTRY_HEADER_BYTES,
    ENTRY_MAGIC,
    HEADER_BLOCK_BYTES,
    encode_header_block,
    pack_crc,
    pack_entry_body,
    segment_name,
)
from storage.layout import LogConfig
from storage.scan import ScannedEntry, Scanner
from storage.segment import Segment
from wire.batch import COMPRESSION_MASK, pack_batch
from wire.records import Record, build_batch, iterate_records

WRITE_BYTES: Final = 4 << 20
RUN_BYTES: Final = LogConfig().run_bytes
STEP_BYTES: Final = LogConfig().footer_step_bytes


@dataclass(frozen=True, slots=True)
class Policy:
    """A topic's settings of compaction. Times in ms."""

    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int
    min_dirty_ratio: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sealed segment, as far as compaction is concerned."""

    segment_id: int
    parents: tuple[int, ...]
    size_bytes: int
    max_timestamp_ms: int
    ready: bool
    """Every transaction in it is settled, and everything in it is below the last stable offsets."""
    cleaned_ms: int | None = None
    """When it was first compacted; None: it never was."""
    tombstones: bool = False
    """It holds marks of deletion still."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do: from `dirty` segments the keys are learned, and all `segments` are written anew."""

    segments: tuple[int, ...]
    dirty: tuple[int, ...]
    without_tombstones: tuple[int, ...]
    reason: str


def choose(candidates: Sequence[Candidate], policy: Policy, now_ms: int) -> Choice | None:
    """Which segments to compact now, if any. `candidates`: all segments of a topic, parents before children.

    Nothing is compacted beyond a segment that must not be: a mark of deletion must never be taken before what it
    deletes.
    """
    chosen: list[Candidate] = []
    taken: set[int] = set()
    known = {candidate.segment_id for candidate in candidates}
    for one in candidates:
        parents_taken = all(parent in taken or parent not in known for parent in one.parents)
        if one.ready and parents_taken and one.max_timestamp_ms <= now_ms - policy.min_lag_ms:
            chosen.append(one)
            taken.add(one.segment_id)
    dirty = [one for one in chosen if one.cleaned_ms is None]
    over = [
        one.segment_id
        for one in chosen
        if one.tombstones
        and one.cleaned_ms is not None
        and now_ms - one.cleaned_ms >= policy.delete_retention_ms
    ]
    dirty_bytes = sum(one.size_bytes for one in dirty)
    total = sum(one.size_bytes for one in chosen)
    ratio = dirty_bytes / total if total else 0.0
    if dirty and ratio >= policy.min_dirty_ratio:
        reason = f"{ratio:.0%} of {total} bytes are not compacted yet"
    elif any(now_ms - one.max_timestamp_ms >= policy.max_lag_ms for one in dirty):
        reason = "max.compaction.lag.ms is over"
    elif over:
        return Choice(tuple(over), (), tuple(over), "delete.retention.ms of marks of deletion is over")
    else:
        return None
    return Choice(
        tuple(one.segment_id for one in chosen),
        tuple(one.segment_id for one in dirty),
        tuple(over),
        reason,
    )


class JobSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a job. `aborted`: per partition, (producer id, first, last offset) of aborted transactions."""

    segment_id: int
    generation: int
    learn: bool
    without_tombstones: bool
    aborted: dict[int, list[tuple[int, int, int]]]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What `rewrite` does. Segments in layout order; `max_keys` bounds its memory (about 150 bytes a key)."""

    directory: str
    segments: list[JobSegment]
    max_keys: int


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one segment. `generation` is the same where there was nothing to take from it."""

    segment_id: int
    generation: int
    size_before: int
    size_bytes: int
    records_before: int
    records: int
    tombstones: bool


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """`learned`: of the segments to learn from, those that were; the others had too many keys for one job."""

    segments: list[Rewritten]
    learned: list[int]


JobDone = Callable[[Outcome | None], None]
"""Called on the loop: the outcome, or None where the job failed, which has been logged."""

Keys = dict[int, dict[bytes, int]]


def rewrite(disk: Disk, job: Job) -> Outcome:
    """Write the job's segments anew beside the old ones, whole and on the device. Blocks; safe to be killed anywhere.

    Raises CorruptLog, KafkaError (records that cannot be decoded), OSError. Files of a job that failed are orphans: the
    next start, or the next job, removes them.
    """
    keys: Keys = {}
    learned: list[int] = []
    last = -1
    for number, one in enumerate(job.segments):
        if one.learn:
            if learned and sum(map(len, keys.values())) >= job.max_keys:
                break
            _learn(disk, job.directory, one, keys)
            learned.append(one.segment_id)
        last = number
    done = [_rewrite_one(disk, job.directory, one, keys) for one in job.segments[: last + 1]]
    disk.flush_dir(job.directory)
    return Outcome(segments=done, learned=learned)


def _open(disk: Disk, directory: str, one: JobSegment) -> Segment:
    return Segment.open(
        disk, directory, one.segment_id, SegmentCache(), readonly=True, generation=one.generation
    )


def _entries(segment: Segment) -> Iterable[ScannedEntry]:
    return Scanner(segment.file(), segment.salt, HEADER_BLOCK_BYTES, segment.end)


def _batch(segment: Segment, entry: ScannedEntry) -> bytes:
    return segment.file().pread(entry.size, entry.position + ENTRY_HEADER_BYTES)


def _is_aborted(one: JobSegment) -> Callable[[ScannedEntry], bool]:
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for partition, found in one.aborted.items():
        for producer_id, first, last in found:
            ranges.setdefault((partition, producer_id), []).append((first, last))

    def aborted(entry: ScannedEntry) -> bool:
        header = entry.header
        return header.is_transactional and any(
            first <= header.base_offset <= last
            for first, last in ranges.get((entry.partition, header.producer_id), ())
        )

    return aborted


def _learn(disk: Disk, directory: str, one: JobSegment, keys: Keys) -> None:
    segment = _open(disk, directory, one)
    try:
        aborted = _is_aborted(one)
        for entry in _entries(segment):
            if aborted(entry) or not entry.header.record_count:
                continue
            latest = keys.setdefault(entry.partition, {})
            for record in iterate_records(_batch(segment, entry)):
                if record.key is not None:
                    latest[record.key] = record.offset
    finally:
        segment.close()


class _Writer:
    """Entries of the new file, in the order of the old one."""

    def __init__(self, disk: Disk, directory: str, old: Segment) -> None:
        header = old.header
        self._generation = header.generation + 1
        self._path = f"{directory}/{segment_name(header.segment_id, self._generation)}"
        block = encode_header_block(
            header.topic_id,
            header.segment_id,
            header.first,
            header.last,
            header.term,
            header.created_ms,
            header.parents,
            self._generation,
        )
        if disk.exists(self._path):
            disk.remove(self._path)  # of a job that was cut short
        file = disk.open(self._path, create=True)
        file.pwritev((block,), 0)
        file.close()
        self.segment = Segment.open(
            disk, directory, header.segment_id, SegmentCache(), generation=self._generation
        )
        self._old = old
        self._pending: list[bytes] = []
        self._position = self.segment.end
        self._written = self.segment.end

    def add(self, entry: ScannedEntry, batch: bytes, max_timestamp: int) -> None:
        guarded = (
            pack_entry_body(ENTRY_MAGIC, 0, len(batch), entry.partition, entry.term, entry.txn_seq, 0)
            + batch[:BATCH_PREFIX_BYTES]
        )
        self._pending += (
            pack_crc(crc32c(guarded, self.segment.salt ^ self._position)),
            guarded,
            batch[BATCH_PREFIX_BYTES:],
        )
        size = ENTRY_HEADER_BYTES + len(batch)
        index = self.segment.index_of(entry.partition, self._old.indexes[entry.partition].start_offset)
        base, end = entry.header.base_offset, entry.header.last_offset + 1
        self.segment.runs += index.add(base, end, self._position, size, entry.term, max_timestamp, RUN_BYTES)
        self._position += size
        if self._position - self._written >= WRITE_BYTES:
            self._write_out()

    def copy_up_to(self, position: int) -> None:
        """Everything of the old file before its entry at `position`, as it is."""
        for entry in _entries(self._old):
            if entry.position >= position:
                return
            self.add(entry, _batch(self._old, entry), entry.header.max_timestamp)

    def _write_out(self) -> None:
        self.segment.file().pwritev(self._pending, self._written)
        self._pending, self._written = [], self._position

    def finish(self, producers: bytes) -> int:
        """Seal it; its size. Raises OSError."""
        segment = self.segment
        self._write_out()
        segment.end = self._position
        for partition, old in self._old.indexes.items():
            index = segment.index_of(partition, old.start_offset)
            index.end_offset, index.epochs = old.end_offset, old.epochs
        segment.change_state("FULL")
        segment.write_end_mark()
        for _ in segment.footer_steps(producers, STEP_BYTES):
            pass
        segment.file().flush()
        segment.write_trailer()
        segment.file().flush()
        return segment.file_size


def _rewrite_one(disk: Disk, directory: str, one: JobSegment, keys: Keys) -> Rewritten:
    old = _open(disk, directory, one)
    writer: _Writer | None = None
    before = after = 0
    tombstones = False
    try:
        aborted = _is_aborted(one)
        for entry in _entries(old):
            header = entry.header
            before += header.record_count
            batch = _batch(old, entry)
            records: list[Record] = []
            if header.record_count and not aborted(entry):
                latest = keys.get(entry.partition, {})
                records = [
                    record
                    for record in iterate_records(batch)
                    if _stays(record, latest, without_tombstones=one.without_tombstones)
                ]
            after += len(records)
            tombstones = tombstones or any(
                record.value is None and record.key is not None for record in records
            )
            is_last = header.last_offset + 1 == old.indexes[entry.partition].end_offset
            if len(records) == header.record_count and (records or is_last):
                if writer is not None:
                    writer.add(entry, batch, header.max_timestamp)
                continue
            if writer is None:
                writer = _Writer(disk, directory, old)
                writer.copy_up_to(entry.position)
            if records:
                writer.add(entry, *_shorter(entry, records))
            elif is_last:
                writer.add(entry, _empty(entry), header.max_timestamp)
        size = old.file_size if writer is None else writer.finish(old.load_producers_packed())
    finally:
        old.close()
        if writer is not None:
            writer.segment.close()
    return Rewritten(
        segment_id=one.segment_id,
        generation=one.generation + (writer is not None),
        size_before=old.file_size,
        size_bytes=size,
        records_before=before,
        records=after,
        tombstones=tombstones,
    )


def _stays(record: Record, latest: dict[bytes, int], *, without_tombstones: bool) -> bool:
    if record.key is None:
        return True  # written before the topic was compacted: nothing replaces it
    if latest.get(record.key, record.offset) > record.offset:
        return False
    return not (without_tombstones and record.value is None)


def _shorter(entry: ScannedEntry, records: list[Record]) -> tuple[bytes, int]:
    header = entry.header
    batch = build_batch(
        records,
        compression=header.compression,
        keep_offsets=True,
        last_offset=header.last_offset,
        **_identity(entry),
    )
    return batch, max(record.timestamp for record in records)


def _empty(entry: ScannedEntry) -> bytes:
    """No record, and still the offsets of the batch: readers get past them. Nothing is not compressed: librdkafka takes
    an empty payload that claims to be for damage."""
    header = entry.header
    identity = _identity(entry)
    identity["attributes"] &= ~COMPRESSION_MASK
    return pack_batch(
        b"",
        record_count=0,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        **identity,
    )


def _identity(entry: ScannedEntry) -> dict[str, Any]:
    header = entry.header
    return {
        "base_offset": header.base_offset,
        "leader_epoch": header.leader_epoch,
        "attributes": header.attributes,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
    }
