"""Record batches of message format 2 (and the two before it), built and taken apart byte by byte.

Independent of the broker's own record code on purpose. Layout: KIP-98 and Kafka's DefaultRecordBatch.
"""

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
TRANSACTIONAL = 0x10
CONTROL = 0x20
GZIP = 1
TIMESTAMP_MS = 1_700_000_000_000

Item = bytes | tuple[bytes | None, bytes | None]


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _nullable(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"\x00" + _varint(0) + _varint(delta) + _nullable(key) + _nullable(value) + _varint(0)
    return _varint(len(body)) + body


def batch_of(
    records: bytes,
    count: int,
    *,
    pid: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    timestamp_ms: int = TIMESTAMP_MS,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """A batch around an already encoded (and perhaps compressed) record section."""
    after_crc = (
        struct.pack(
            ">hiqqqhii", attributes, count - 1, timestamp_ms, timestamp_ms, pid, epoch, sequence, count
        )
        + records
    )
    crc = crc32c.crc32c(after_crc)
    return struct.pack(">qiibI", base_offset, len(after_crc) + 9, leader_epoch, 2, crc) + after_crc


def batch(
    items: Sequence[Item],
    *,
    pid: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    timestamp_ms: int = TIMESTAMP_MS,
) -> bytes:
    """An uncompressed batch of values, or of (key, value) pairs."""
    pairs = [(None, item) if isinstance(item, bytes) else item for item in items]
    data = b"".join(record(delta, key, value) for delta, (key, value) in enumerate(pairs))
    attributes = TRANSACTIONAL if transactional else 0
    return batch_of(
        data,
        len(pairs),
        pid=pid,
        epoch=epoch,
        sequence=sequence,
        attributes=attributes,
        timestamp_ms=timestamp_ms,
    )


def zip_bomb(size_mib: int) -> bytes:
    """One gzip batch of one record whose value is that many MiB of zeros, a thousandth of it on the wire."""
    size_bytes = size_mib << 20
    prefix = b"\x00" + _varint(0) + _varint(0) + _varint(-1) + _varint(size_bytes)
    start = _varint(len(prefix) + size_bytes + 1) + prefix
    # Gzip members one after another unpack as one stream (RFC 1952), so a MiB needs packing only once.
    members = [gzip.compress(start), *[gzip.compress(bytes(1 << 20))] * size_mib, gzip.compress(_varint(0))]
    return batch_of(b"".join(members), 1, attributes=GZIP)


def old_message_set(magic: int, value: bytes = b"old") -> bytes:
    """A message set of message format 0 or 1, as clients of Kafka 0.10 and before sent it."""
    body = bytes([magic, 0])
    if magic == 1:
        body += struct.pack(">q", TIMESTAMP_MS)
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    attributes: int
    pid: int
    epoch: int
    sequence: int
    count: int
    leader_epoch: int
    crc_ok: bool
    data: bytes

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def values(self) -> list[bytes | None]:
        return [value for _, value in self.records]

    @property
    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) of each record of an uncompressed batch."""
        assert not self.attributes & 7
        found = []
        position = HEADER_SIZE
        for _ in range(self.count):
            _, position = _read_varint(self.data, position)
            position += 1
            _, position = _read_varint(self.data, position)
            _, position = _read_varint(self.data, position)
            key, position = _read_nullable(self.data, position)
            value, position = _read_nullable(self.data, position)
            headers, position = _read_varint(self.data, position)
            assert headers == 0
            found.append((key, value))
        return found


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def _read_nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _read_varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)


def parse(records: bytes) -> Iterator[Batch]:
    """The whole batches in a fetch response's records; a cut last batch (Kafka may send one) is left out."""
    position = 0
    while position + HEADER_SIZE <= len(records):
        fields = HEADER.unpack_from(records, position)
        (
            base_offset,
            length,
            leader_epoch,
            magic,
            crc,
            attributes,
            delta,
            _,
            _,
            pid,
            epoch,
            sequence,
            count,
        ) = fields
        data = records[position : position + length + 12]
        if len(data) < length + 12:
            return
        assert magic == 2
        yield Batch(
            base_offset, base_offset + delta, attributes, pid, epoch, sequence, count, leader_epoch,
            crc32c.crc32c(data[21:]) == crc, data,
        )  # fmt: skip
        position += length + 12
