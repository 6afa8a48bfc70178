"""The header of a Kafka record batch (magic 2), and everything that needs no more than the header.

Guarantee: a batch that `validate_produced` passed is one whole batch, its CRC holds, and its counts agree, so
that offsets can be assigned to it unread. Records are never decoded here; `wire.records` does that.

Source: Kafka's DefaultRecordBatch (layout) and LogValidator and ProduceRequest.validateRecords (the checks).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c
from typing_extensions import Buffer

from wire.errors import ErrorCode, KafkaError

BATCH_HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Base offset and batch length: the bytes that `batch_length` does not count."""
CRC_START: Final = 21
"""The CRC covers everything from the attributes on; what precedes them may be rewritten freely."""
MAGIC: Final = 2

COMPRESSION_NONE: Final = 0
COMPRESSION_GZIP: Final = 1
COMPRESSION_SNAPPY: Final = 2
COMPRESSION_LZ4: Final = 3
COMPRESSION_ZSTD: Final = 4

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX: Final = struct.Struct(">qii")
_MAGIC_AT: Final = 16
_LENGTH_AT: Final = 8
_MAX_TIMESTAMP_AT: Final = 35
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
# Length, attributes, two deltas, two lengths and the header count take one byte each at the least.
_SMALLEST_RECORD: Final = 7

# The one record of a control batch: length, attributes, timestamp delta, offset delta, then key (version 0,
# type ABORT = 0) and value (version 0, coordinator epoch 0) with their lengths, and no headers.
_ABORT_RECORD: Final = bytes([32, 0, 0, 0, 8]) + bytes(4) + bytes([12]) + bytes(6) + bytes([0])


class BatchHeader(NamedTuple):
    """The fixed fields of a batch, in the order of the wire; offsets are records, timestamps milliseconds."""

    base_offset: int
    size_bytes: int
    """The whole batch as it lies in a log: the wire's batch length + 12."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap from 2^31 - 1 to 0. -1 where the batch has none."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the batch header at `position`. Needs the header's bytes only, not the whole batch's.

    Raises KafkaError: UNSUPPORTED_FOR_MESSAGE_FORMAT for magic 0 and 1, CORRUPT_MESSAGE for what cannot be
    a batch.
    """
    try:
        (
            base_offset,
            batch_length,
            leader_epoch,
            magic,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = _HEADER.unpack_from(buffer, position)
    except struct.error:
        raise _short_header(buffer, position) from None
    if magic != MAGIC:
        raise _bad_magic(magic)
    if batch_length < BATCH_HEADER_SIZE - LOG_OVERHEAD:
        raise KafkaError(ErrorCode.corrupt_message, f"batch length {batch_length} is below a header's")
    # A compacted batch may hold fewer records than its range of offsets, never more.
    if last_offset_delta < 0 or not 0 <= record_count <= last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"{record_count} records with last offset delta {last_offset_delta}",
        )
    return BatchHeader(
        base_offset,
        batch_length + LOG_OVERHEAD,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )


def _short_header(buffer: Buffer, position: int) -> KafkaError:
    view = memoryview(buffer).cast("B")[position:]
    if len(view) > _MAGIC_AT:
        magic = int.from_bytes(view[_MAGIC_AT : _MAGIC_AT + 1], "big", signed=True)
        if magic != MAGIC:
            return _bad_magic(magic)
    return KafkaError(ErrorCode.corrupt_message, f"{len(view)} bytes are too few for a batch header")


def _bad_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return KafkaError(
            ErrorCode.unsupported_for_message_format, f"message format {magic} is not supported, only 2"
        )
    return KafkaError(ErrorCode.corrupt_message, f"unknown message format {magic}")


def batch_crc(batch: Buffer) -> int:
    """CRC32C of exactly one batch, computed over its bytes."""
    return crc32c(memoryview(batch)[CRC_START:])


def check_crc(batch: Buffer, header: BatchHeader) -> None:
    """Raise KafkaError(CORRUPT_MESSAGE) unless the CRC stored in exactly one batch holds."""
    actual = crc32c(memoryview(batch)[CRC_START:])
    if actual != header.crc:
        raise KafkaError(
            ErrorCode.corrupt_message, f"batch CRC is {actual:#010x}, its header says {header.crc:#010x}"
        )


def validate_produced(
    records: Buffer | None, *, allow_zstd: bool = True, max_bytes: int = 1 << 31
) -> BatchHeader:
    """Check the records of one partition in a Produce request and return the header of their one batch.

    Raises KafkaError with Kafka's codes: INVALID_RECORD (no batch, several, an offset, counts that do not agree, a
    control batch, a producer id without epoch or sequence), MESSAGE_TOO_LARGE (before the CRC is computed),
    CORRUPT_MESSAGE (truncated, CRC), INVALID_TIMESTAMP (a client may not claim log append time),
    UNSUPPORTED_COMPRESSION_TYPE (an unknown one, or zstd where `allow_zstd` is false: Produce below version 7). An old
    format is UNSUPPORTED_FOR_MESSAGE_FORMAT, which tells more than Kafka's INVALID_RECORD.
    """
    if records is None:
        raise _invalid("no record batch")
    view = memoryview(records)
    size = len(view)
    if size == 0:
        raise _invalid("no record batch")
    header = parse_header(view)
    (
        base_offset,
        size_bytes,
        _,
        _,
        crc,
        attributes,
        last_offset_delta,
        _,
        _,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = header
    if size_bytes != size:
        if size_bytes > size:
            raise KafkaError(ErrorCode.corrupt_message, f"batch of {size_bytes} bytes cut off at {size}")
        raise _invalid("a partition's records must be exactly one batch")
    if size > max_bytes:
        raise KafkaError(
            ErrorCode.message_too_large, f"a batch of {size} bytes; the topic takes {max_bytes} at most"
        )
    actual_crc = crc32c(view[CRC_START:])
    if actual_crc != crc:
        raise KafkaError(
            ErrorCode.corrupt_message, f"batch CRC is {actual_crc:#010x}, its header says {crc:#010x}"
        )
    if base_offset != 0:
        raise _invalid(f"offsets are the broker's to give; this batch begins with {base_offset}")
    if record_count <= 0 or record_count != last_offset_delta + 1:
        raise _invalid(f"{record_count} records with last offset delta {last_offset_delta}")
    if attributes & (CONTROL_BIT | LOG_APPEND_TIME_BIT):
        if attributes & CONTROL_BIT:
            raise _invalid("clients may not write control records")
        raise KafkaError(ErrorCode.invalid_timestamp, "clients may not set log append time")
    if producer_id >= 0:
        if producer_epoch < 0 or base_sequence < 0:
            raise _invalid(f"producer {producer_id} with epoch {producer_epoch}, sequence {base_sequence}")
    elif attributes & TRANSACTIONAL_BIT or producer_id != NO_PRODUCER_ID:
        raise _invalid(f"producer id {producer_id} in a batch that needs a valid one or none")
    compression = attributes & COMPRESSION_MASK
    if compression == COMPRESSION_NONE:
        # The count moves offsets: it must not claim more records than the bytes could hold.
        if record_count * _SMALLEST_RECORD > size - BATCH_HEADER_SIZE:
            raise _invalid(f"{record_count} records do not fit into {size - BATCH_HEADER_SIZE} bytes")
    elif compression > COMPRESSION_ZSTD or (compression == COMPRESSION_ZSTD and not allow_zstd):
        raise KafkaError(ErrorCode.unsupported_compression_type, f"compression type {compression}")
    return header


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, message)


def assign(batch: Buffer, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """Give one batch its offset and leader epoch without touching what the CRC covers and without a copy.

    Returns the rewritten first 16 bytes and a view of the rest; one after the other they are the batch.
    """
    view = memoryview(batch)
    (batch_length,) = _INT32.unpack_from(view, _LENGTH_AT)
    return _PREFIX.pack(base_offset, batch_length, leader_epoch), view[_PREFIX.size :]


def with_append_time(batch: Buffer, header: BatchHeader, now_ms: int) -> tuple[BatchHeader, bytes]:
    """A copy of one batch whose records have the time of the broker's append: attribute bit, max timestamp, CRC.

    The base timestamp stays, as in Kafka: readers take the max timestamp for every record (KIP-32).
    """
    out = bytearray(batch)
    attributes = header.attributes | LOG_APPEND_TIME_BIT
    _INT16.pack_into(out, CRC_START, attributes)
    _INT64.pack_into(out, _MAX_TIMESTAMP_AT, now_ms)
    crc = batch_crc(out)
    _CRC.pack_into(out, CRC_START - _CRC.size, crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc), bytes(out)


def pack_batch(
    records: Buffer,
    *,
    record_count: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """One batch of already encoded (and compressed) records, with its CRC."""
    head = pack_header(
        records,
        record_count=record_count,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return b"".join((head, records))


def pack_header(
    records: Buffer,
    *,
    record_count: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """What stands before these records in their batch, the CRC of both in it: for who need not copy them."""
    head = bytearray(BATCH_HEADER_SIZE)
    _HEADER.pack_into(
        head,
        0,
        base_offset,
        BATCH_HEADER_SIZE + memoryview(records).nbytes - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    _CRC.pack_into(head, CRC_START - _CRC.size, crc32c(records, crc32c(memoryview(head)[CRC_START:])))
    return bytes(head)


def control_batch(
    offset: int, leader_epoch: int, producer_id: int, producer_epoch: int, timestamp: int
) -> bytes:
    """A batch of one ABORT control record, at `offset`; `timestamp` in milliseconds.

    It stands where a read_committed answer would end on aborted batches: clients advance past it and deliver
    nothing.
    """
    return pack_batch(
        _ABORT_RECORD,
        record_count=1,
        base_offset=offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
