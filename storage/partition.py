"""One partition's log: its offsets, what is durable of it, and the chain of segments that hold it.

Guarantees: log start <= high watermark <= end offset; none of the three ever moves back in the life of a
range log, but for the end offset of a replicated one, where what is not committed can be truncated.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from storage.index import PartitionIndex
from storage.producers import ProducerStates
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from storage.segment import Segment


class PartitionLog:
    """Offsets of one partition. Only its range log moves `end_offset` and `high_watermark`."""

    __slots__ = (
        "end_offset",
        "high_watermark",
        "indexes",
        "log_start_offset",
        "partition",
        "producers",
        "starts",
    )

    def __init__(self, partition: int, start_offset: int, producers: ProducerStates) -> None:
        self.partition = partition
        self.log_start_offset = start_offset
        """The first offset a client may read."""
        self.end_offset = start_offset
        """The next offset to be assigned."""
        self.high_watermark = start_offset
        """The end of what is durable (design, D3)."""
        self.producers = producers
        self.starts: list[int] = []
        self.indexes: list[PartitionIndex] = []
        """The segments that hold entries of the partition, in order; `starts` are their first offsets."""

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, its first offset), in order, each epoch once."""
        merged: list[tuple[int, int]] = []
        for index in self.indexes:
            for term, offset in index.epochs:
                if not merged or merged[-1][0] != term:
                    merged.append((term, offset))
        return merged

    @property
    def size_bytes(self) -> int:
        """Of its entries in all segments, those below the log start included as long as their segment lives."""
        return sum(index.size_bytes for index in self.indexes)

    def advance_log_start(self, offset: int) -> None:
        """Hide everything below `offset`; lower than now changes nothing. The owner has made it durable.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) above the high watermark.
        """
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"the log start cannot pass the high watermark {self.high_watermark}",
            )
        self.log_start_offset = max(self.log_start_offset, offset)

    def add_index(self, index: PartitionIndex) -> None:
        """A segment that continues this log."""
        self.starts.append(index.start_offset)
        self.indexes.append(index)

    def take_back_index(self) -> None:
        """The last segment has nothing of this log any more."""
        self.starts.pop()
        self.indexes.pop()

    def replace_segment(self, old: Segment, new: Segment) -> None:
        """The same offsets in another file."""
        for number, index in enumerate(self.indexes):
            if index.segment is old:
                self.indexes[number] = new.indexes[self.partition]

    def join_segments(self, olds: Sequence[Segment], new: Segment) -> None:
        """The offsets of several files, which follow each other, in one."""
        gone = [number for number, index in enumerate(self.indexes) if index.segment in olds]
        if gone:
            self.indexes[gone[0] : gone[-1] + 1] = [new.indexes[self.partition]]
            self.starts[:] = [index.start_offset for index in self.indexes]

    def drop_segment(self, segment: Segment) -> None:
        """Nothing at or above the log start lies there."""
        kept = [index for index in self.indexes if index.segment is not segment]
        self.indexes[:] = kept
        self.starts[:] = [index.start_offset for index in kept]

    def chain_position(self, offset: int) -> int:
        """The number, in `indexes`, of the segment in which `offset` lies or would lie."""
        return max(0, bisect_right(self.starts, offset) - 1)
