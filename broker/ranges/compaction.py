"""When and what is compacted where ranges have groups of their own: each replica's sealed segments, by that node alone.

What goes is decided as on a broker alone (`storage.compaction`), a range at a time; how the new files take the place of
the old ones is `storage.replica_compaction`. Replicas need not agree on when: of what readers have to see, the last
value of every key at its offset, none of them takes anything.

Guarantees: a segment takes part when all in it is below the last stable offsets of this replica, and what somebody may
yet ask for by its place, transactional batches whose outcome is not on record, stays as it is. A leader leaves alone
what a follower that answers has not got yet, and segments that are being fetched from here: nobody has to begin anew
for its sake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from broker import topic_config
from broker.compactor import Worker, is_compacted, policy_of
from broker.ranges.hosting import Hosted, Hosting, Stage
from broker.ranges.records import directory
from broker.ranges.topics import RangeTopics, ReplicatedTopic
from broker.ranges.view import SILENT_TIMEOUTS
from broker.settled_files import settled_partitions
from raftish.progress import Stage as Sending
from storage.clock import Periodic, Scheduler
from storage.compacted_names import Compacted
from storage.compaction import Candidate, Choice, choose
from storage.compaction_job import Job, JobSegment, Outcome, Rewritten
from storage.replica import RangeReplica
from storage.replica_compaction import ReplicaCompaction
from storage.segment import Segment
from txn.partition import Partition

log = logging.getLogger("sealog")

NOT_YET = Compacted(0, None, False)


class RangeCompactor:
    """Compacts one range after another, every `interval_ms`, and goes on at once where there is more to do.

    `resolved(partition)`: below that offset all outcomes are on record, as far as this node has heard."""

    def __init__(
        self,
        scheduler: Scheduler,
        topics: RangeTopics,
        hosting: Hosting,
        worker: Worker,
        resolved: Callable[[Partition], int],
        *,
        interval_ms: int,
        max_keys: int,
    ) -> None:
        self._scheduler = scheduler
        self._topics = topics
        self._hosting = hosting
        self._worker = worker
        self._resolved = resolved
        self._max_keys = max_keys
        self._is_running = False
        self._is_closed = False
        self._failed: set[int] = set()
        """Groups that are left alone until the next interval, so that the others have their turn."""
        self._sweeps = Periodic(scheduler, interval_ms, self._begin)

    def close(self) -> None:
        self._is_closed = True
        self._sweeps.close()

    def _begin(self) -> None:
        self._failed.clear()
        self.run()

    def run(self) -> None:
        """Begin the next compaction, if there is one to do and none is under way."""
        if self._is_running or self._is_closed:
            return
        for hosted in list(self._hosting.hosted.values()):
            topic = self._topic(hosted)
            compaction = hosted.compaction
            if topic is None or compaction is None or hosted.number in self._failed:
                continue
            choice = self._choose(topic, hosted, compaction.replica)
            if choice is not None:
                self._is_running = True
                log.info("compacting %s: %s", directory(hosted.number), choice.reason)
                job = self._job(topic, hosted.number, compaction.replica, choice)
                compaction.begin()
                self._worker.run(job, partial(self._worked, hosted, compaction))
                return

    # What.

    def _topic(self, hosted: Hosted) -> ReplicatedTopic | None:
        """Of a range that may be compacted just now."""
        record, compaction = hosted.record, hosted.compaction
        topic = self._topics.get(record.topic)
        if topic is None or topic.id.bytes != record.topic_id or record.last >= len(topic.partitions):
            return None
        if hosted.stage is not Stage.HERE or compaction is None or not compaction.may_begin:
            return None
        # What came before a range is never written anew, so no mark of deletion may go; what ends is linked elsewhere.
        if record.becomes or compaction.replica.is_retired or compaction.replica.ancestry.segments:
            return None
        restores = self._hosting.restores
        if restores.is_replacing(hosted.number) or restores.is_served(hosted.number):
            return None
        served = topic.partitions[record.first : record.last + 1]
        return topic if all(one.log is compaction.replica for one in served) else None

    def _choose(self, topic: ReplicatedTopic, hosted: Hosted, replica: RangeReplica) -> Choice | None:
        def setting(name: str) -> str:
            return topic_config.effective(topic.config, name, self._topics.config)

        if not is_compacted(setting):
            return None
        needed = needed_from(hosted)
        candidates = [
            self._candidate(topic, segment, replica.names.get(segment.segment_id, NOT_YET), needed)
            for segment in replica.segments
            if segment.state == "SEALED"
        ]
        return choose(candidates, policy_of(setting), self._scheduler.now_ms())

    @staticmethod
    def _candidate(
        topic: ReplicatedTopic, segment: Segment, known: Compacted, needed: int | None
    ) -> Candidate:
        assert segment.numbering is not None
        is_needed = needed is not None and segment.numbering.last_index >= needed
        is_stable = all(
            not index.runs or index.end_offset <= topic.partitions[partition].last_stable_offset
            for partition, index in segment.indexes.items()
        )
        return Candidate(
            segment.segment_id,
            segment.header.parents,
            segment.file_size,
            max((index.max_timestamp for index in segment.indexes.values()), default=-1),
            is_stable and not is_needed,
            known.cleaned_ms,
            known.tombstones,
            segment.header.first,
            segment.header.last,
        )

    def _job(self, topic: ReplicatedTopic, group: int, replica: RangeReplica, choice: Choice) -> Job:
        segments = {segment.segment_id: segment for segment in replica.segments}
        return Job(
            topic=topic.name,
            directory=directory(group),
            segments=[
                JobSegment(
                    segment_id=segment_id,
                    generation=segments[segment_id].header.generation,
                    learn=segment_id in choice.dirty,
                    without_tombstones=segment_id in choice.without_tombstones,
                    outcomes=dict(settled_partitions(topic.partitions, segments[segment_id])),
                    recorded={
                        partition: self._resolved(topic.partitions[partition])
                        for partition in segments[segment_id].indexes
                    },
                )
                for segment_id in choice.segments
            ],
            max_keys=self._max_keys,
        )

    # The new files.

    def _worked(self, hosted: Hosted, compaction: ReplicaCompaction, outcome: Outcome | None) -> None:
        if self._is_closed:
            return
        if outcome is None or not compaction.is_working:
            # Or the replica is gone from here, or is another one by now.
            if compaction.is_working:
                compaction.give_up()
            self._over(hosted, failed=True)
            return

        def adopted(error: Exception | None) -> None:
            if error is not None:
                log.warning("compaction of %s: %s", directory(hosted.number), error)
            else:
                _say(hosted, outcome.segments)
            self._over(hosted, failed=error is not None)

        compaction.adopt(outcome.segments, adopted)

    def _over(self, hosted: Hosted, *, failed: bool) -> None:
        self._is_running = False
        if failed:
            self._failed.add(hosted.number)
        self._scheduler.call_soon(self.run)


def needed_from(hosted: Hosted) -> int | None:
    """Of a range that is led here, the first entry that some follower has yet to get by an append."""
    group = hosted.range.group if hosted.range is not None else None
    if group is None or group.raft.leadership is None:
        return None
    raft = group.raft
    silent_ms = SILENT_TIMEOUTS * raft.config.election_timeout_ms
    return min(
        (
            progress.match + 1
            for node, progress in group.raft.leadership.progress.items()
            if node != raft.node_id
            and progress.stage is not Sending.SNAPSHOT
            and raft.now_ms - progress.heard_ms < silent_ms
        ),
        default=None,
    )


def _say(hosted: Hosted, rewritten: list[Rewritten]) -> None:
    for one in rewritten:
        log.info(
            "%s: segment %d compacted from %d to %d bytes, from %d to %d records",
            directory(hosted.number),
            one.segment_id,
            one.size_before,
            one.size_bytes,
            one.records_before,
            one.records,
        )
