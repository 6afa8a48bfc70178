"""Which partition a row goes to when it doesn't say so: that of its key, as Kafka's own clients choose it."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_M: Final = np.uint32(0x5BD1E995)
_SEED: Final = 0x9747B28C


def murmur2(keys: pa.BinaryArray) -> NDArray[np.uint32]:
    """Kafka's hash of each key, for all keys side by side: the first four bytes of each, the second, and so on."""
    count = len(keys)
    bounds = np.frombuffer(keys.buffers()[1], dtype=np.int32)[keys.offset : keys.offset + count + 1].astype(
        np.int64
    )
    source = keys.buffers()[2]
    data = np.concatenate(
        [
            np.frombuffer(source, dtype=np.uint8) if source is not None else np.empty(0, np.uint8),
            np.zeros(4, np.uint8),
        ]
    )
    starts, lengths = bounds[:-1], bounds[1:] - bounds[:-1]
    with np.errstate(over="ignore"):
        hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
        words = lengths >> 2
        rows = np.flatnonzero(words)
        nth = 0
        while len(rows):
            at = starts[rows] + 4 * nth
            k = (
                data[at].astype(np.uint32)
                | data[at + 1].astype(np.uint32) << 8
                | data[at + 2].astype(np.uint32) << 16
                | data[at + 3].astype(np.uint32) << 24
            )
            k *= _M
            k ^= k >> np.uint32(24)
            k *= _M
            hashes[rows] = hashes[rows] * _M ^ k
            nth += 1
            rows = rows[words[rows] > nth]
        tail_at, tail = starts + 4 * words, lengths & 3
        for index in (2, 1, 0):
            some = tail > index
            hashes[some] ^= data[tail_at[some] + index].astype(np.uint32) << np.uint32(8 * index)
        hashes[tail > 0] *= _M
        hashes ^= hashes >> np.uint32(13)
        hashes *= _M
        hashes ^= hashes >> np.uint32(15)
    return hashes


def partition_of_keys(keys: pa.BinaryArray, partitions: int) -> NDArray[np.int32]:
    """Keys must not be null."""
    return ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
