"""Sealed segments written anew with the last value of every key only.

Guarantees: offsets stay; a record goes only where a later one of its key is there, committed and durable, and a mark of
deletion only when its time is over; the last batch of each partition of a segment stays, emptied if need be, so that
every offset below the end can be read towards; producers and the ends of partitions are as before. A new file counts
only when it and its sidecar are whole and on the device, and its layout says so; the old one is removed after that.

`rewrite` reads and writes files and decodes records: it is meant for another process (`storage.compaction_worker`),
which is handed a `Job` as plain data. What is in the job was decided in `storage.compaction`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from storage.compacted_file import CompactedFile, batch_of, entries_of, open_segment
from storage.compaction_job import Job, JobSegment, Outcome, Rewritten
from storage.compaction_records import decode
from storage.disk import Disk
from storage.scan import ScannedEntry
from storage.settled import SettledPartition
from wire.batch import COMPRESSION_MASK, pack_batch
from wire.records import Record, build_batch

Keys = dict[int, dict[bytes, int]]
MAX_OFFSET: Final = (1 << 63) - 1


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
            for record in decode(batch_of(segment, entry)):
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
            if header.is_transactional and header.base_offset >= one.recorded.get(
                entry.partition, MAX_OFFSET
            ):
                after += header.record_count
                if writer is not None:
                    writer.add(entry, batch, header.max_timestamp)
                continue
            records: list[Record] = []
            if header.record_count and not aborted(entry):
                latest = keys.get(entry.partition, {})
                records = [
                    record
                    for record in decode(batch)
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
