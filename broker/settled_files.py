"""The sidecars of settled segments (`storage.settled`): written when all outcomes of a segment are known for good.

Nobody waits for them. What is missing at a start is written after it; compaction writes those of its own files.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence

from broker import layouts
from broker.settled_segments import SettledSegments
from broker.topic import Topic
from broker.topics import Topics
from storage.clock import Scheduler, Timer
from storage.disk import Disk
from storage.format import SETTLED_SUFFIX, parse_name, settled_path
from storage.segment import Segment
from storage.settled import Aborted, Owner, SettledPartition, SettledWriter, write_steps
from txn.partition import Partition

log = logging.getLogger("sealog")

INTERVAL_MS = 1_000
FAILED_PAUSE_MS = 60_000
SEGMENTS_PER_LOOK = 64
TOPICS_PER_LOOK = 16


def aborted_in(partition: Partition, segment: Segment) -> list[Aborted]:
    """The aborted ranges of one partition in one segment, by first offset, none reaching out of it."""
    index = segment.indexes[partition.index]
    first, last = index.start_offset, index.end_offset - 1
    if not index.runs:
        return []
    found = partition.transactions.aborted_within(first, last)
    return sorted(
        (Aborted(producer_id, max(first, begin), min(last, end)) for producer_id, begin, end in found),
        key=lambda one: one.first,
    )


def settled_partitions(
    partitions: Sequence[Partition], segment: Segment
) -> Iterator[tuple[int, SettledPartition]]:
    """The outcomes of a settled segment, partition by partition; what the log start hides is not known any more."""
    for number in sorted(segment.indexes):
        index, partition = segment.indexes[number], partitions[number]
        first = min(max(index.start_offset, partition.log_start_offset), index.end_offset)
        yield number, SettledPartition(first, index.end_offset, aborted_in(partition, segment))


def owner_of(topic: Topic, segment: Segment) -> Owner:
    return Owner(topic.name, topic.id, segment.segment_id, segment.header.generation)


class SettledFiles:
    """Writes one sidecar after another. Idle, without a timer, where every sealed segment has one."""

    def __init__(self, topics: Topics, settled: SettledSegments, disk: Disk, scheduler: Scheduler) -> None:
        self._topics = topics
        self._settled = settled
        self._disk = disk
        self._scheduler = scheduler
        self._unlisted: deque[Topic] = deque(topics)
        """Topics that were there at the start: which sidecars they have is not known yet."""
        self._waiting: deque[tuple[Topic, int]] = deque()
        """Sealed segments without a sidecar."""
        self._writer: SettledWriter | None = None
        self._timer: Timer | None = None
        self._closed = False
        topics.on_segment_sealed = self._sealed
        self._look_in(INTERVAL_MS)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.stop()

    def _sealed(self, topic: Topic, segment_id: int) -> None:
        self._waiting.append((topic, segment_id))
        self._look_in(INTERVAL_MS)

    def _look_in(self, delay_ms: int) -> None:
        if self._timer is None and self._writer is None and not self._closed:
            self._timer = self._scheduler.call_later(delay_ms, self._look)

    def _look(self) -> None:
        """Begin with the next segment that is settled, if there is one."""
        self._timer = None
        listed = bool(self._unlisted)
        for _ in range(min(TOPICS_PER_LOOK, len(self._unlisted))):
            self._list(self._unlisted.popleft())
        is_settled = self._settled.look()
        segments: dict[Topic, dict[int, Segment]] = {}
        for _ in range(min(SEGMENTS_PER_LOOK, len(self._waiting))):
            topic, segment_id = self._waiting.popleft()
            if self._topics.get(topic.name) is not topic:
                continue
            if topic not in segments:
                segments[topic] = topic.segments()
            segment = segments[topic].get(segment_id)
            if segment is None or self._disk.exists(settled_path(segment.path)):
                continue  # it is gone, or compaction wrote it anew
            if is_settled(topic, segment):
                self._write(topic, segment)
                return
            self._waiting.append((topic, segment_id))
        if self._waiting or self._unlisted:
            self._look_in(0 if listed else INTERVAL_MS)

    def _list(self, topic: Topic) -> None:
        names = self._disk.list(layouts.directory(topic.name, topic.id))
        found = {
            (parsed.segment_id, parsed.generation)
            for name in names
            if (parsed := parse_name(name)) is not None and parsed.suffix == SETTLED_SUFFIX
        }
        self._waiting += [
            (topic, segment_id)
            for segment_id, segment in topic.segments().items()
            if segment.state == "SEALED" and (segment_id, segment.header.generation) not in found
        ]

    def _write(self, topic: Topic, segment: Segment) -> None:
        def wanted() -> bool:
            current = topic.segments().get(segment.segment_id)
            return self._topics.get(topic.name) is topic and current is segment

        def done(error: OSError | None) -> None:
            self._writer = None
            if error is not None and wanted():
                log.warning("the outcomes of %s are not written down yet: %s", segment.path, error)
                self._waiting.append((topic, segment.segment_id))
                self._look_in(FAILED_PAUSE_MS)
            else:
                self._look_in(0)

        steps = write_steps(
            self._disk,
            segment.path,
            segment.salt,
            owner_of(topic, segment),
            settled_partitions(topic.partitions, segment),
        )
        self._writer = SettledWriter(self._disk, self._scheduler, segment.path, steps, wanted, done)
