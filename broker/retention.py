"""Deleting by age and size, and rolling by age so that there is something to delete (design, section 11).

Log starts move first, durably; then one write takes the segments out of the layout; then what is known of their
outcomes goes, and the files. A crash between any two of these leaves a topic that opens, and the next sweep goes on.
"""

from __future__ import annotations

import logging
from functools import partial

from broker import layouts, topic_config
from broker.removals import Removals
from broker.settled_segments import SettledSegments
from broker.topic import Topic
from broker.topic_changes import TopicChanges
from broker.topics import Topics
from storage.clock import Periodic, Scheduler
from storage.range_log import RangeLog
from storage.retention import Candidate, Policy, Verdict, decide, newest_ms
from storage.segment import Segment
from txn.metastore import MetaStore
from txn.outcomes import forget_segments
from wire.errors import KafkaError

log = logging.getLogger("sealog")


class Retention:
    """Sweeps over all topics every `interval_ms`. Nobody waits for it."""

    def __init__(
        self,
        topics: Topics,
        changes: TopicChanges,
        store: MetaStore,
        settled: SettledSegments,
        removals: Removals,
        scheduler: Scheduler,
        *,
        interval_ms: int,
    ) -> None:
        self._topics = topics
        self._changes = changes
        self._store = store
        self._settled = settled
        self._removals = removals
        self._scheduler = scheduler
        self._busy: set[Topic] = set()
        self._closed = False
        self._sweeps = Periodic(scheduler, interval_ms, self._sweep_all)

    def close(self) -> None:
        self._closed = True
        self._sweeps.close()

    def _sweep_all(self) -> None:
        for topic in list(self._topics):
            self.sweep(topic)

    def sweep(self, topic: Topic) -> None:
        """Roll what is due, and begin to delete what is."""
        if topic in self._busy or self._closed:
            return
        now_ms = self._scheduler.now_ms()
        policy = self._policy(topic)
        for ranges in topic.ranges:
            self._roll_if_old(topic, ranges, policy, now_ms)
        if len(topic.segments()) <= len(topic.ranges):
            return  # active segments alone
        verdict = decide(self._candidates(topic), policy, now_ms)
        if verdict.hide:
            self._busy.add(topic)
            self._hide(topic, verdict)

    def _setting(self, topic: Topic, name: str) -> int:
        return int(topic_config.effective(topic.config, name, self._topics.config))

    def _policy(self, topic: Topic) -> Policy:
        cleanup = topic_config.effective(topic.config, "cleanup.policy", self._topics.config)
        per_partition = self._setting(topic, "retention.bytes")
        return Policy(
            "delete" in cleanup.split(","),
            self._setting(topic, "retention.ms"),
            per_partition * len(topic.partitions) if per_partition >= 0 else -1,
        )

    def _roll_if_old(self, topic: Topic, ranges: RangeLog, policy: Policy, now_ms: int) -> None:
        active = ranges.active
        if not any(index.runs for index in active.indexes.values()):
            return
        age_ms = now_ms - active.header.created_ms
        over = policy.delete and 0 <= policy.retention_ms < now_ms - newest_ms(active)
        if over or age_ms >= self._setting(topic, "segment.ms"):
            ranges.roll(lambda _: None)

    # -- what there is

    def _candidates(self, topic: Topic) -> list[Candidate]:
        is_settled = self._settled.look()
        segments = topic.segments()
        layout = self._topics.layout_store.get(topic.name)
        needed = {parent for ranges in topic.ranges for parent in self._needed_by(ranges)}
        found = []
        for record in layout["segments"] if layout is not None else ():
            segment_id = record["id"]
            if segment_id in segments:
                found.append(
                    self._candidate(
                        topic,
                        segments[segment_id],
                        tuple(record["parents"]),
                        ready=is_settled(topic, segments[segment_id]),
                        needed=segment_id in needed,
                    )
                )
        return found

    @staticmethod
    def _needed_by(ranges: RangeLog) -> tuple[int, ...]:
        """The last sealed segments tell a start which producers there are; the active one only from its own on."""
        ranges.expire_producers()
        if any(len(ranges.partition(index).producers) for index in range(ranges.first, ranges.last + 1)):
            return ranges.active.header.parents
        return ()

    @staticmethod
    def _candidate(
        topic: Topic, segment: Segment, parents: tuple[int, ...], *, ready: bool, needed: bool
    ) -> Candidate:
        hidden = True
        for number, index in segment.indexes.items():
            log_start = topic.partitions[number].log_start_offset
            hidden = hidden and (not index.runs or index.end_offset <= log_start)
        return Candidate(
            segment.segment_id,
            parents,
            segment.file_size if segment.state == "SEALED" else segment.end,
            newest_ms(segment),
            ready,
            hidden,
            needed,
        )

    # -- steps

    def _hide(self, topic: Topic, verdict: Verdict) -> None:
        """Nothing in these is there for readers any more."""
        hidden = set(verdict.hide)
        starts: dict[int, int] = {}
        for segment_id, segment in topic.segments().items():
            if segment_id in hidden:
                for partition, index in segment.indexes.items():
                    if index.runs:
                        starts[partition] = max(starts.get(partition, 0), index.end_offset)
        starts = {
            partition: offset
            for partition, offset in starts.items()
            if offset > topic.partitions[partition].log_start_offset
        }

        def moved(error: KafkaError | None) -> None:
            if error is not None or self._closed or self._topics.get(topic.name) is not topic:
                self._busy.discard(topic)
                return
            self._take_out(topic, verdict)

        if starts:
            self._changes.move_log_starts(topic, starts, moved)
        else:
            moved(None)

    def _take_out(self, topic: Topic, verdict: Verdict) -> None:
        """No layout names them any more."""
        removed = set(verdict.remove)
        if not removed:
            self._busy.discard(topic)
            return

        def changed(error: Exception | None) -> None:
            self._busy.discard(topic)
            if error is not None or self._closed or self._topics.get(topic.name) is not topic:
                return  # tried again by the next sweep, or by the next start
            forget_segments(self._store, self._scheduler, verdict.remove)
            self._remove_files(topic, verdict)

        self._topics.layout_store.change(topic.name, lambda layout: layouts.without(layout, removed), changed)

    def _remove_files(self, topic: Topic, verdict: Verdict) -> None:
        removed = set(verdict.remove)
        files: dict[int, Segment] = {}
        for ranges in topic.logs:
            for segment in ranges.segments:
                if segment.segment_id in removed:
                    files[segment.segment_id] = segment
                    ranges.drop_segment(segment)
        for segment_id, segment in files.items():
            segment.close()
            log.info("%s: segment %d goes: %s", topic.name, segment_id, verdict.reasons[segment_id])
            self._removals.remove_segment(segment.path, partial(log.info, "%s is deleted", segment.path))
