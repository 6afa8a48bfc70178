"""When and what is compacted, and how the new files take the old ones' place (design, section 5)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from broker import layouts, topic_config
from broker.removals import Removals
from broker.settled_files import settled_partitions
from broker.settled_segments import SettledSegments
from broker.topic import Topic
from broker.topics import Topics
from storage.clock import Periodic, Scheduler
from storage.compaction import Candidate, Choice, Policy, choose
from storage.compaction_job import Job, JobDone, JobSegment, Outcome, Rewritten
from storage.disk import Disk
from storage.format import CorruptLog, segment_name, settled_name
from storage.layout import LayoutChanged
from storage.segment import Segment
from txn.metastore import MetaStore
from txn.outcomes import forget_segments, merge_resolved

log = logging.getLogger("sealog")


class Worker(Protocol):
    """Where jobs are done; one at a time."""

    def run(self, job: Job, done: JobDone) -> None: ...


Setting = Callable[[str], str]
"""What is in force for a topic, by the setting's name."""


def is_compacted(setting: Setting) -> bool:
    return "compact" in setting("cleanup.policy").split(",")


def policy_of(setting: Setting) -> Policy:
    return Policy(
        int(setting("min.compaction.lag.ms")),
        int(setting("max.compaction.lag.ms")),
        int(setting("delete.retention.ms")),
        float(setting("min.cleanable.dirty.ratio")),
        int(setting("segment.bytes")),
    )


class Compactor:
    """Compacts one topic after another, every `interval_ms`, and goes on at once where there is more to do."""

    def __init__(
        self,
        topics: Topics,
        store: MetaStore,
        settled: SettledSegments,
        removals: Removals,
        disk: Disk,
        scheduler: Scheduler,
        worker: Worker,
        *,
        interval_ms: int,
        max_keys: int,
    ) -> None:
        self._topics = topics
        self._store = store
        self._layout_store = topics.layout_store
        self._settled = settled
        self._removals = removals
        self._disk = disk
        self._scheduler = scheduler
        self._worker = worker
        self._max_keys = max_keys
        self._cache = topics.cache
        self._running = False
        self._closed = False
        self._failed: set[Topic] = set()
        """Left alone until the next interval, so that the others have their turn."""
        self._unread: dict[Topic, tuple[Job, Outcome]] = {}
        """The layout names new files that could not be opened. They must not be written anew meanwhile, as the next job
        would do: it gives its files the same names."""
        self._sweeps = Periodic(scheduler, interval_ms, self._begin)

    def close(self) -> None:
        self._closed = True
        self._sweeps.close()

    def _begin(self) -> None:
        self._failed.clear()
        unread, self._unread = self._unread, {}
        for topic, (job, outcome) in unread.items():
            self._take_over(topic, job, outcome)
        self.run()

    def run(self) -> None:
        """Begin the next compaction, if there is one to do and none is under way."""
        if self._running or self._closed:
            return
        for topic in self._topics:
            left_alone = topic in self._failed or topic in self._unread
            choice = None if left_alone else self._choose(topic)
            if choice is not None:
                self._running = True
                log.info("compacting %s: %s", topic.name, choice.reason)
                job = self._job(topic, choice)
                self._worker.run(job, partial(self._done, topic, job))
                return

    # -- what

    def _choose(self, topic: Topic) -> Choice | None:
        def setting(name: str) -> str:
            return topic_config.effective(topic.config, name, self._topics.config)

        if not is_compacted(setting):
            return None
        layout = self._layout_store.get(topic.name)
        if layout is None:
            return None
        policy = policy_of(setting)
        is_settled = self._settled.look()
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
                    is_settled(topic, segment),
                    record["cleaned_ms"],
                    record["tombstones"],
                    record["first"],
                    record["last"],
                )
            )
        return choose(candidates, policy, self._scheduler.now_ms())

    @staticmethod
    def _segments(topic: Topic) -> dict[int, Segment]:
        return {number: one for number, one in topic.segments().items() if one.state == "SEALED"}

    def _job(self, topic: Topic, choice: Choice) -> Job:
        segments = self._segments(topic)
        return Job(
            topic=topic.name,
            directory=layouts.directory(topic.name, topic.id),
            segments=[
                JobSegment(
                    segment_id=segment_id,
                    generation=segments[segment_id].header.generation,
                    learn=segment_id in choice.dirty,
                    without_tombstones=segment_id in choice.without_tombstones,
                    outcomes=dict(settled_partitions(topic.partitions, segments[segment_id])),
                )
                for segment_id in choice.segments
            ],
            max_keys=self._max_keys,
            join=choice.join,
        )

    # -- the new files

    def _done(self, topic: Topic, job: Job, outcome: Outcome | None) -> None:
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
            self._take_over(topic, job, outcome)
            self.run()

        def changed(current: layouts.Layout) -> layouts.Layout:
            if job.join:
                return layouts.with_joined(
                    current, {one.segment_id: one.generation for one in job.segments}, rewritten[0]
                )
            return layouts.with_compacted(current, rewritten, now_ms)

        more_ops = merge_resolved(self._store, outcome.joined, rewritten[0].segment_id) if job.join else []
        self._layout_store.change(topic.name, changed, published, more_ops=more_ops)

    def _take_over(self, topic: Topic, job: Job, outcome: Outcome) -> None:
        """The layout durably names the new files: readers go there from this turn on, or once they can be opened."""
        if self._topics.get(topic.name) is not topic:
            return
        try:
            if job.join:
                self._switch_joined(topic, outcome)
            else:
                self._switch(topic, outcome.segments)
        except (OSError, CorruptLog) as error:
            log.warning("compaction of %s: its files are read as they were, for now: %s", topic.name, error)
            self._unread[topic] = (job, outcome)

    def _switch(self, topic: Topic, rewritten: list[Rewritten]) -> None:
        """Does nothing anew where it is called again."""
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
            self._removals.remove_segment(old.path, partial(log.info, "%s is deleted", old.path))
            log.info(
                "%s: segment %d compacted from %d to %d bytes, from %d to %d records",
                topic.name,
                one.segment_id,
                one.size_before,
                one.size_bytes,
                one.records_before,
                one.records,
            )

    def _switch_joined(self, topic: Topic, outcome: Outcome) -> None:
        """As `_switch`: one file has taken the place of several."""
        (one,) = outcome.segments
        segments = self._segments(topic)
        olds = [segments[segment_id] for segment_id in (*outcome.joined, one.segment_id)]
        new = Segment.open(
            self._disk,
            layouts.directory(topic.name, topic.id),
            one.segment_id,
            self._cache,
            generation=one.generation,
            readonly=True,
        )
        for ranges in topic.ranges:
            if olds[-1] in ranges.segments:
                ranges.join_segments(olds, new)
        forget_segments(self._store, self._scheduler, outcome.joined)
        for old in olds:
            old.close()
            self._removals.remove_segment(old.path, partial(log.info, "%s is deleted", old.path))
        log.info(
            "%s: %d segments joined in segment %d, from %d to %d bytes",
            topic.name,
            len(olds),
            one.segment_id,
            one.size_before,
            one.size_bytes,
        )

    def _remove(self, topic: Topic, rewritten: list[Rewritten]) -> None:
        directory = layouts.directory(topic.name, topic.id)
        current = {
            segment.segment_id: segment.header.generation for segment in self._segments(topic).values()
        }
        for one in rewritten:
            if current.get(one.segment_id) != one.generation:
                # Not tried again: the next job, which gives its files these names, removes what is left.
                for name in (
                    settled_name(one.segment_id, one.generation),
                    segment_name(one.segment_id, one.generation),
                ):
                    with contextlib.suppress(OSError):
                        self._disk.remove(f"{directory}/{name}")
