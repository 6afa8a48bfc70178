"""What moves a group of the new protocol on, whoever asked: topics, targets, timers, and the way to the store.

Guarantees:

- Nobody is told of anything that is not durable: an answer waits for all that its group has on the way to the
  store. Where that fails, the group is again what it was and the waiting are told so.
- All that one call changes in a group is one atomic batch.
- A member that is not heard of within its session, or does not do its part of a rebalance within its rebalance
  timeout, is out, and its partitions are free.

Source: the consumer groups of Kafka's group coordinator; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from broker.groups.config import GroupConfig
from broker.groups.consumer.assignors import ASSIGNORS, Subscriber
from broker.groups.consumer.config import ConsumerConfig
from broker.groups.consumer.group import Books, ConsumerGroup, GroupChange, Timers, Write
from broker.groups.consumer.member import Member, MemberState, Partitions, Profile
from broker.groups.consumer.reconcile import reconcile
from broker.groups.consumer.record import make_change
from broker.groups.consumer.topics import TopicPatterns, TopicSource, topics_hash
from broker.groups.deadlines import Deadlines
from broker.groups.group import Budget
from broker.groups.outbox import Outbox
from broker.groups.record import GroupRecord
from wire.errors import ErrorCode, KafkaError

Stored: TypeAlias = Callable[[Exception | None], None]
ChangeStore: TypeAlias = Callable[[str, GroupChange, Stored], None]
"""store(group id, change, done): `done(error)` is called once, when all of it is durable or none of it ever will be.

Changes of one group become durable in their order.
"""

SHORTEST_INTERVAL_MS: Final = 500
"""Between two heartbeats of a member, while they are so few that it costs nothing."""

MS_PER_MEMBER: Final = 5
"""So that heartbeats stay at 200 a second or less, up to the interval that is configured."""

Answer = TypeVar("Answer")


class Shared(Protocol):
    """What groups of both protocols have in common."""

    @property
    def config(self) -> GroupConfig: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def deadlines(self) -> Deadlines: ...

    @property
    def budget(self) -> Budget: ...

    now_ms: int


class Core:
    """All groups of the new protocol. What may answer somebody is to be called inside the shared outbox."""

    def __init__(
        self, config: ConsumerConfig, shared: Shared, topics: TopicSource, store: ChangeStore
    ) -> None:
        self.config = config
        self.shared = shared
        self.topics = topics
        self.patterns = TopicPatterns(topics)
        self.books = Books(shared.budget, self.patterns)
        self.groups: dict[str, ConsumerGroup] = {}
        self.when_fenced: Callable[[ConsumerGroup, Collection[Member]], bool] = lambda _group, _members: False
        """Asked before members are taken out: True where the group has become a classic one without them."""
        self._store = store

    # -- groups

    def adopt(self, group: ConsumerGroup) -> None:
        """Take a group in and keep its time."""
        self.groups[group.group_id] = group
        group.open(self.books, self._changed)
        for member in group.members.values():
            self.watch(group, member)

    def forget(self, group: ConsumerGroup) -> None:
        """Drop a group from memory."""
        for timers in group.timers.values():
            self._stop(timers)
        group.timers.clear()
        group.close()
        del self.groups[group.group_id]

    def replace(self, group: ConsumerGroup, state: GroupRecord | None = None) -> None:
        """Drop a group from memory and store, where `state` takes its place: the record of a classic group."""
        group.note_end()
        group.replacement = GroupChange(state, whole=True)
        self.forget(group)

    def check_memory(self, more_bytes: int) -> None:
        """
        Raises:
            KafkaError: GROUP_MAX_SIZE_REACHED, where all groups together may not grow by so much.
        """
        if not self.shared.budget.fits(more_bytes):
            raise KafkaError(ErrorCode.group_max_size_reached, "the broker's memory for groups is used up")

    # -- the store

    def when_stored(self, group: ConsumerGroup, then: Stored) -> None:
        """Call `then` when all that the group is now is durable, or with the error if it cannot be."""
        write = group.open_write or (group.writes[-1] if group.writes else None)
        if write is None:
            self.shared.outbox.add(then, None)
        else:
            write.waiting.append(then)

    def answer(
        self,
        group: ConsumerGroup,
        reply: Callable[[Answer], None],
        answer: Answer,
        refuse: Callable[[Exception], Answer],
    ) -> None:
        """Call `reply(answer)` when all that the group is now is durable; `reply(refuse(error))` if it cannot be."""
        self.when_stored(group, lambda error: reply(answer if error is None else refuse(error)))

    def _changed(self, group: ConsumerGroup) -> None:
        self.shared.outbox.add(self._hand_over, group)

    def _hand_over(self, group: ConsumerGroup) -> None:
        write, group.open_write = group.open_write, None
        if write is not None:
            group.writes.append(write)
            change = group.replacement or make_change(group, write)
            self._store(group.group_id, change, partial(self._stored, group, write))

    def _stored(self, group: ConsumerGroup, write: Write, error: Exception | None) -> None:
        with self.shared.outbox:
            if write not in group.writes:
                return  # an earlier one failed, and all after it were given up with it
            if error is None:
                group.writes.remove(write)
                for waiting in write.waiting:
                    self.shared.outbox.add(waiting, None)
            else:
                self._undo(group, write, error)

    def _undo(self, group: ConsumerGroup, failed: Write, error: Exception) -> None:
        current = self.groups.get(group.group_id) is group
        writes = [*group.writes, *([group.open_write] if group.open_write is not None else [])]
        group.open_write = None
        for write in reversed(writes[writes.index(failed) :]):
            if write in group.writes:
                group.writes.remove(write)
            if current and not group.undo(write):
                self.forget(group)
                current = False
            for waiting in write.waiting:
                self.shared.outbox.add(waiting, error)
        if current:
            for member_id in group.timers.keys() - group.members.keys():
                self._stop(group.timers.pop(member_id))
            for member in group.members.values():
                if member.member_id not in group.timers:
                    self.watch(group, member)
                elif member.state is MemberState.REVOKING:
                    self.give_time(group, member)
                elif not member.speaks_classic:
                    self.end_time(group, member)

    # -- topics and targets

    def subscribed_names(self, group: ConsumerGroup) -> set[str]:
        """The names of all topics that somebody in the group subscribes to, there or not."""
        names = set(group.names)
        for pattern in group.patterns:
            names |= self.patterns.matches(pattern)
        return names

    def topic_ids(self, profile: Profile) -> frozenset[UUID]:
        """The topics a member subscribes to, of those that are there."""
        names = profile.topics
        if profile.pattern:
            names |= self.patterns.matches(profile.pattern)
        found = (self.topics.get(name) for name in names)
        return frozenset(topic.id for topic in found if topic is not None)

    def look_at_topics(self, group: ConsumerGroup, *, changed: bool) -> None:
        """Grow the epoch where `changed`, or where the group's topics are not what they were."""
        if not changed and group.topics_seen == self.topics.changes:
            return
        group.topics_seen = self.topics.changes
        found = topics_hash(self.topics, self.subscribed_names(group))
        if changed or found != group.header.topics_hash:
            group.set_header(group.header._replace(epoch=group.epoch + 1, topics_hash=found))

    def move_on(self, group: ConsumerGroup) -> None:
        """Make a target assignment for the group's epoch, unless the last one was made a moment ago."""
        if group.assignment_epoch == group.epoch:
            return
        counts: dict[UUID, int] = {}
        for name in self.subscribed_names(group):
            topic = self.topics.get(name)
            if topic is not None:
                counts[topic.id] = len(topic.partitions)
        # About ten times what it takes to make one, so that a large group spends no more than a part of the
        # time on it while its members come and go.
        effort_ms = (sum(counts.values()) + len(group.members)) // 10
        interval_ms = min(self.config.assignment_interval_ms, effort_ms)
        if group.assigned_ms is not None and self.shared.now_ms < group.assigned_ms + interval_ms:
            return
        for member_id, partitions in self._assign(group, counts).items():
            group.set_target(member_id, partitions)
        group.assigned_ms = self.shared.now_ms
        group.set_header(group.header._replace(assignment_epoch=group.epoch))

    def _assign(self, group: ConsumerGroup, counts: dict[UUID, int]) -> dict[str, Partitions]:
        subscribed: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        subscribers: dict[str, Subscriber] = {}
        for member in group.members.values():
            profile = member.profile
            key = (profile.topics, profile.pattern)
            if key not in subscribed:
                subscribed[key] = self.topic_ids(profile)
            subscribers[member.member_id] = Subscriber(
                topics=subscribed[key],
                instance_id=profile.instance_id,
                current=group.target_of(member.member_id),
            )
        assigned = ASSIGNORS[self.assignor_of(group)](subscribers, counts)
        return {member_id: assigned.get(member_id, {}) for member_id in group.members}

    def assignor_of(self, group: ConsumerGroup) -> str:
        """The assignor that most members ask for; the earlier in the configuration where even."""
        return max(self.config.assignors, key=lambda name: group.votes[name])

    def reconcile(
        self, group: ConsumerGroup, member: Member, owned: Partitions | None, *, subscription_changed: bool
    ) -> Member:
        """Move a member a step towards its target and put it into the group."""
        moved = member
        if subscription_changed or not member.is_settled(group.assignment_epoch):
            moved = reconcile(
                member,
                target_epoch=group.assignment_epoch,
                target=group.target_of(member.member_id),
                subscribed=self.topic_ids(member.profile),
                owned=owned,
                is_free=group.is_free,
                subscription_changed=subscription_changed,
            )
        before = group.members.get(member.member_id)
        if moved != before:
            group.put(moved)
        if not moved.speaks_classic:
            self._time_revocation(group, before, moved)
        return moved

    # -- time

    def watch(self, group: ConsumerGroup, member: Member) -> None:
        """Begin a member's session; a member that has to give up partitions has its whole time for it."""
        member_id = member.member_id
        timers = group.timers.get(member_id)
        if timers is None:
            timers = group.timers[member_id] = Timers(
                partial(self._overdue, group, member_id), partial(self._overdue, group, member_id)
            )
            if not member.speaks_classic:
                self._time_revocation(group, None, member)
        self.touch(group, member)

    def touch(self, group: ConsumerGroup, member: Member) -> None:
        """The member was heard of."""
        classic = member.profile.classic
        timeout_ms = self.config.session_timeout_ms if classic is None else classic.session_timeout_ms
        self.shared.deadlines.set(group.timers[member.member_id].session, self.shared.now_ms + timeout_ms)

    def give_time(self, group: ConsumerGroup, member: Member) -> None:
        """The member has its rebalance timeout to do its part; a time it was given already goes on."""
        deadline = group.timers[member.member_id].rebalance
        if deadline.due_ms is None:
            timeout_ms = max(0, member.profile.rebalance_timeout_ms)
            self.shared.deadlines.set(deadline, self.shared.now_ms + timeout_ms)

    def end_time(self, group: ConsumerGroup, member: Member) -> None:
        """The member has done its part of the rebalance."""
        self.shared.deadlines.cancel(group.timers[member.member_id].rebalance)

    def heartbeat_interval_ms(self, group: ConsumerGroup, member: Member) -> int:
        """When the member should come again: the sooner the fewer there are, so that it soon hears of changes."""
        settled = member.is_settled(group.epoch)
        members = self.books.members if settled else len(group.members)
        return min(self.config.heartbeat_interval_ms, max(SHORTEST_INTERVAL_MS, MS_PER_MEMBER * members))

    def _time_revocation(self, group: ConsumerGroup, before: Member | None, member: Member) -> None:
        if member.member_id not in group.timers:
            return  # it is new and will be watched
        if member.state is not MemberState.REVOKING:
            self.end_time(group, member)
        elif before is None or before.revoking != member.revoking:
            self.end_time(group, member)
            self.give_time(group, member)

    def _overdue(self, group: ConsumerGroup, member_id: str, _now_ms: int) -> None:
        member = group.members.get(member_id)
        if member is not None and self.groups.get(group.group_id) is group:
            self.fence(group, (member,))

    def _stop(self, timers: Timers) -> None:
        self.shared.deadlines.cancel(timers.session)
        self.shared.deadlines.cancel(timers.rebalance)

    # -- leaving

    def fence(self, group: ConsumerGroup, members: Collection[Member]) -> None:
        """Take members out: what they owned is free, and the group wants a new target."""
        if self.when_fenced(group, members):
            return
        for member in members:
            self.take_out(group, member)
        self.look_at_topics(group, changed=True)

    def take_out(self, group: ConsumerGroup, member: Member) -> None:
        """Remove a member without what follows from it."""
        timers = group.timers.pop(member.member_id, None)
        if timers is not None:
            self._stop(timers)
        group.remove(member)
