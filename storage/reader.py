"""Reading one partition's log: whole batches, without copying what goes to clients.

Guarantees: the first batch returned is the one that contains the offset asked for (or the next one, across a
gap), never a batch wholly below it; nothing at or above the limit; every entry's CRC is checked, so no bytes
of another partition or of a damaged header go out. The batch's own CRC is left to the client, who checks it
anyway.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from storage.format import ENTRY_AND_BATCH, ENTRY_HEADER_BYTES, ENTRY_MAGIC, CorruptLog
from storage.partition import PartitionLog
from wire.batch import TRANSACTIONAL_BIT
from wire.errors import ErrorCode, KafkaError

Skip = Callable[[int, int], bool]
"""(producer id, base offset) of a transactional batch -> whether readers must not see it."""

EXTENT_BYTES: Final = 1 << 20
SMALLEST_EXTENT_BYTES: Final = 32 << 10
NEAR_BYTES: Final = 16 << 10
"""Runs with less than that between them are asked for as one: a device reads what is between them sooner than it
begins anew."""
_HEAD_BYTES: Final = ENTRY_AND_BATCH.size
_unpack_head: Final = ENTRY_AND_BATCH.unpack_from
_unpack_step: Final = struct.Struct(">8xI20xq15xi").unpack_from
"""Batch size, base offset, last offset delta of the entry."""


class StoredBatchMeta(NamedTuple):
    """What is known of a stored batch without its records. `size` in bytes as clients get it."""

    base_offset: int
    last_offset: int
    attributes: int
    producer_id: int
    producer_epoch: int
    txn_seq: int
    term: int
    max_timestamp: int
    size: int

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0


class StoredBatch(NamedTuple):
    """A stored batch; `data` is the whole record batch as it goes to clients, a view into what was read."""

    base_offset: int
    last_offset: int
    attributes: int
    producer_id: int
    producer_epoch: int
    txn_seq: int
    term: int
    max_timestamp: int
    data: memoryview

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def meta(self) -> StoredBatchMeta:
        return StoredBatchMeta(*self[:8], size=len(self.data))


class ReadResult(NamedTuple):
    """Batches in offset order, `bytes` in all.

    `last_skipped` is set only when the result ends on skipped batches: nothing visible follows them below the
    limit, or the read gave up skipping there. `reached_limit`: there is nothing more below the limit.
    """

    batches: list[StoredBatch]
    last_skipped: StoredBatchMeta | None
    bytes: int
    reached_limit: bool


def read(
    log: PartitionLog,
    offset: int,
    *,
    limit_offset: int,
    max_bytes: int,
    at_least_one: bool,
    skip: Skip | None,
    skip_scan_bytes: int,
) -> ReadResult:
    """See `RangeLog.read`."""
    # Bytes at or above the high watermark may be queued in memory still, and a crash could take them back.
    assert limit_offset <= log.high_watermark, "a read may not pass the high watermark"
    if not log.log_start_offset <= offset <= log.end_offset:
        raise KafkaError(
            ErrorCode.offset_out_of_range,
            f"offset {offset} is outside {log.log_start_offset}..{log.end_offset}",
        )
    batches: list[StoredBatch] = []
    total = 0
    skipped = 0
    last_skipped: StoredBatch | None = None
    for batch in walk(log, offset, limit_offset, max_bytes):
        size = len(batch[8])
        if skip is not None and batch[2] & TRANSACTIONAL_BIT and skip(batch[3], batch[0]):
            last_skipped = batch
            skipped += size
            if skipped >= skip_scan_bytes:
                return ReadResult(batches, batch.meta, total, batch.last_offset + 1 >= limit_offset)
            continue
        if total + size > max_bytes and (batches or not at_least_one):
            return ReadResult(batches, None, total, False)
        last_skipped = None
        batches.append(batch)
        total += size
        if total >= max_bytes:
            # Nothing more fits; what follows is the next read's question.
            return ReadResult(batches, None, total, batch.last_offset + 1 >= limit_offset)
    return ReadResult(batches, last_skipped.meta if last_skipped is not None else None, total, True)


def expect(log: PartitionLog, offset: int, *, limit_offset: int, size_bytes: int) -> None:
    """See `RangeLog.expect`."""
    if not log.log_start_offset <= offset < limit_offset:
        return
    index = log.indexes[log.chain_position(offset)]
    segment = index.segment
    segment.load(index)
    bases, positions, sizes = index.bases, index.positions, index.sizes
    run = max(0, bisect_right(bases, offset) - 1)
    file = segment.file()
    while size_bytes > 0 and run < len(bases) and bases[run] < limit_offset:
        start, end = positions[run], positions[run] + sizes[run]
        run += 1
        while run < len(bases) and 0 <= positions[run] - end <= NEAR_BYTES and end - start < size_bytes:
            end = positions[run] + sizes[run]
            run += 1
        file.will_read(end - start, start)
        size_bytes -= end - start


def walk(log: PartitionLog, offset: int, limit_offset: int, hint_bytes: int) -> Iterator[StoredBatch]:
    """The batches from the one that contains `offset`, whole below `limit_offset`, in order; about
    `hint_bytes` of them will be asked for, and more than that is not read at once.

    Raises KafkaError(KAFKA_STORAGE_ERROR) naming file and position where an entry is damaged, OSError.
    """
    partition = log.partition
    for number in range(log.chain_position(offset), len(log.indexes)):
        index = log.indexes[number]
        if index.start_offset >= limit_offset:
            return
        segment = index.segment
        segment.load(index)
        salt, guarded_bytes = segment.salt, segment.guarded_bytes
        bases, positions, sizes = index.bases, index.positions, index.sizes
        run = max(0, bisect_right(bases, offset) - 1)
        while run < len(bases) and bases[run] < limit_offset:
            # One read for as many adjacent runs as will be asked for.
            run_number = run
            position, size = positions[run], sizes[run]
            run += 1
            wanted = min(max(hint_bytes, SMALLEST_EXTENT_BYTES), EXTENT_BYTES)
            while (
                run < len(bases)
                and positions[run] == position + size
                and size + sizes[run] <= wanted
                and bases[run] < limit_offset
            ):
                size += sizes[run]
                run += 1
            hint_bytes -= size
            data = memoryview(segment.file().pread(size, position))
            available = len(data)
            at = 0
            if bases[run_number] < offset:
                # The walk to the one that holds the offset: lengths only, and no CRC, as nothing of it goes
                # out.
                while available - at >= _HEAD_BYTES:
                    length, base_offset, last_offset_delta = _unpack_step(data, at)
                    if base_offset + last_offset_delta >= offset:
                        break
                    at += ENTRY_HEADER_BYTES + length
                if at > size:
                    raise _damaged(segment.path, position)
            while at < size:
                if available - at < _HEAD_BYTES:
                    raise _damaged(segment.path, position + at)
                # fmt: off
                (
                    crc, magic, length, owner, term, txn_seq,
                    base_offset, attributes, last_offset_delta, max_timestamp, producer_id, producer_epoch,
                ) = _unpack_head(data, at)
                # fmt: on
                start = at + ENTRY_HEADER_BYTES
                end = start + length
                if (
                    crc != crc32c(data[at + 4 : at + guarded_bytes], salt ^ (position + at))
                    or magic != ENTRY_MAGIC
                    or owner != partition
                    or end > available
                ):
                    raise _damaged(segment.path, position + at)
                at = end
                last_offset = base_offset + last_offset_delta
                if last_offset < offset:
                    continue
                if last_offset >= limit_offset:
                    return
                yield StoredBatch(
                    base_offset,
                    last_offset,
                    attributes,
                    producer_id,
                    producer_epoch,
                    txn_seq,
                    term,
                    max_timestamp,
                    data[start:end],
                )
                if last_offset + 1 == limit_offset:
                    # What follows in the run may not even be written: a failed log ends in the middle of one.
                    return


def transactional_batches(log: PartitionLog, from_offset: int) -> Iterator[StoredBatchMeta]:
    """See `RangeLog.transactional_batches`."""
    start = max(from_offset, log.log_start_offset)
    for batch in walk(log, start, log.high_watermark, EXTENT_BYTES):
        if batch.attributes & TRANSACTIONAL_BIT:
            yield batch.meta


def batch_at(log: PartitionLog, offset: int) -> StoredBatchMeta | None:
    """See `RangeLog.batch_at`."""
    if offset < 0:
        return None
    for batch in walk(log, offset, log.high_watermark, 0):
        return batch.meta if batch.base_offset <= offset else None
    return None


def _damaged(path: str, position: int) -> KafkaError:
    corrupt = CorruptLog(path, position, "the entry is damaged")
    error = KafkaError(ErrorCode.kafka_storage_error, str(corrupt))
    error.__cause__ = corrupt
    return error
