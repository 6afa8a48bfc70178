"""The records inside a batch: reading them one by one, and building batches.

Guarantee: reading never allocates more than `max_bytes` for decompressed data, whatever the batch claims, and
anything malformed is a KafkaError(CORRUPT_MESSAGE). For look-ups by timestamp, tools and tests; the hot path
does not come here.

Source: Kafka's DefaultRecord (layout); KIP-31 (relative offsets), KIP-110 (zstd).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from typing_extensions import Buffer

from wire.batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_MASK,
    COMPRESSION_NONE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    pack_batch,
    parse_header,
)
from wire.compression import compress, decompress
from wire.errors import ErrorCode, KafkaError

DEFAULT_MAX_BYTES: Final = 128 * 1024 * 1024

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record. `timestamp` in milliseconds, `offset` absolute; both may be left out when building."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = NO_TIMESTAMP
    offset: int = -1


def iterate_records(
    batch: Buffer, *, max_bytes: int = DEFAULT_MAX_BYTES, verify_crc: bool = False
) -> Iterator[Record]:
    """The records of exactly one batch (what follows it in `batch` is not looked at), in order of offsets.

    Raises KafkaError(CORRUPT_MESSAGE), at the start or at the record that is malformed; also when
    decompression would pass `max_bytes`. The record count in the header bounds the iteration; bytes left over
    are an error.
    """
    header = parse_header(batch)
    view = memoryview(batch).cast("B")
    if len(view) < header.size_bytes:
        raise _corrupt(f"batch of {header.size_bytes} bytes cut off at {len(view)}")
    view = view[: header.size_bytes]
    if verify_crc:
        check_crc(view, header)
    payload: bytes | memoryview = view[BATCH_HEADER_SIZE:]
    if header.compression != COMPRESSION_NONE:
        payload = decompress(header.compression, view[BATCH_HEADER_SIZE:], max_bytes)
    # Slices of bytes are bytes: records outlive the buffer they were read from.
    return _iterate(header, bytes(payload))


def _iterate(header: BatchHeader, payload: bytes) -> Iterator[Record]:
    position = 0
    end = len(payload)
    for _ in range(header.record_count):
        length, position = read_varint(payload, position)
        stop = position + length
        if length < 0 or stop > end:
            raise _corrupt(f"record of {length} bytes at {position} of {end}")
        yield _decode_record(header, payload, position, stop)
        position = stop
    if position != end:
        raise _corrupt(f"{end - position} bytes follow the last record")


def _decode_record(header: BatchHeader, payload: bytes, position: int, stop: int) -> Record:
    position += 1  # the attributes of a record are unused
    timestamp_delta, position = read_varint(payload, position)
    offset_delta, position = read_varint(payload, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise _corrupt(f"offset delta {offset_delta} outside 0..{header.last_offset_delta}")
    key, position = _read_bytes(payload, position, stop)
    value, position = _read_bytes(payload, position, stop)
    header_count, position = read_varint(payload, position)
    # A header takes two bytes at the least, so a hostile count ends at the record's end.
    if header_count < 0 or header_count * 2 > stop - position:
        raise _corrupt(f"{header_count} headers in {stop - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(header_count):
        name, position = _read_bytes(payload, position, stop)
        if name is None:
            raise _corrupt("a header without a key")
        header_value, position = _read_bytes(payload, position, stop)
        try:
            headers.append((name.decode(), header_value))
        except UnicodeDecodeError:
            raise _corrupt("a header key that is not UTF-8") from None
    if position != stop:
        raise _corrupt(f"a record ends at {position}, its length says {stop}")
    timestamp = (
        header.max_timestamp if header.has_log_append_time else header.base_timestamp + timestamp_delta
    )
    if not -(1 << 63) <= timestamp < 1 << 63:
        raise _corrupt(f"timestamp {timestamp} is more than 64 bits")
    return Record(key, value, tuple(headers), timestamp, header.base_offset + offset_delta)


def _read_bytes(payload: bytes, position: int, stop: int) -> tuple[bytes | None, int]:
    length, position = read_varint(payload, position)
    if length == -1:
        return None, position
    end = position + length
    if length < 0 or end > stop:
        raise _corrupt(f"field of {length} bytes with {stop - position} left")
    return payload[position:end], end


def read_varint(payload: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint of at most 64 bits at `position`, and the position after it."""
    result = 0
    for index in range(10):
        try:
            byte = payload[position + index]
        except IndexError:
            raise _corrupt("the records end inside a number") from None
        result |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if result >> 64:
                break
            return (result >> 1) ^ -(result & 1), position + index + 1
    raise _corrupt("a number of more than 64 bits")


def write_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint; `value` within 64 bits."""
    encoded = (value << 1) ^ (value >> 63)
    while encoded > 0x7F:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)


def build_batch(
    records: Iterable[Record],
    *,
    compression: int = COMPRESSION_NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    keep_offsets: bool = False,
    last_offset: int | None = None,
) -> bytes:
    """One batch of these records, as a producer (or compaction) would write it.

    Records get successive offsets from `base_offset` on; with `keep_offsets` their own, which must increase.
    `last_offset` sets the end of the batch's range where it lies above the last record's (compaction).
    `attributes` adds bits such as TRANSACTIONAL_BIT; the compression's are set from `compression`.
    """
    out = bytearray()
    count = 0
    delta = -1
    base_timestamp = max_timestamp = NO_TIMESTAMP
    for record in records:
        if count == 0:
            base_timestamp = max_timestamp = record.timestamp
        max_timestamp = max(max_timestamp, record.timestamp)
        previous, delta = delta, record.offset - base_offset if keep_offsets else count
        if delta <= previous:
            raise ValueError(f"offset {record.offset} does not follow {base_offset + previous}")
        _encode_record(out, record, record.timestamp - base_timestamp, delta)
        count += 1
    return pack_batch(
        bytes(out) if compression == COMPRESSION_NONE else compress(compression, bytes(out)),
        record_count=count,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=(attributes & ~COMPRESSION_MASK) | compression,
        last_offset_delta=max(delta, 0) if last_offset is None else last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def _encode_record(out: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    body = bytearray(1)
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        write_varint(out, -1)
        return
    write_varint(out, len(value))
    out += value


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, message)
