"""What sealed segments keep in memory and open: a bound shared by as many ranges as use it.

Guarantee: at most `max_files` sealed segments are open and at most `max_runs` index entries of theirs are
loaded at once (one more of either while it is being used). What was used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.index import PartitionIndex
    from storage.segment import Segment

DEFAULT_MAX_FILES = 256
DEFAULT_MAX_RUNS = 1_000_000


class SegmentCache:
    """Least recently used first, for open files and for loaded indexes."""

    def __init__(self, *, max_files: int = DEFAULT_MAX_FILES, max_runs: int = DEFAULT_MAX_RUNS) -> None:
        self.max_files = max_files
        self.max_runs = max_runs
        self.runs = 0
        self._files: OrderedDict[Segment, None] = OrderedDict()
        self._indexes: OrderedDict[PartitionIndex, None] = OrderedDict()

    @property
    def open_files(self) -> int:
        return len(self._files)

    def used_file(self, segment: Segment) -> None:
        files = self._files
        if segment in files:
            files.move_to_end(segment)
            return
        files[segment] = None
        while len(files) > self.max_files:
            oldest, _ = files.popitem(last=False)
            oldest.release_file()

    def used_index(self, index: PartitionIndex) -> None:
        indexes = self._indexes
        if index in indexes:
            indexes.move_to_end(index)
            return
        indexes[index] = None
        self.runs += index.runs
        while self.runs > self.max_runs and len(indexes) > 1:
            oldest, _ = indexes.popitem(last=False)
            self.runs -= oldest.runs
            oldest.unload()

    def forget(self, segment: Segment) -> None:
        """The segment is gone or closed: nothing of it counts any more."""
        self._files.pop(segment, None)
        for index in segment.indexes.values():
            if index in self._indexes:
                del self._indexes[index]
                self.runs -= index.runs
