"""When and what is compacted, and how the new files take the old ones' place (design, section 5)."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import Protocol

from broker import layouts, topic_config
from broker.topic import Topic
from broker.topics import Topics
from storage.clock import Periodic, Scheduler
from storage.compaction import Candidate, Choice, Job, JobDone, JobSegment, Outcome, Policy, Rewritten, choose
from storage.disk import Disk
from storage.format import segment_name
from storage.layout import LayoutChanged
from storage.segment import Segment
from txn.settlement import Settlement

log = logging.getLogger("sealog")


class Worker(Protocol):
    """Where jobs are done; one at a time."""

    def run(self, job: Job, done: JobDone) -> None: ...


class Compactor:
    """Compacts one topic after another, every `interval_ms`, and goes on at once where there is more to do."""

    def __init__(
        self,
        topics: Topics,
        settlement: Settlement,
        disk: Disk,
        scheduler: Scheduler,
        worker: Worker,
        *,
        interval_ms: int,
        max_keys: int,
    ) -> None:
        self._topics = topics
        self._layout_store = topics.layout_store
        self._settlement = settlement
        self._disk = disk
        self._scheduler = scheduler
        self._worker = worker
        self._max_keys = max_keys
        self._cache = topics.cache
        self._running = False
        self._closed = False
        self._failed: set[Topic] = set()
        """Left alone until the next interval, so that the others have their turn."""
        self._sweeps = Periodic(scheduler, interval_ms, self._begin)

    def close(self) -> None:
        self._closed = True
        self._sweeps.close()

    def _begin(self) -> None:
        self._failed.clear()
        self.run()

    def run(self) -> None:
        """Begin the next compaction, if there is one to do and none is under way."""
        if self._running or self._closed:
            return
        for topic in self._topics:
            choice = self._choose(topic) if topic not in self._failed else None
            if choice is not None:
                self._running = True
                log.info("compacting %s: %s", topic.name, choice.reason)
                self._worker.run(self._job(topic, choice), partial(self._done, topic))
                return

    # -- what

    def _choose(self, topic: Topic) -> Choice | None:
        def setting(name: str) -> str:
            return topic_config.effective(topic.config, name, self._topics.config)

        if "compact" not in setting("cleanup.policy").split(","):
            return None
        layout = self._layout_store.get(topic.name)
        if layout is None:
            return None
        policy = Policy(
            int(setting("min.compaction.lag.ms")),
            int(setting("max.compaction.lag.ms")),
            int(setting("delete.retention.ms")),
            float(setting("min.cleanable.dirty.ratio")),
        )
        unsettled = self._settlement.unsettled_segments()
        segments = self._segments(topic)
        candidates = []
        for record in layout["segments"]:
            segment = segments.get(record["id"])
            if segment is None:
                continue
            candidates.append(
                Candidate(
                    segment.segment_id,
                    tuple(record["parents"]),
                    segment.file_size,
                    max((index.max_timestamp for index in segment.indexes.values()), default=-1),
                    record["state"] == "SEALED"
                    and segment.segment_id not in unsettled
                    and self._is_stable(topic, segment),
                    record["cleaned_ms"],
                    record["tombstones"],
                )
            )
        return choose(candidates, policy, self._scheduler.now_ms())

    @staticmethod
    def _segments(topic: Topic) -> dict[int, Segment]:
        return {number: one for number, one in topic.segments().items() if one.state == "SEALED"}

    @staticmethod
    def _is_stable(topic: Topic, segment: Segment) -> bool:
        return all(
            index.end_offset <= topic.partitions[partition].last_stable_offset
            for partition, index in segment.indexes.items()
        )

    def _job(self, topic: Topic, choice: Choice) -> Job:
        segments = self._segments(topic)
        return Job(
            directory=layouts.directory(topic.name, topic.id),
            segments=[
                JobSegment(
                    segment_id=segment_id,
                    generation=segments[segment_id].header.generation,
                    learn=segment_id in choice.dirty,
                    without_tombstones=segment_id in choice.without_tombstones,
                    aborted={
                        partition: found
                        for partition, index in segments[segment_id].indexes.items()
                        if (
                            found := topic.partitions[partition].transactions.aborted_within(
                                index.start_offset, index.end_offset - 1
                            )
                        )
                    },
                )
                for segment_id in choice.segments
            ],
            max_keys=self._max_keys,
        )

    # -- the new files

    def _done(self, topic: Topic, outcome: Outcome | None) -> None:
        if self._closed:
            return
        if outcome is None or self._topics.get(topic.name) is not topic:
            self._running = False
            self._failed.add(topic)
            self.run()
            return
        rewritten = outcome.segments
        now_ms = self._scheduler.now_ms()

        def published(error: Exception | None) -> None:
            self._running = False
            if self._closed:
                return
            if error is not None:
                log.warning("compaction of %s: %s", topic.name, error)
                self._failed.add(topic)
                if isinstance(error, LayoutChanged):
                    # Else the layout may name the new files; a restart finds out.
                    self._remove(topic, rewritten)
                return
            self._switch(topic, rewritten)
            self.run()

        self._layout_store.change(
            topic.name, lambda current: layouts.with_compacted(current, rewritten, now_ms), published
        )

    def _switch(self, topic: Topic, rewritten: list[Rewritten]) -> None:
        """The layout durably names the new files: readers go there from this turn on."""
        if self._topics.get(topic.name) is not topic:
            return
        directory = layouts.directory(topic.name, topic.id)
        segments = self._segments(topic)
        for one in rewritten:
            old = segments.get(one.segment_id)
            if old is None or old.header.generation == one.generation:
                continue
            new = Segment.open(
                self._disk, directory, one.segment_id, self._cache, generation=one.generation, readonly=True
            )
            for ranges in topic.ranges:
                if old in ranges.segments:
                    ranges.replace_segment(old, new)
            old.close()
            with contextlib.suppress(OSError):
                # What cannot be removed now a start removes.
                self._disk.start_remove(old.path, lambda _: None)
            log.info(
                "%s: segment %d compacted from %d to %d bytes, from %d to %d records",
                topic.name,
                one.segment_id,
                one.size_before,
                one.size_bytes,
                one.records_before,
                one.records,
            )

    def _remove(self, topic: Topic, rewritten: list[Rewritten]) -> None:
        directory = layouts.directory(topic.name, topic.id)
        current = {
            segment.segment_id: segment.header.generation for segment in self._segments(topic).values()
        }
        for one in rewritten:
            if current.get(one.segment_id) != one.generation:
                with contextlib.suppress(OSError):
                    self._disk.remove(f"{directory}/{segment_name(one.segment_id, one.generation)}")
