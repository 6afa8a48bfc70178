"""Zigzag varints for whole columns at once, both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import ErrorCode, KafkaError

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


def read_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The numbers that begin at these positions, and the positions behind them.

    A number that is cut off at the end of the data ends behind it. Raises KafkaError(CORRUPT_MESSAGE).
    """
    first = data.take(at, mode="clip")
    values = (first & 0x7F).astype(np.uint64)
    at = at + 1
    open_ = np.flatnonzero(first & 0x80)
    shift = 7
    while len(open_):
        if shift > 63:
            raise KafkaError(ErrorCode.corrupt_message, "a number of more than 64 bits")
        byte = data.take(at[open_], mode="clip")
        values[open_] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[open_] += 1
        open_ = open_[(byte & 0x80) != 0]
        shift += 7
    return (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64), at


def varint_table(values: NDArray[Any]) -> tuple[Bytes, NDArray[np.bool_]]:
    """The encoded numbers as rows of a table, and which of its cells are used.

    `table[used]` is all numbers one after the other; tables can be put side by side first.
    """
    signed = np.asarray(values, dtype=np.int64)
    left = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
    columns: list[Bytes] = []
    used = [np.ones(len(signed), dtype=np.bool_)]
    while True:
        more = left > 0x7F
        columns.append(((left & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))).astype(np.uint8))
        if not more.any():
            return np.stack(columns, axis=1), np.stack(used, axis=1)
        used.append(more)
        left = left >> np.uint64(7)
