"""What a replicated range has appended and can still lose: enough of each entry to take it back.

Guarantee: `take_back` of the latest, one after the other, leaves offsets, indexes, leader epochs and producers as they
were before; `commit` of the oldest forgets how, and is what moves a high watermark.
"""

from __future__ import annotations

from storage.partition import PartitionLog
from storage.producers import RevocableProducerStates
from storage.segment import Segment


class Uncommitted:
    """One entry. `index` is 0 until it is written: a leader gives offsets before the entry has its place."""

    __slots__ = (
        "after",
        "base_offset",
        "end_offset",
        "has_producer",
        "index",
        "log",
        "lsn",
        "payload",
        "position",
        "roll",
        "segment",
        "size",
        "transaction",
        "undo",
    )

    def __init__(self, log: PartitionLog | None, base_offset: int, end_offset: int, size: int) -> None:
        self.log = log
        """None: an entry of no partition."""
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size = size
        """In the file, bytes."""
        self.has_producer = False
        self.transaction: tuple[int, int, int] | None = None
        """(producer id, epoch, txn_seq) of a batch that is part of one."""
        self.index = 0
        self.after = self.lsn = 0
        """Positions before and with it; those of one turn have its begin for both, but for the last one."""
        self.payload = b""
        """Until it is written, to know it by."""
        self.segment: Segment | None = None
        self.position = 0
        self.undo: tuple[bool, bool, int] = (False, False, 0)
        self.roll: Rolled | None = None

    def into_index(self, segment: Segment, position: int, term: int, timestamp: int, run_bytes: int) -> None:
        """It is about to be written there."""
        self.segment, self.position = segment, position
        segment.entries += 1
        log = self.log
        if log is None:
            return
        index = segment.indexes.get(log.partition)
        if index is None:
            index = segment.index_of(log.partition, self.base_offset)
        if not index.runs:
            log.add_index(index)
        latest, terms = index.max_timestamp, len(index.epochs)
        began_run = index.add(
            self.base_offset, self.end_offset, position, self.size, term, timestamp, run_bytes
        )
        segment.runs += began_run
        self.undo = (began_run, len(index.epochs) > terms, latest)

    def take_back(self) -> None:
        """The latest of its partition, and of the file: it never was."""
        log = self.log
        if log is None:
            return
        log.end_offset = self.base_offset
        if self.has_producer:
            revocable(log).revoke()
        segment = self.segment
        if segment is None:
            return
        index = segment.indexes[log.partition]
        index.take_back(self.base_offset, self.size, self.undo)
        segment.runs -= self.undo[0]
        if not index.runs:
            log.take_back_index()
            del segment.indexes[log.partition]

    def commit(self) -> None:
        """The oldest: it stands."""
        segment = self.segment
        assert segment is not None
        segment.committed_end = self.position + self.size
        log = self.log
        if log is None:
            return
        log.high_watermark = self.end_offset
        if self.has_producer:
            revocable(log).committed()


class Rolled:
    """A roll, until the parent is about to get its footer."""

    __slots__ = ("committed", "ends", "producers", "segments")

    def __init__(self, ends: dict[int, int], producers: bytes) -> None:
        self.segments: tuple[Segment, Segment]
        """Parent and child, once the entry is written."""
        self.ends = ends
        """Of every partition that has any, as of the roll: what the footer names."""
        self.producers = producers
        """Their packed snapshot of that moment."""
        self.committed = False


def revocable(log: PartitionLog) -> RevocableProducerStates:
    """The producers of a replicated range's partition."""
    producers = log.producers
    assert isinstance(producers, RevocableProducerStates)
    return producers
