"""Compaction: sealed segments are written anew with the last value of every key only (cleanup.policy=compact).

Guarantees: offsets stay; a record goes only where a later one of its key is there, committed and durable, and a mark of
deletion only when its time is over; the last batch of each partition of a segment stays, emptied if need be, so that
every offset below the end can be read towards; producers and the ends of partitions are as before. A new file counts
only when it and its sidecar are whole and on the device, and its layout says so; the old one is removed after that.

`choose` is pure. `rewrite` reads and writes files and decodes records: it is meant for another process
(`storage.compaction_worker`), which is handed a `Job` as plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from storage.compacted_file import CompactedFile, batch_of, entries_of, open_segment
from storage.compaction_job import Job, JobSegment, Outcome, Rewritten
from storage.disk import Disk
from storage.scan import ScannedEntry
from storage.settled import SettledPartition
from wire.batch import COMPRESSION_MASK, pack_batch
from wire.records import Record, build_batch, iterate_records


@dataclass(frozen=True, slots=True)
class Policy:
    """A topic's settings of compaction. Times in ms."""

    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int
    min_dirty_ratio: float
    segment_bytes: int = 0
    """Neighbours that are together no larger than this are joined; 0: none are."""


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
    first: int = 0
    last: int = 0
    """Its partitions."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do: from `dirty` segments the keys are learned, and all `segments` are written anew."""

    segments: tuple[int, ...]
    dirty: tuple[int, ...]
    without_tombstones: tuple[int, ...]
    reason: str
    join: bool = False
    """They become one, and nothing is taken."""


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
        return _choose_join(candidates, policy)
    return Choice(
        tuple(one.segment_id for one in chosen),
        tuple(one.segment_id for one in dirty),
        tuple(over),
        reason,
    )


JOIN_AT_LEAST: Final = 4
JOIN_AT_MOST: Final = 64


def _choose_join(candidates: Sequence[Candidate], policy: Policy) -> Choice | None:
    """Small segments that follow each other, all compacted, of the same partitions.

    The largest is at most half of the whole, so a record is written anew a few times at most, however many come. None
    that holds marks of deletion: their time is counted per segment.
    """

    def joinable(one: Candidate) -> bool:
        return one.ready and one.cleaned_ms is not None and not one.tombstones

    following = {one.parents[0]: one for one in candidates if len(one.parents) == 1}
    for first in candidates:
        group: list[Candidate] = []
        total = largest = fitting = 0
        one: Candidate | None = first
        while one is not None and joinable(one) and (one.first, one.last) == (first.first, first.last):
            total += one.size_bytes
            if total > policy.segment_bytes or len(group) == JOIN_AT_MOST:
                break
            group.append(one)
            largest = max(largest, one.size_bytes)
            if len(group) >= JOIN_AT_LEAST and 2 * largest <= total:
                fitting = len(group)
            one = following.get(one.segment_id)
        if fitting:
            chosen = tuple(one.segment_id for one in group[:fitting])
            return Choice(chosen, (), (), f"{fitting} small segments become one", join=True)
    return None


Keys = dict[int, dict[bytes, int]]


def rewrite(disk: Disk, job: Job) -> Outcome:
    """Write the job's segments anew beside the old ones, whole and on the device. Blocks; safe to be killed anywhere.

    Raises CorruptLog, KafkaError (records that cannot be decoded), OSError. Files of a job that failed are orphans: the
    next start, or the next job, removes them.
    """
    if job.join:
        return _join(disk, job)
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
    done = [_rewrite_one(disk, job, one, keys) for one in job.segments[: last + 1]]
    disk.flush_dir(job.directory)
    return Outcome(segments=done, learned=learned)


def _is_aborted(one: JobSegment) -> Callable[[ScannedEntry], bool]:
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for partition, found in one.outcomes.items():
        for producer_id, first, last in found.aborted:
            ranges.setdefault((partition, producer_id), []).append((first, last))

    def aborted(entry: ScannedEntry) -> bool:
        header = entry.header
        return header.is_transactional and any(
            first <= header.base_offset <= last
            for first, last in ranges.get((entry.partition, header.producer_id), ())
        )

    return aborted


def _learn(disk: Disk, directory: str, one: JobSegment, keys: Keys) -> None:
    segment = open_segment(disk, directory, one)
    try:
        aborted = _is_aborted(one)
        for entry in entries_of(segment):
            if aborted(entry) or not entry.header.record_count:
                continue
            latest = keys.setdefault(entry.partition, {})
            for record in iterate_records(batch_of(segment, entry)):
                if record.key is not None:
                    latest[record.key] = record.offset
    finally:
        segment.close()


def _rewrite_one(disk: Disk, job: Job, one: JobSegment, keys: Keys) -> Rewritten:
    directory = job.directory
    old = open_segment(disk, directory, one)
    writer: CompactedFile | None = None
    before = after = 0
    tombstones = False
    try:
        aborted = _is_aborted(one)
        for entry in entries_of(old):
            header = entry.header
            before += header.record_count
            batch = batch_of(old, entry)
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
                writer = CompactedFile(disk, directory, [old])
                writer.copy(old, entry.position)
            if records:
                writer.add(entry, *_shorter(entry, records))
            elif is_last:
                writer.add(entry, _empty(entry), header.max_timestamp)
        size = old.file_size
        if writer is not None:
            size = writer.finish(job.topic, one.outcomes.items())
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


def _join(disk: Disk, job: Job) -> Outcome:
    """The segments of the job, which were compacted before and follow each other, become one."""
    *others, last = job.segments
    olds = [open_segment(disk, job.directory, one) for one in job.segments]
    writer = CompactedFile(disk, job.directory, olds)
    records = 0
    try:
        for old in olds:
            for entry in entries_of(old):
                header = entry.header
                ends = olds[-1].indexes[entry.partition].end_offset
                if header.record_count or header.last_offset + 1 == ends:
                    records += header.record_count
                    writer.add(entry, batch_of(old, entry), header.max_timestamp)
                # Else it was kept, empty, as the last one of its segment, which it is no more.
        size = writer.finish(job.topic, _joined_outcomes(job.segments).items())
    finally:
        writer.segment.close()
        for old in olds:
            old.close()
    disk.flush_dir(job.directory)
    one = Rewritten(
        segment_id=last.segment_id,
        generation=last.generation + 1,
        size_before=sum(old.file_size for old in olds),
        size_bytes=size,
        records_before=records,
        records=records,
        tombstones=False,
    )
    return Outcome(segments=[one], learned=[], joined=[one.segment_id for one in others])


def _joined_outcomes(segments: Sequence[JobSegment]) -> dict[int, SettledPartition]:
    found: dict[int, SettledPartition] = {}
    for one in segments:
        for partition, own in one.outcomes.items():
            before = found.get(partition)
            if before is None:
                found[partition] = own
            else:
                # Where the log start lies in this one, nothing is known of what is before it.
                first = before.first if own.first == before.end else own.first
                found[partition] = SettledPartition(first, own.end, before.aborted + own.aborted)
    return found


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
