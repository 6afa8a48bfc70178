"""Whether a segment's sidecar tells the truth, as far as its segment can tell."""

from __future__ import annotations

from bisect import bisect_left, insort

from storage.disk import Disk
from storage.format import CorruptLog, settled_path
from storage.scan import ScannedEntry
from storage.segment import Segment
from storage.settled import Settled, read_settled


class SettledCheck:
    """Compares a sidecar with its segment: hand it every entry, then ask for the verdict."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        """Raises OSError."""
        self._segment = segment
        self._path = settled_path(segment.path)
        self._settled: Settled | None = None
        self._damage: CorruptLog | None = None
        try:
            self._settled = read_settled(disk, segment.path, segment.salt)
        except CorruptLog as error:
            self._damage = error
        self._written: dict[tuple[int, int], list[int]] = {}
        """Per partition and producer with an aborted range, the base offsets of its transactional batches."""
        if self._settled is not None:
            for partition, found in self._settled.partitions.items():
                self._written |= {(partition, one.producer_id): [] for one in found.aborted}

    def add(self, entry: ScannedEntry) -> None:
        header = entry.header
        bases = self._written.get((entry.partition, header.producer_id))
        if bases is not None and header.is_transactional:
            insort(bases, header.base_offset)

    def verdict(self) -> bool:
        """Whether there is a sidecar, and all is well with it. Raises CorruptLog where it isn't."""
        if self._damage is not None:
            raise self._damage
        settled, segment = self._settled, self._segment
        if settled is None:
            return False
        header = segment.header
        if segment.state != "SEALED":
            raise self._wrong("there are outcomes of a segment that is not sealed")
        if settled.owner[1:] != (header.topic_id, header.segment_id, header.generation):
            raise self._wrong("it names another segment")
        if settled.partitions.keys() != segment.indexes.keys():
            raise self._wrong("it has other partitions than its segment")
        for partition, found in settled.partitions.items():
            index = segment.indexes[partition]
            if found.end != index.end_offset or not index.start_offset <= found.first <= found.end:
                raise self._wrong(f"partition {partition} has other offsets than its segment")
            for producer_id, first, last in found.aborted:
                what = f"partition {partition}: the aborted range {first}..{last} of producer {producer_id}"
                if not index.start_offset <= first <= last < index.end_offset:
                    raise self._wrong(f"{what} is outside the segment")
                bases = self._written[partition, producer_id]
                at = bisect_left(bases, first)
                # Compaction takes the batches and leaves what was known of them.
                if not header.generation and (at == len(bases) or bases[at] > last):
                    raise self._wrong(f"{what} has no batch")
        return True

    def _wrong(self, reason: str) -> CorruptLog:
        return CorruptLog(self._path, 0, reason)
