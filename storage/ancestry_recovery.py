"""What came before a replicated range, looked at when it is opened: the ancestors' footers, before the own log."""

from __future__ import annotations

from storage import ancestry
from storage.format import ANCESTORS_NAME, CorruptLog
from storage.recovery import Recovery
from storage.segment import Segment


class AncestryRecovery(Recovery):
    """Offsets, indexes, leader epochs and producers begin where the ancestors ended."""

    before: tuple[Segment, ...] = ()
    """The segments that are there still."""

    def read_ancestry(self) -> None:
        """Raises CorruptLog, OSError."""
        self.ancestry = ancestry.read(self.disk, self.directory)

    def close(self) -> None:
        for segment in self.before:
            segment.close()
        super().close()

    def take_ancestors(self) -> None:
        """Where the own log has lost its begin, they are of no use any more: they lie below the log starts, too."""
        path = f"{self.directory}/{ANCESTORS_NAME}"
        for one in self.ancestry.segments:
            if not self.disk.exists(f"{self.directory}/{one.name}" if self.directory else one.name):
                if self.before:
                    raise CorruptLog(path, 0, f"{one.name} is absent, and {self.before[-1].path} is not")
                continue
            segment = Segment.open(
                self.disk,
                self.directory,
                one.segment_id,
                self.cache,
                readonly=True,
                generation=one.generation,
            )
            self.before = (*self.before, segment)
            if segment.state != "SEALED" or segment.header.topic_id != self.topic_id:
                raise CorruptLog(segment.path, 0, "it is no sealed segment of this topic")
            ancestry.keep_what_counts(segment, one.spans)
            self._take_ancestor(segment)
        for log in self.partitions:
            end = self.ancestry.ends.get(log.partition, 0)
            if log.partition in self.known and log.end_offset != end:
                raise CorruptLog(
                    path, 0, f"partition {log.partition} ends at offset {log.end_offset} there, not at {end}"
                )

    def _take_ancestor(self, segment: Segment) -> None:
        for partition, index in sorted(segment.indexes.items()):
            self.snapshots[partition] = segment
            self._take_index(segment, partition, index)
