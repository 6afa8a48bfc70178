"""The two messages that carry data, by struct: nothing that is large is copied.

Guarantee: the bytes are those of the generated schemas (`wire.codec`); a frame that is cut off is an OSError.

Source: Kafka's ProduceRequest message, version 12, and FetchResponse, version 12.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from typing_extensions import Buffer

from wire.apis import ApiKey
from wire.errors import ErrorCode
from wire.packing import (
    VarintTooLong,
    pack_array_length,
    pack_string,
    pack_unsigned_varint,
    read_unsigned_varint,
)

PRODUCE_VERSION: Final = 12
FETCH_VERSION: Final = 12

_REQUEST: Final = struct.Struct(">hhi")
_ACKS: Final = struct.Struct(">hi")
_INT32: Final = struct.Struct(">i")
_FETCHED: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED_BYTES: Final = 17
"""A producer id, a first offset, and no tagged fields."""

Pieces = Sequence[Buffer]


def produce_request(
    number: int,
    client_id: str,
    transactional_id: str,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, Pieces]],
) -> list[Buffer]:
    """A whole request with acks=all, in pieces; of each batch (topic, partition, pieces), those of a topic together."""
    out: list[Buffer] = []
    head = bytearray(_REQUEST.pack(ApiKey.PRODUCE, PRODUCE_VERSION, number))
    head += pack_string(client_id, False) + b"\0"
    head += pack_string(transactional_id, True) + _ACKS.pack(-1, timeout_ms)
    topics = [(topic, list(of_topic)) for topic, of_topic in groupby(batches, key=lambda one: one[0])]
    head += pack_array_length(len(topics), True)
    for topic, of_topic in topics:
        head += pack_string(topic, True) + pack_array_length(len(of_topic), True)
        for _, partition, pieces in of_topic:
            size = sum(memoryview(piece).nbytes for piece in pieces)
            head += _INT32.pack(partition) + pack_unsigned_varint(size + 1)
            out += (bytes(head), *pieces)
            head = bytearray(b"\0")  # no tagged fields of the partition
        head += b"\0"
    out.append(bytes(head + b"\0"))
    return [_INT32.pack(sum(memoryview(piece).nbytes for piece in out)), *out]


class Fetched(NamedTuple):
    """The one partition of an answer; `records` are a part of the frame."""

    error: ErrorCode
    records: memoryview


def fetched(frame: memoryview) -> Fetched:
    """Read the answer to a Fetch of one partition. Raises OSError for what cannot be one."""
    try:
        return _fetched(frame)
    except (struct.error, IndexError, VarintTooLong, ValueError) as error:
        raise OSError(f"a malformed Fetch answer: {error}") from None


def _fetched(frame: memoryview) -> Fetched:
    position = _skip_tags(frame, 4)
    _, error, _ = _FETCHED.unpack_from(frame, position)
    topics, position = read_unsigned_varint(frame, position + _FETCHED.size)
    if error:
        return Fetched(ErrorCode(error), frame[:0])
    size, position = read_unsigned_varint(frame, position)
    partitions, position = read_unsigned_varint(frame, position + size - 1)
    if (topics, partitions) != (2, 2):
        raise ValueError("one partition was asked for")
    _, error, *_ = _PARTITION.unpack_from(frame, position)
    aborted, position = read_unsigned_varint(frame, position + _PARTITION.size)
    position += max(aborted - 1, 0) * _ABORTED_BYTES + _INT32.size
    size, position = read_unsigned_varint(frame, position)
    records = frame[position : position + max(size - 1, 0)]
    if len(records) != max(size - 1, 0):
        raise ValueError("the records are cut off")
    return Fetched(ErrorCode(error), records)


def _skip_tags(frame: memoryview, position: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
    return position
