"""What a node knows of its cluster, where ranges have groups of their own: a `broker.cluster_view.ClusterView`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from broker.cluster_view import CURRENT_LAG, METADATA, NOBODY, Broker, Leadership, RangeStatus, range_name
from broker.ranges import moves
from broker.ranges.assignment import replication_factor
from broker.ranges.hosting import Hosted, Hosting, Stage
from broker.ranges.leaders import Leaders, Led
from broker.ranges.topics import RangeTopics
from broker.read_replica import Replica
from raftish.host import Group
from storage.clock import Scheduler
from txn import keys
from txn.partition import Partition

LATELY_MS: Final = 60_000
"""As in `broker.replication.view`."""
GOES_ON_MS: Final = 5_000
"""So long a batch of a transaction that is ahead of its turn may be waited for after a hand-over."""
SILENT_TIMEOUTS: Final = 1.5
"""A replica that has answered its leader nothing for so many election timeouts cannot take over."""


class RangesView:
    """`named` are the nodes that clients hear of, `here` the numbers of those that were heard lately; `metadata` is the
    metadata's group, `members` who belongs to it."""

    def __init__(
        self,
        node_id: int,
        clock: Scheduler,
        topics: RangeTopics,
        hosting: Hosting,
        leaders: Leaders,
        *,
        named: Callable[[], Sequence[Broker]],
        here: Callable[[], Collection[int]],
        metadata: Callable[[], Group | None],
        default_replication_factor: int,
    ) -> None:
        self.node_id = node_id
        self._clock = clock
        self._topics = topics
        self._hosting = hosting
        self._leaders = leaders
        self._named = named
        self._here = here
        self._metadata = metadata
        self._default_factor = default_replication_factor
        self._nobody = Leadership(NOBODY, -1, (), ())

    @property
    def fixed_members(self) -> bool:
        return False

    def brokers(self) -> Sequence[Broker]:
        return self._named()

    def controller(self) -> int:
        group = self._metadata()
        leader = group.leader if group is not None else None
        return NOBODY if leader is None else leader

    def coordinator(self, kind: int, key: str) -> int:
        return self.controller()

    # Partitions.

    def leads(self, partition: Partition) -> bool:
        leads: bool = getattr(partition.log, "leads", False)
        return leads

    def knows_end(self, partition: Partition) -> bool:
        return _knows_end(self._hosted(partition))

    def group_knows_end(self, group: int) -> bool:
        """As `knows_end`, of whatever range, also one that others have succeeded."""
        return _knows_end(self._hosting.hosted.get(group))

    def is_handed_over(self, partition: Partition) -> bool:
        """Whether writes can go nowhere for a moment, but may go on from here: this node leads the range that ends, or
        has a part in the one that begins, which nobody leads yet."""
        group = self._topics.group_of(partition)
        record = self._topics.ranges.get(group) if group is not None else None
        if group is None or record is None:
            return False
        if record.base_term:
            if self._was_never_led(group):
                return group in self._hosting.hosted
            if self.of_group(group).leader not in (NOBODY, self.node_id):
                return False
        return bool(getattr(partition.log, "is_retiring", False)) and self.leads(partition)

    def lineage(self, group: int) -> tuple[int, ...]:
        """The terms that this node, the range's leader, continues; its own is the last."""
        hosted = self._hosting.hosted.get(group)
        return hosted.range.lineage if hosted is not None and hosted.range is not None else ()

    def is_any_held(self) -> bool:
        return bool(self._hosting.handed_over)

    def is_held(self, partition: Partition) -> bool:
        """Whether another node is about to lead it in place of this one."""
        return self._topics.group_of(partition) in self._hosting.handed_over

    def led_lately(self, partition: Partition) -> bool:
        hosted = self._hosted(partition)
        if hosted is None:
            return False
        return self._clock.monotonic_ms() - hosted.led_since_monotonic_ms < LATELY_MS

    def goes_on(self, partition: Partition) -> bool:
        hosted = self._hosted(partition)
        if hosted is None or len(self.lineage(hosted.number)) < 2:
            return False
        return self._clock.monotonic_ms() - hosted.led_since_monotonic_ms < GOES_ON_MS

    def _hosted(self, partition: Partition) -> Hosted | None:
        """What it is served from here."""
        group = self._topics.serving_group(partition)
        return self._hosting.hosted.get(group) if group is not None else None

    def leadership(self, partition: Partition | None) -> Leadership:
        """As clients hear of it: a leader that they are not told how to reach is none (as in Kafka)."""
        group = self._topics.group_of(partition) if partition is not None else None
        if group is None:
            return self._nobody
        assert partition is not None
        known = self._or_of_parent(group, partition, self.of_group(group))
        if known.leader in (NOBODY, self.node_id) or any(one.id == known.leader for one in self._named()):
            return known
        return replace(known, leader=NOBODY)

    def _was_never_led(self, group: int) -> bool:
        """So far as this node knows. It may have been voted for already."""
        if self.of_group(group).leader != NOBODY:
            return False
        hosted = self._hosting.hosted.get(group)
        replica = hosted.replica if hosted is not None else None
        if replica is not None:
            return not replica.last_index
        return self.of_group(group).epoch <= self._topics.ranges[group].base_term

    def _or_of_parent(self, group: int, partition: Partition, known: Leadership) -> Leadership:
        """As long as a range that has just begun never had a leader, the one of before is where clients are served."""
        record = self._topics.ranges.get(group)
        if record is None or not record.parents or not self._was_never_led(group):
            return known
        for parent in record.parents:
            of_parent = self._topics.ranges.get(parent)
            if of_parent is not None and of_parent.first <= partition.index <= of_parent.last:
                return self.of_group(parent)
        return known

    def of_group(self, group: int) -> Leadership:
        """Of one range, by what this node's replica heard, or by what others say."""
        record = self._topics.ranges.get(group)
        if record is None:
            return self._nobody
        led = self._leaders.get(group)
        hosted = self._hosting.hosted.get(group)
        if hosted is not None and hosted.range is not None and hosted.range.group is not None:
            raft = hosted.range.group.raft
            voters = tuple(sorted(raft.membership.voters))
            if hosted.stage is Stage.HERE and raft.leader == self.node_id:
                own = self.led(hosted)
                return Leadership(self.node_id, raft.term, voters, own.in_sync)
            if led is None or led.term < raft.term or led.leader == self.node_id:
                leader = raft.leader if raft.leader not in (None, self.node_id) else None
                return Leadership(NOBODY if leader is None else leader, raft.term, voters, voters)
        if led is None:
            return Leadership(NOBODY, -1, record.replicas, record.replicas)
        return Leadership(led.leader, led.term, led.voters, led.in_sync)

    def leader_of(self, group: int) -> int | None:
        """As far as it is known here."""
        leader = self.of_group(group).leader
        return leader if leader != NOBODY else None

    def words(self) -> list[list[object]]:
        """What this node knows of who leads what."""
        found = []
        for group in self._topics.ranges:
            hosted = self._hosting.hosted.get(group)
            if hosted is not None and hosted.range is not None and hosted.range.leads:
                found.append(self.led(hosted).words(group))
                continue
            known = self.of_group(group)
            if known.leader != NOBODY:
                led = self._leaders.get(group)
                if led is None or (led.leader, led.term) != (known.leader, known.epoch):
                    led = Led(known.leader, known.epoch, known.replicas, known.in_sync, 0)
                found.append(led.words(group))
        return found

    def said_of(self, group: int) -> Led | None:
        """What the group's leader says of it, this node or another."""
        hosted = self._hosting.hosted.get(group)
        if hosted is not None and hosted.range is not None and hosted.range.leads:
            return self.led(hosted)
        return self._leaders.get(group)

    def led(self, hosted: Hosted) -> Led:
        """What this node says of a group that it leads."""
        assert hosted.range is not None
        assert hosted.range.group is not None
        raft = hosted.range.group.raft
        lag = self._lag(hosted.range.group)
        voters = tuple(sorted(raft.membership.voters))
        in_sync = tuple(node for node in voters if lag.get(node, 0) <= CURRENT_LAG)
        learners = tuple(sorted(raft.membership.learners))
        record = self._topics.ranges.get(hosted.number)
        step, is_whole, is_here = -1, False, False
        if record is not None and raft.leadership is not None and raft.memberships.index <= raft.commit:
            progress = raft.leadership.progress
            is_here = all(one.match for one in progress.values())
            behind = {node for node, one in progress.items() if one.match < raft.memberships.index}
            is_whole = not behind
            if moves.is_done(record.goal, raft.membership) and behind <= set(record.replicas):
                step = record.step
        replica = hosted.range.replica
        before: set[int] = set()
        if replica.is_retired:
            before = {keys.range_of(segment.segment_id) for segment in replica.segments}
        return Led(
            self.node_id,
            raft.term,
            voters,
            in_sync,
            hosted.led_since_ms,
            learners,
            step,
            is_whole,
            is_here,
            replica.is_retired,
            tuple(sorted(before)),
        )

    def _lag(self, group: Group) -> dict[int, int]:
        """By replica: entries behind. One that answers nothing counts as behind by all, though it may be heard."""
        raft = group.raft
        lag = {self.node_id: 0}
        if raft.leadership is not None:
            silent_ms = SILENT_TIMEOUTS * raft.config.election_timeout_ms
            for node, progress in raft.leadership.progress.items():
                if node != self.node_id:
                    away = 0 if raft.now_ms - progress.heard_ms < silent_ms else CURRENT_LAG + 1
                    lag[node] = max(raft.log.last_index - progress.match, away)
        return lag

    def replicas(self, partition: Partition) -> Sequence[Replica]:
        """Its followers, as a consumer of another rack may be sent to them (KIP-392). What they show is at most one
        heartbeat behind, so the one that has nearly all has the offset."""
        hosted = self._hosted(partition)
        if hosted is None or not self.leads(partition):
            return ()
        led = self.led(hosted)
        racks = {one.id: one.rack for one in self._named()}
        return [
            Replica(node, racks[node], partition.log_start_offset, partition.high_watermark)
            for node in led.in_sync
            if node != self.node_id and node in racks
        ]

    # The cluster.

    def ranges(self) -> Sequence[RangeStatus]:
        found = []
        metadata = self._metadata()
        if metadata is not None:
            raft = metadata.raft
            found.append(
                RangeStatus(
                    METADATA,
                    tuple(sorted(raft.membership.voters)),
                    self.controller(),
                    raft.term,
                    tuple(sorted(raft.membership.learners)),
                    self._lag(metadata) if raft.is_leader else {},
                    is_fixed=True,
                )
            )
        ranges = self._topics.ranges
        return found + [self._status(group) for group in sorted(ranges) if not ranges[group].retired]

    def _status(self, group: int) -> RangeStatus:
        record = self._topics.ranges[group]
        known = self.of_group(group)
        led = self._leaders.get(group)
        hosted = self._hosting.hosted.get(group)
        since_ms = led.since_ms if led is not None and led.leader == known.leader else 0
        lag = {node: CURRENT_LAG + 1 for node in known.replicas if node not in known.in_sync}
        learners = led.learners if led is not None and led.leader == known.leader else ()
        if known.leader == self.node_id and hosted is not None and hosted.range is not None:
            learners = self.led(hosted).learners
            since_ms = hosted.led_since_ms
            if hosted.range.group is not None:
                lag = self._lag(hosted.range.group)
        return RangeStatus(
            range_name(record.topic, record.first, record.last),
            known.replicas,
            known.leader,
            known.epoch,
            tuple(sorted({*learners, *record.target}.difference(known.replicas))),
            lag,
            since_ms,
            wanted=record.factor,
            barred=frozenset(record.left),
            is_moving=bool(record.target or record.becomes),
        )

    def away(self) -> Collection[int]:
        group, here = self._metadata(), self._here()
        return [node for node in group.raft.membership if node not in here] if group is not None else ()

    def replication_factor(self, wanted: int) -> int:
        group = self._metadata()
        nodes = len(group.raft.membership.voters) if group is not None else 1
        return replication_factor(wanted, nodes, self._default_factor)


def _knows_end(hosted: Hosted | None) -> bool:
    return hosted is not None and hosted.range is not None and hosted.range.knows_its_end
