"""Retention where ranges have groups of their own: each range's leader decides, every `interval_ms`.

It rolls what is old by an entry, so that all replicas cut at the same place, and wishes for log starts behind what goes
by age or size (`storage.retention`); what every replica does about them is `log_starts`. Size is counted per range: so
much per partition, times the number of its partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from broker import topic_config
from broker.ranges.hosting import Hosted, Hosting, Stage
from broker.ranges.log_starts import LogStarts
from broker.ranges.topics import RangeTopics, ReplicatedTopic
from storage.clock import Periodic, Scheduler
from storage.replica import RangeReplica
from storage.replica_front import is_hidden
from storage.retention import Candidate, Policy, decide, newest_ms
from storage.segment import Segment
from wire.errors import KafkaError

log = logging.getLogger("sealog")


class RangeRetention:
    """Of all ranges of a node. Nobody waits for it."""

    def __init__(
        self,
        scheduler: Scheduler,
        topics: RangeTopics,
        hosting: Hosting,
        log_starts: LogStarts,
        *,
        interval_ms: int,
    ) -> None:
        self._scheduler = scheduler
        self._topics = topics
        self._hosting = hosting
        self._log_starts = log_starts
        self._busy: set[int] = set()
        self._sweeps = Periodic(scheduler, interval_ms, self.sweep)

    def close(self) -> None:
        self._sweeps.close()

    def sweep(self) -> None:
        for hosted in list(self._hosting.hosted.values()):
            if hosted.stage is not Stage.HERE or hosted.range is None or hosted.record.retired:
                continue
            if hosted.front is not None:
                # The newest sealed segment of before may have become an older one.
                hosted.front.drop()
            if hosted.range.leads and hosted.range.knows_its_end and hosted.number not in self._busy:
                self._sweep_led(hosted, hosted.range.replica)

    def _sweep_led(self, hosted: Hosted, replica: RangeReplica) -> None:
        record = hosted.record
        topic = self._topics.get(record.topic)
        if topic is None or topic.id.bytes != record.topic_id or record.last >= len(topic.partitions):
            return
        now_ms = self._scheduler.now_ms()
        policy = self._policy(topic, record.last - record.first + 1)
        if self._is_due(topic, replica.active, policy, now_ms):
            replica.roll()
        verdict = decide(
            [self._candidate(topic, replica, segment) for segment in replica.segments], policy, now_ms
        )
        starts = self._starts_behind(topic, replica, verdict.hide)
        if not starts:
            return
        self._busy.add(hosted.number)

        def moved(error: KafkaError | None) -> None:
            self._busy.discard(hosted.number)
            if error is not None:
                log.info("retention of %s goes on later: %s", replica.directory, error)

        self._log_starts.move_log_starts(topic, starts, moved)

    def _setting(self, topic: ReplicatedTopic, name: str) -> int:
        return int(topic_config.effective(topic.config, name, self._topics.config))

    def _policy(self, topic: ReplicatedTopic, partitions: int) -> Policy:
        cleanup = topic_config.effective(topic.config, "cleanup.policy", self._topics.config)
        per_partition = self._setting(topic, "retention.bytes")
        return Policy(
            "delete" in cleanup.split(","),
            self._setting(topic, "retention.ms"),
            per_partition * partitions if per_partition >= 0 else -1,
        )

    def _is_due(self, topic: ReplicatedTopic, active: Segment, policy: Policy, now_ms: int) -> bool:
        if not any(index.runs for index in active.indexes.values()):
            return False
        if policy.delete and 0 <= policy.retention_ms < now_ms - newest_ms(active):
            return True
        return now_ms - active.header.created_ms >= self._setting(topic, "segment.ms")

    @staticmethod
    def _candidate(topic: ReplicatedTopic, replica: RangeReplica, segment: Segment) -> Candidate:
        is_sealed = segment.state == "SEALED"
        size = segment.file_size if is_sealed else segment.end
        if replica.is_ancestor(segment):
            # Other ranges have the rest of it.
            size = sum(index.size_bytes for index in segment.indexes.values())
        return Candidate(
            segment.segment_id,
            replica.parents_of(segment),
            size,
            newest_ms(segment),
            # Below the last stable offset: none of its records has an open outcome.
            is_sealed
            and all(
                index.end_offset <= topic.partitions[partition].last_stable_offset
                for partition, index in segment.indexes.items()
                if index.runs
            ),
            is_hidden(replica, segment),
            False,
        )

    @staticmethod
    def _starts_behind(
        topic: ReplicatedTopic, replica: RangeReplica, hide: tuple[int, ...]
    ) -> Mapping[int, int]:
        """Nothing in these segments is there for readers any more."""
        starts: dict[int, int] = {}
        for segment in replica.segments:
            if segment.segment_id in hide:
                for partition, index in segment.indexes.items():
                    if index.runs and index.end_offset > topic.partitions[partition].log_start_offset:
                        starts[partition] = max(starts.get(partition, 0), index.end_offset)
        return starts
