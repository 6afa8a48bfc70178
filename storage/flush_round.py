"""One flush of everything a range has written: all its files side by side.

Guarantee: no high watermark moves before every file of the round is durable. So nothing in a child segment
counts before its parent does, and an entry's claim to durability speaks of all that precedes it. A file is flushed
by one log only, as a device tells of a failed flush once: where the parent is another range's, its log is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from storage.disk import Disk, FlushDone
from storage.partition import PartitionLog
from storage.segment import Segment

Predecessor = Callable[[Callable[[Exception | None], None]], None]
"""Tells the callback, never from within the call, when everything of a log that this one continues is durable."""


class FlushRound:
    """Flushes the segments that have unflushed bytes; `ends` are the partitions' ends that become durable by
    it."""

    def __init__(self, segments: list[Segment], ends: dict[PartitionLog, int], done: FlushDone) -> None:
        self.ends = ends
        self._marks = [(segment, segment.end) for segment in segments if segment.durable_end < segment.end]
        self._awaited = len(self._marks)
        self._done = done

    @property
    def has_marks(self) -> bool:
        """Whether any file has to be flushed."""
        return bool(self._marks)

    def start(self, disk: Disk, predecessors: Iterable[Predecessor] = (), folder: str | None = None) -> None:
        """`done` is called once: with None when all is durable and counts, with the first error otherwise. There is
        something to flush. `folder`: flushed as well, since a file in it is new."""
        if folder is not None:
            self._awaited += 1
            disk.start_flush_dir(folder, self._flushed)
        for predecessor in predecessors:
            self._awaited += 1
            predecessor(self._flushed)
        for segment, _ in self._marks:
            disk.start_flush(segment.file(), self._flushed)

    def _flushed(self, error: Exception | None) -> None:
        if self._awaited <= 0:
            return
        if error is not None:
            self._awaited = 0
            self._done(error if isinstance(error, OSError) else OSError(str(error)))
            return
        self._awaited -= 1
        if self._awaited:
            return
        for segment, end in self._marks:
            segment.durable_end = end
        for log, end_offset in self.ends.items():
            log.high_watermark = end_offset
        self._done(None)

    def cut(self, segment: Segment, end: int) -> None:
        """The file was cut there meanwhile, durably; what is written behind that is another round's. 0: it is gone."""
        self._marks = [
            (one, min(mark, end) if one is segment else mark)
            for one, mark in self._marks
            if end or one is not segment
        ]

    def abandon(self) -> None:
        """The range is closed or failed: whatever still comes back is not listened to."""
        self._awaited = 0
