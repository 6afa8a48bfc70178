"""Where one partition's batches lie in one segment.

Guarantee: the runs cover every entry of the partition in the segment, in offset order, without overlap, so a
search for an offset ends in the one run that can hold it. An entry is made per run of adjacent entries, cut
at a fixed size: few where a partition writes alone, one per batch where partitions interleave.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from storage.format import CorruptLog

if TYPE_CHECKING:
    from storage.segment import Segment

BYTES_PER_RUN: Final = 24
NO_TIMESTAMP: Final = -1


class PartitionIndex:
    """Offsets, positions and timestamps of one partition in one segment.

    Four parallel arrays, one item per run: first offset, position, size, and the running maximum of the
    timestamps up to the end of the run. Of a sealed segment they are loaded on demand; the fields beside them
    always stand.
    """

    __slots__ = (
        "bases",
        "blob_crc",
        "blob_position",
        "end_offset",
        "epochs",
        "max_timestamp",
        "partition",
        "positions",
        "runs",
        "segment",
        "size_bytes",
        "sizes",
        "start_offset",
        "timestamps",
    )

    def __init__(self, segment: Segment, partition: int, start_offset: int) -> None:
        self.segment = segment
        self.partition = partition
        self.start_offset = start_offset
        """The first offset that the segment can hold of the partition."""
        self.end_offset = start_offset
        self.max_timestamp = NO_TIMESTAMP
        self.epochs: list[tuple[int, int]] = []
        """(term, first offset written under it), in order."""
        self.runs = 0
        self.size_bytes = 0
        """Of all its entries."""
        self.blob_position = 0
        self.blob_crc = 0
        self.bases = array("Q")
        self.positions = array("I")
        self.sizes = array("I")
        self.timestamps = array("q")

    def add(
        self, base_offset: int, end_offset: int, position: int, size: int, term: int, timestamp: int, run: int
    ) -> bool:
        """Take in an entry of `size` bytes at `position`; whether it began a new run (of at most `run`
        bytes)."""
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.end_offset = end_offset
        self.size_bytes += size
        sizes = self.sizes
        if sizes:
            grown = sizes[-1] + size
            if grown <= run and self.positions[-1] + sizes[-1] == position and self.epochs[-1][0] == term:
                sizes[-1] = grown
                self.timestamps[-1] = self.max_timestamp
                return False
        if not self.epochs or self.epochs[-1][0] != term:
            self.epochs.append((term, base_offset))
        self.bases.append(base_offset)
        self.positions.append(position)
        sizes.append(size)
        self.timestamps.append(self.max_timestamp)
        self.runs += 1
        return True

    def take_back(self, base_offset: int, size: int, undo: tuple[bool, bool, int]) -> None:
        """Undo the last `add`, of an entry of `size` bytes; `undo` is what `state` and it said: whether it began a run,
        and a term, and the latest timestamp before it."""
        began_run, began_term, timestamp = undo
        self.end_offset = base_offset
        self.size_bytes -= size
        self.max_timestamp = timestamp
        if began_term:
            self.epochs.pop()
        if began_run:
            for part in (self.bases, self.positions, self.sizes, self.timestamps):
                part.pop()
            self.runs -= 1
        else:
            self.sizes[-1] -= size
            self.timestamps[-1] = timestamp

    # Footers and checkpoints.

    def encode_blob(self) -> bytes:
        """The arrays, little-endian, one after another."""
        return b"".join(
            _to_little(part) for part in (self.bases, self.positions, self.sizes, self.timestamps)
        )

    def decode_blob(self, blob: bytes, path: str) -> None:
        if len(blob) != self.runs * BYTES_PER_RUN or crc32c(blob) != self.blob_crc:
            raise CorruptLog(path, self.blob_position, f"the index of partition {self.partition} is damaged")
        view = memoryview(blob)
        at = 0
        for part in (self.bases, self.positions, self.sizes, self.timestamps):
            end = at + self.runs * part.itemsize
            del part[:]
            part.frombytes(view[at:end])
            if sys.byteorder == "big":
                part.byteswap()
            at = end

    def unload(self) -> None:
        """Give the arrays of a sealed segment back; `Segment.load` brings them again."""
        self.bases = array("Q")
        self.positions = array("I")
        self.sizes = array("I")
        self.timestamps = array("q")

    def summary(self) -> list[Any]:
        """Everything but the arrays, for msgpack."""
        return [
            self.partition,
            self.start_offset,
            self.end_offset,
            self.max_timestamp,
            self.runs,
            self.size_bytes,
            self.blob_position,
            self.blob_crc,
            [[term, offset] for term, offset in self.epochs],
        ]

    @classmethod
    def from_summary(cls, segment: Segment, summary: list[Any]) -> PartitionIndex:
        partition, start, end, max_timestamp, runs, size_bytes, blob_position, blob_crc, epochs = summary
        index = cls(segment, partition, start)
        index.end_offset = end
        index.max_timestamp = max_timestamp
        index.runs = runs
        index.size_bytes = size_bytes
        index.blob_position = blob_position
        index.blob_crc = blob_crc
        index.epochs = [(term, offset) for term, offset in epochs]
        return index


def _to_little(part: array[int]) -> bytes:
    if sys.byteorder == "big":
        part = part[:]
        part.byteswap()
    return part.tobytes()
