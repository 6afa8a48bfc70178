"""Record batches as they come from the broker, decoded into columns.

Guarantee: no Python object is made for a field of a record: numbers are numpy columns, keys, values and headers are
cut out of the fetched bytes by Arrow. What is malformed is a KafkaError(CORRUPT_MESSAGE), as in `wire.records`, which
reads the same bytes one record at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import Buffer

from pyspark_sealog.varints import Bytes, Ints, read_varints
from wire.batch import BATCH_HEADER_SIZE, COMPRESSION_NONE, BatchHeader, check_crc, parse_header
from wire.compression import decompress
from wire.errors import ErrorCode, KafkaError
from wire.records import DEFAULT_MAX_BYTES

_GROUP_BYTES: Final = 16 * 1024 * 1024
_NULL: Final = -1
_LEAST_RECORD_BYTES: Final = 6
_FEWEST_SIDE_BY_SIDE: int = 100
"""So many batches, on the average, must have an nth record for reading them side by side to be quicker."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a Fetch answer, still as it was stored."""

    header: BatchHeader
    source: Buffer
    start: int
    end: int
    """source[start:end]: what follows the batch's header, perhaps compressed."""


def cut(records: Buffer, *, check_crcs: bool) -> list[Batch]:
    """The whole batches in the records of a Fetch answer; a last one that is cut off is left out."""
    view = memoryview(records)
    batches = []
    position = 0
    while len(view) - position >= BATCH_HEADER_SIZE:
        header = parse_header(view, position)
        end = position + header.size_bytes
        if end > len(view):
            break
        if check_crcs:
            check_crc(view[position:end], header)
        batches.append(Batch(header, records, position + BATCH_HEADER_SIZE, end))
        position = end
    return batches


@dataclass(frozen=True, slots=True)
class Records:
    """The records of some batches as columns. Timestamps in milliseconds; `headers` only if they were asked for."""

    offsets: Ints
    timestamps: Ints
    timestamp_types: NDArray[np.int32]
    """0: set by the producer, 1: by the broker."""
    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.ListArray | None

    def __len__(self) -> int:
        return len(self.offsets)


def decode(
    batches: Sequence[Batch], first: int, stop: int, *, with_headers: bool = False
) -> Iterator[Records]:
    """The records with first <= offset < stop, in a few groups of bounded size, without control records."""
    group: list[Batch] = []
    size_bytes = 0
    for batch in batches:
        header = batch.header
        if header.is_control or header.record_count == 0 or header.last_offset < first:
            continue
        if header.base_offset >= stop:
            break
        if header.compression != COMPRESSION_NONE:
            stored = memoryview(batch.source)[batch.start : batch.end]
            unpacked = decompress(header.compression, stored, DEFAULT_MAX_BYTES)
            batch = Batch(header, unpacked, 0, len(unpacked))
        size = batch.end - batch.start
        if group and size_bytes + size > _GROUP_BYTES:
            yield _decode(group, first, stop, with_headers)
            group, size_bytes = [], 0
        group.append(batch)
        size_bytes += size
    if group:
        yield _decode(group, first, stop, with_headers)


def _side_by_side(group: Sequence[Batch]) -> tuple[Buffer, Sequence[Batch]]:
    """The bytes that all batches of a group lie in: as they were fetched where nothing was compressed."""
    source = group[0].source
    if all(batch.source is source for batch in group):
        return source, group
    moved = []
    position = 0
    for batch in group:
        end = position + batch.end - batch.start
        moved.append(Batch(batch.header, b"", position, end))
        position = end
    return b"".join(memoryview(batch.source)[batch.start : batch.end] for batch in group), moved


def _decode(group: Sequence[Batch], first: int, stop: int, with_headers: bool) -> Records:
    joined, group = _side_by_side(group)
    data = np.frombuffer(memoryview(joined), dtype=np.uint8)
    starts, ends = _record_bounds(joined, data, group)
    headers_of = [batch.header for batch in group]
    counts = [header.record_count for header in headers_of]

    def of_batch(values: Sequence[int]) -> Ints:
        return np.repeat(np.array(values, dtype=np.int64), counts)

    deltas, at = read_varints(data, starts + 1)  # the attributes of a record are unused
    offset_deltas, at = _bounded(data, at, ends)
    last = of_batch([header.last_offset_delta for header in headers_of])
    if ((offset_deltas < 0) | (offset_deltas > last)).any():
        raise _corrupt("an offset outside its batch")
    offsets = of_batch([header.base_offset for header in headers_of]) + offset_deltas
    if (np.diff(offsets) <= 0).any():
        raise _corrupt("offsets do not rise")
    by_broker = of_batch([header.has_log_append_time for header in headers_of])
    timestamps = of_batch(
        [
            header.max_timestamp if header.has_log_append_time else header.base_timestamp
            for header in headers_of
        ]
    ) + np.where(by_broker != 0, 0, deltas)
    # Also of records that are not wanted: what follows a damaged length is damaged.
    key_starts, key_lengths = _field(data, at, ends)
    value_starts, value_lengths = _field(data, key_starts + np.maximum(key_lengths, 0), ends)
    header_counts, header_starts = _bounded(data, value_starts + np.maximum(value_lengths, 0), ends)
    if ((header_counts < 0) | (header_counts * 2 > ends - header_starts)).any():
        raise _corrupt("a count of headers that cannot be")
    if (header_starts[header_counts == 0] != ends[header_counts == 0]).any():
        raise _corrupt("a record does not end where its length says")

    wanted = slice(*np.searchsorted(offsets, (first, stop)))
    source = pa.py_buffer(joined)
    headers = None
    if with_headers:
        headers = _headers(source, data, header_counts[wanted], header_starts[wanted], ends[wanted])
    return Records(
        offsets[wanted],
        timestamps[wanted],
        by_broker[wanted].astype(np.int32),
        _slices(source, key_starts[wanted], key_lengths[wanted]),
        _slices(source, value_starts[wanted], value_lengths[wanted]),
        headers,
    )


def _record_bounds(joined: Buffer, data: Bytes, group: Sequence[Batch]) -> tuple[Ints, Ints]:
    """Where each record begins, behind its length, and where it ends.

    Where a record ends is known only from its length, so batches are walked through record by record: all of them side
    by side, the first records, the second ones, and so on; or, where a few hold many records, one after the other.
    """
    counts = np.array([batch.header.record_count for batch in group], dtype=np.int64)
    firsts = np.array([batch.start for batch in group], dtype=np.int64)
    limits = np.array([batch.end for batch in group], dtype=np.int64)
    if counts.max() * _FEWEST_SIDE_BY_SIDE <= counts.sum():
        starts, ends = _side_by_side_bounds(data, counts, firsts, limits)
    else:
        begins = np.array(_begins(joined, group), dtype=np.int64)
        sizes, starts = read_varints(data, begins)
        ends = starts + _checked_sizes(sizes, starts, np.repeat(limits, counts))
    behind = ends[np.cumsum(counts) - 1]
    if (behind != limits).any():
        raise _corrupt("bytes follow the last record of a batch")
    return starts, ends


def _side_by_side_bounds(data: Bytes, counts: Ints, firsts: Ints, limits: Ints) -> tuple[Ints, Ints]:
    # By falling counts, so that those with an nth record are always the first ones.
    order = np.argsort(-counts, kind="stable")
    places = (np.cumsum(counts) - counts)[order]
    at, limits, counts = firsts[order], limits[order], counts[order]
    starts = np.empty(int(counts.sum()), dtype=np.int64)
    ends = np.empty_like(starts)
    alive = len(order)
    for nth in range(int(counts[0])):
        while counts[alive - 1] <= nth:
            alive -= 1
        sizes, start = read_varints(data, at[:alive])
        end = start + _checked_sizes(sizes, start, limits[:alive])
        starts[places[:alive] + nth] = start
        ends[places[:alive] + nth] = end
        at = end
    return starts, ends


def _begins(joined: Buffer, group: Sequence[Batch]) -> list[int]:
    """Where the length of each record stands. What is no length is found out later, with the lengths of all records."""
    view = memoryview(joined)
    begins: list[int] = []
    began = begins.append
    try:
        for batch in group:
            position = batch.start
            for _ in range(batch.header.record_count):
                began(position)
                size = view[position]
                if size < 0x80:
                    position += 1 + (size >> 1)
                    continue
                byte = view[position + 1]
                if byte < 0x80:
                    position += 2 + ((size & 0x7F | byte << 7) >> 1)
                    continue
                size = size & 0x7F | (byte & 0x7F) << 7
                shift = 14
                position += 2
                while byte > 0x7F:
                    byte = view[position]
                    position += 1
                    size |= (byte & 0x7F) << shift
                    shift += 7
                    if shift > 35:
                        raise _corrupt("a record's length of more than 32 bits")
                position += size >> 1
    except IndexError:
        raise _corrupt("the records end inside a number") from None
    return begins


def _checked_sizes(sizes: Ints, starts: Ints, limits: Ints) -> Ints:
    if ((sizes < _LEAST_RECORD_BYTES) | (sizes > limits - starts)).any():
        raise _corrupt("a record is too short for its fields, or ends behind its batch")
    return sizes


def _bounded(data: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Numbers that must lie within their records."""
    if (at >= ends).any():
        raise _corrupt("a record ends before its fields do")
    values, at = read_varints(data, at)
    if (at > ends).any():
        raise _corrupt("a record ends inside a number")
    return values, at


def _field(data: Bytes, at: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Start and length of a key or value of each record; the length of null is -1."""
    lengths, at = _bounded(data, at, ends)
    if ((lengths < _NULL) | (lengths > ends - at)).any():
        raise _corrupt("a field is longer than its record")
    return at, lengths


def _slices(source: pa.Buffer, starts: Ints, lengths: Ints, kind: pa.DataType | None = None) -> Any:
    """Slices of one buffer, in rising order, as an Arrow array; a length of -1 is null.

    The buffer is looked at as an array of slices and gaps in turn, and the slices are taken out of it in native code.
    """
    kind = kind or pa.binary()
    count = len(starts)
    if not count:
        return pa.array([], type=kind)
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + np.maximum(lengths, 0)
    pieces = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(bounds), source])
    nulls = lengths == _NULL
    taken = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=nulls if nulls.any() else None)
    return pieces.take(taken)


HEADERS_TYPE: Final = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
    )
)


def _headers(source: pa.Buffer, data: Bytes, counts: Ints, at: Ints, ends: Ints) -> pa.ListArray:
    """The headers of each record, read for all records side by side: the first ones, the second ones, and so on.

    Null for a record without headers, as the Kafka connector has it.
    """
    bounds = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=bounds[1:])
    total = int(bounds[-1])
    columns = [np.empty(total, dtype=np.int64) for _ in range(4)]
    rows = np.flatnonzero(counts)
    at = at.copy()
    nth = 0
    while len(rows):
        key_at, key_lengths = _field(data, at[rows], ends[rows])
        if (key_lengths < 0).any():
            raise _corrupt("a header without a key")
        value_at, value_lengths = _field(data, key_at + key_lengths, ends[rows])
        places = bounds[rows] + nth
        for column, values in zip(columns, (key_at, key_lengths, value_at, value_lengths), strict=True):
            column[places] = values
        at[rows] = value_at + np.maximum(value_lengths, 0)
        nth += 1
        done = rows[counts[rows] == nth]
        if (at[done] != ends[done]).any():
            raise _corrupt("a record does not end where its length says")
        rows = rows[counts[rows] > nth]
    keys = _slices(source, columns[0], columns[1], pa.string())
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        raise _corrupt("a header key that is not UTF-8") from None
    values = _slices(source, columns[2], columns[3])
    items = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    nulls = counts == 0
    return pa.ListArray.from_arrays(
        pa.array(bounds, type=pa.int32()),
        items,
        type=HEADERS_TYPE,
        mask=pa.array(nulls) if nulls.any() else None,
    )


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, message)
