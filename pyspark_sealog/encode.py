"""Rows to record batches, column by column.

Guarantee: the bytes are those of `wire.records.build_batch` for the same records; no Python object is made for a row,
but for rows with headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from typing_extensions import Buffer

from pyspark_sealog.varints import Ints, varint_table
from wire.batch import COMPRESSION_NONE, TRANSACTIONAL_BIT, pack_header
from wire.compression import compress
from wire.records import write_varint

_OVERHEAD: Final = 20
"""About what a record takes beside its key, value and headers."""


class Encoded:
    """The rows of one partition as encoded records, ready to be cut into batches."""

    def __init__(self, records: bytes, bounds: Ints, chunks: list[tuple[int, int]]) -> None:
        self._records = memoryview(records)
        self._bounds = bounds
        self._chunks = chunks

    def batches(
        self, *, compression: int, timestamp_ms: int, producer_id: int, epoch: int, sequence: int
    ) -> Iterator[tuple[bytes, Buffer, int]]:
        """(header, records, their number) of each batch, with successive sequence numbers from `sequence` on.

        Records that are not compressed are not copied: they keep the whole of this alive.
        """
        for first, stop in self._chunks:
            records: Buffer = self._records[self._bounds[first] : self._bounds[stop]]
            if compression != COMPRESSION_NONE:
                records = compress(compression, bytes(records))
            head = pack_header(
                records,
                record_count=stop - first,
                attributes=TRANSACTIONAL_BIT | compression,
                last_offset_delta=stop - first - 1,
                base_timestamp=timestamp_ms,
                max_timestamp=timestamp_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            sequence = (sequence + stop - first) & 0x7FFFFFFF
            yield head, records, stop - first


def encode(
    keys: pa.BinaryArray | None, values: pa.BinaryArray, headers: pa.ListArray | None, batch_bytes: int
) -> Encoded:
    """Rows of one partition, in order, in batches of about `batch_bytes` before compression; null is kept."""
    count = len(values)
    key_sizes = _sizes(keys, count)
    value_sizes = _sizes(values, count)
    tails = _headers(headers, count)
    tail_sizes = _sizes(tails, count) if tails is not None else np.ones(count, dtype=np.int64)
    chunks = _chunks(np.maximum(key_sizes, 0) + np.maximum(value_sizes, 0) + tail_sizes, batch_bytes)
    deltas = np.arange(count, dtype=np.int64)
    for first, stop in chunks:
        deltas[first:stop] -= first
    zero = np.zeros(count, dtype=np.int64)
    key_head = _varints(zero, zero, deltas, key_sizes)
    value_head = _varints(value_sizes)
    body_sizes = (
        _sizes(key_head, count)
        + np.maximum(key_sizes, 0)
        + _sizes(value_head, count)
        + np.maximum(value_sizes, 0)
        + tail_sizes
    )
    records = pc.binary_join_element_wise(
        _varints(body_sizes),
        key_head,
        *(() if keys is None else (pc.fill_null(keys, b""),)),
        value_head,
        pc.fill_null(values, b""),
        pa.scalar(b"\0", pa.binary()) if tails is None else tails,
        pa.scalar(b"", pa.binary()),  # not once for all: its making imports pandas
    )
    bounds = np.frombuffer(records.buffers()[1], dtype=np.int32)[: count + 1].astype(np.int64)
    return Encoded(records.buffers()[2] or b"", bounds, chunks)


def _sizes(column: pa.BinaryArray | None, count: int) -> Ints:
    """The length of each field, -1 for null."""
    if column is None:
        return np.full(count, -1, dtype=np.int64)
    sizes: Ints = pc.fill_null(pc.binary_length(column), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def _varints(*columns: NDArray[np.int64]) -> pa.BinaryArray:
    """Numbers of one row side by side, as one binary field for each row."""
    tables = [varint_table(column) for column in columns]
    cells = np.concatenate([table for table, _ in tables], axis=1)
    used = np.concatenate([one for _, one in tables], axis=1)
    bounds = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum(used.sum(axis=1), out=bounds[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(cells), [None, pa.py_buffer(bounds), pa.py_buffer(cells[used].tobytes())]
    )


def _chunks(sizes: Ints, batch_bytes: int) -> list[tuple[int, int]]:
    """Runs of rows whose sizes add up to `batch_bytes` at the most; a larger row is a run of its own."""
    ends = np.cumsum(sizes + _OVERHEAD)
    chunks = []
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + batch_bytes, side="right"))
        stop = max(stop, first + 1)
        chunks.append((first, stop))
        first = stop
    return chunks


def _headers(headers: pa.ListArray | None, count: int) -> pa.BinaryArray | None:
    """The headers of each row as a record ends with them, or None where no row has any."""
    if headers is None or headers.null_count == count or not len(headers.flatten()):
        return None
    encoded = []
    for of_row in headers.to_pylist():
        out = bytearray()
        write_varint(out, len(of_row or ()))
        for header in of_row or ():
            name = header["key"].encode()
            write_varint(out, len(name))
            out += name
            value = header["value"]
            write_varint(out, -1 if value is None else len(value))
            out += value or b""
        encoded.append(bytes(out))
    return pa.array(encoded, type=pa.binary())
