"""Finding records by their timestamps, exactly: ListOffsets.

Guarantee: the answer is a record that a reader of the same limit would see, found by decoding its batch; the
indexes' running maxima keep the search short. Only where the readers must skip what the indexes point at
(aborted batches with the largest timestamps) is a segment read from end to end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from storage.index import PartitionIndex
from storage.partition import PartitionLog
from storage.reader import EXTENT_BYTES, SMALLEST_EXTENT_BYTES, Skip, StoredBatch, walk
from wire.records import iterate_records


def offset_for_timestamp(
    log: PartitionLog, timestamp_ms: int, limit_offset: int, skip: Skip | None
) -> tuple[int, int] | None:
    """See `RangeLog.offset_for_timestamp`."""
    assert limit_offset <= log.high_watermark, "a look-up may not pass the high watermark"
    for index in _indexes(log, limit_offset):
        if index.max_timestamp < timestamp_ms:
            continue
        index.segment.load(index)
        start = index.bases[bisect_left(index.timestamps, timestamp_ms)]
        for batch in _visible(
            log,
            max(start, log.log_start_offset),
            min(limit_offset, index.end_offset),
            skip,
            SMALLEST_EXTENT_BYTES,
        ):
            if batch.max_timestamp < timestamp_ms:
                continue
            for record in iterate_records(batch.data):
                if record.timestamp >= timestamp_ms and record.offset >= log.log_start_offset:
                    return record.offset, record.timestamp
    return None


def max_timestamp(log: PartitionLog, limit_offset: int, skip: Skip | None) -> tuple[int, int] | None:
    """See `RangeLog.max_timestamp`."""
    assert limit_offset <= log.high_watermark, "a look-up may not pass the high watermark"
    start = log.log_start_offset
    candidates: list[StoredBatch] = []
    for batch in walk(log, start, limit_offset, 0):
        if batch.base_offset < start:
            # The log start cuts this batch, so its largest timestamp may be that of a hidden record.
            candidates += _unless_skipped(batch, skip)
            start = batch.last_offset + 1
        break
    best: StoredBatch | None = None
    for index in _indexes(log, limit_offset):
        if best is not None and index.max_timestamp <= best.max_timestamp:
            continue
        found = _latest_in(log, index, start, limit_offset, skip)
        if found is not None and (best is None or found.max_timestamp > best.max_timestamp):
            best = found
    if best is not None:
        candidates.append(best)
    # The first of equal ones, as Kafka answers.
    latest = max(
        (
            record
            for batch in candidates
            for record in iterate_records(batch.data)
            if record.offset >= log.log_start_offset
        ),
        key=lambda record: (record.timestamp, -record.offset),
        default=None,
    )
    return None if latest is None else (latest.offset, latest.timestamp)


def _indexes(log: PartitionLog, limit_offset: int) -> Iterator[PartitionIndex]:
    for index in log.indexes:
        if index.start_offset >= limit_offset:
            return
        if index.end_offset > log.log_start_offset:
            yield index


def _unless_skipped(batch: StoredBatch, skip: Skip | None) -> tuple[StoredBatch, ...]:
    if skip is not None and batch.is_transactional and skip(batch.producer_id, batch.base_offset):
        return ()
    return (batch,)


def _visible(
    log: PartitionLog, start: int, limit_offset: int, skip: Skip | None, hint_bytes: int
) -> Iterator[StoredBatch]:
    for batch in walk(log, start, limit_offset, hint_bytes):
        yield from _unless_skipped(batch, skip)


def _latest_in(
    log: PartitionLog, index: PartitionIndex, start: int, limit_offset: int, skip: Skip | None
) -> StoredBatch | None:
    """The visible batch of a segment, from `start` on, with the largest timestamp, the first of equal ones."""
    start = max(start, index.start_offset)
    limit = min(limit_offset, index.end_offset)
    if start >= limit:
        return None
    index.segment.load(index)
    bases, timestamps = index.bases, index.timestamps
    # The runs wholly below the limit, by their running maximum; then the one that the limit cuts.
    whole = len(bases) if limit == index.end_offset else bisect_right(bases, limit - 1) - 1
    best: StoredBatch | None = None
    if whole:
        run = bisect_left(timestamps, timestamps[whole - 1])
        run_end = bases[run + 1] if run + 1 < len(bases) else limit
        if bases[run] >= start:
            best = _latest(_visible(log, bases[run], run_end, skip, SMALLEST_EXTENT_BYTES))
        if best is None or best.max_timestamp < timestamps[whole - 1]:
            # What the index points at is hidden, so it says nothing of what is not.
            best = _latest(_visible(log, start, limit, skip, EXTENT_BYTES))
    if whole < len(bases):
        cut = _latest(_visible(log, max(start, bases[whole]), limit, skip, SMALLEST_EXTENT_BYTES))
        if cut is not None and (best is None or cut.max_timestamp > best.max_timestamp):
            best = cut
    return best


def _latest(batches: Iterator[StoredBatch]) -> StoredBatch | None:
    return max(batches, key=lambda batch: (batch.max_timestamp, -batch.base_offset), default=None)
