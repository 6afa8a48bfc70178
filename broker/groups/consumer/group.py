"""One consumer group of the new protocol: bookkeeping, and what of it has yet to become durable.

Guarantees:

- The counts kept here (owners, names, patterns, votes, memory) always agree with the members.
- A partition has one owner: claiming one that another member owns raises.
- Every change is noted with what was before, so that it can be stored, and undone where that fails.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from broker.groups.consumer.member import Epochs, Member, Partitions
from broker.groups.consumer.states import ConsumerGroupState
from broker.groups.consumer.topics import TopicPatterns
from broker.groups.deadlines import Deadline
from broker.groups.group import Budget
from broker.groups.record import GroupRecord

MEMBER_OVERHEAD_BYTES = 2_048
"""A generous guess at what a member takes beside its strings and partitions, its deadlines included."""

PARTITION_BYTES = 100
"""The same for one partition in a member's assignment or target."""


FIRST_EPOCH = 1
"""Of a group that knows no topics yet, as in Apache Kafka: the first subscription makes it 2."""


class Header(NamedTuple):
    """What is stored of a group beside its members."""

    epoch: int
    """Grows with each change of members, subscriptions or their topics: there should be a new target."""
    assignment_epoch: int
    """The epoch of the target assignment there is."""
    topics_hash: int
    """The subscribed topics as they were when the epoch grew last."""


@dataclass(slots=True)
class GroupChange:
    """Records to write, or to delete where None, in one atomic batch."""

    state: GroupRecord | None
    members: dict[str, GroupRecord | None] = field(default_factory=dict)
    """By member id."""
    assignments: dict[str, GroupRecord | None] = field(default_factory=dict)
    whole: bool = False
    """This is all there is of the group: what else is stored of its members goes."""


@dataclass(slots=True)
class Write:
    """A change on its way to the store: what was before, and who waits for it."""

    header: Header | None
    """None: the group was not there."""
    members: dict[str, tuple[Member | None, Partitions | None]] = field(default_factory=dict)
    """Member and target, as they were, of those that changed."""
    waiting: list[Callable[[Exception | None], None]] = field(default_factory=list)


class Timers:
    """A member's deadlines, bound by whoever keeps the time."""

    __slots__ = ("rebalance", "session")

    def __init__(self, session: Callable[[int], None], rebalance: Callable[[int], None]) -> None:
        self.session = Deadline(session)
        self.rebalance = Deadline(rebalance)
        """When it is given up for not doing its part of a rebalance."""


class Books:
    """What all groups share: memory, topic patterns, and the number of members."""

    __slots__ = ("budget", "members", "patterns")

    def __init__(self, budget: Budget, patterns: TopicPatterns) -> None:
        self.budget = budget
        self.patterns = patterns
        self.members = 0


class ConsumerGroup:
    """Members, epochs and target assignment of one group. It counts in no books until it is `opened`."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.header = Header(FIRST_EPOCH, 0, 0)
        self.assigned_ms: int | None = None
        """When the target was made, by the coordinator's clock; None for one that was restored."""
        self.topics_seen: int | None = None
        """The number of changes among the broker's topics when the group looked at them last."""
        self.members: dict[str, Member] = {}
        self.target: dict[str, Partitions] = {}
        self.static_ids: dict[str, str] = {}
        self.timers: dict[str, Timers] = {}
        self.names: Counter[str] = Counter()
        self.patterns: Counter[str] = Counter()
        self.votes: Counter[str] = Counter()
        """How many members name each assignor."""
        self.classic_protocols: Counter[str] = Counter()
        self.classic_members = 0
        self.open_write: Write | None = None
        """Changes of the call that is under way."""
        self.writes: deque[Write] = deque()
        """Changes handed to the store, oldest first."""
        self.replacement: GroupChange | None = None
        """What is stored in place of a group that is no more."""
        self.size_bytes = 0
        self._owners: dict[UUID, dict[int, str]] = {}
        self._books: Books | None = None
        self._on_change: Callable[[ConsumerGroup], None] | None = None

    def open(self, books: Books, on_change: Callable[[ConsumerGroup], None]) -> None:
        """From now on the group counts, and `on_change` is called when the first of some changes is made."""
        self._books, self._on_change = books, on_change
        books.budget.used_bytes += self.size_bytes
        books.members += len(self.members)
        for pattern in self.patterns.elements():
            books.patterns.acquire(pattern)

    def close(self) -> None:
        """The group is no more: nothing of it counts, and no further change of it is stored."""
        if self._books is not None:
            self._books.budget.used_bytes -= self.size_bytes
            self._books.members -= len(self.members)
            for pattern in self.patterns.elements():
                self._books.patterns.release(pattern)
        self._books = self._on_change = None

    # -- reading

    @property
    def epoch(self) -> int:
        return self.header.epoch

    @property
    def assignment_epoch(self) -> int:
        return self.header.assignment_epoch

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.assignment_epoch < self.epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_settled(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def static_member(self, instance_id: str) -> Member | None:
        return self.members.get(self.static_ids.get(instance_id, ""))

    def is_free(self, topic_id: UUID, partition: int) -> bool:
        """Whether no member owns the partition, not even one that was told to give it up."""
        return partition not in self._owners.get(topic_id, {})

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, {})

    def waits_in_vain(self, member: Member) -> bool:
        """Whether all that a waiting member lacks is still owned by others, so that coming again cannot help."""
        return not any(
            partition not in member.assigned.get(topic_id, {}) and self.is_free(topic_id, partition)
            for topic_id, numbers in self.target_of(member.member_id).items()
            for partition in numbers
        )

    def supports_classic(self, names: Iterable[str]) -> bool:
        """Whether a classic member with these protocols can be in it: one is common to all classic members."""
        return any(self.classic_protocols[name] == self.classic_members for name in names)

    # -- changing

    def put(self, member: Member) -> None:
        """Add a member, or put it in the place of its older self."""
        self._note(member.member_id)
        self._put(member)

    def remove(self, member: Member) -> None:
        """Forget a member and its target; its timers must have been stopped."""
        self._note(member.member_id)
        self._drop(member)
        self._set_target(member.member_id, None)

    def set_target(self, member_id: str, partitions: Partitions) -> None:
        """A member's part of the target assignment."""
        if partitions != self.target.get(member_id):
            self._note(member_id)
            self._set_target(member_id, partitions)

    def set_header(self, header: Header) -> None:
        """Move on to other epochs."""
        if header != self.header:
            self._change()
            self.header = header

    def note_all(self) -> None:
        """Have everything stored: the group is new."""
        write = self._change()
        if write is not None:
            write.header = None
            write.members |= dict.fromkeys(self.members, (None, None))

    def note_end(self) -> None:
        """The group is about to be no more, which is a change as well."""
        self._change()

    def undo(self, write: Write) -> bool:
        """Take back a change; whether the group was there before it."""
        for member_id, (_, target) in write.members.items():
            current = self.members.get(member_id)
            if current is not None:
                self._drop(current)
            self._set_target(member_id, target)
        for member, _ in write.members.values():
            if member is not None:
                self._put(member)
        if write.header is not None:
            self.header = write.header
        self.assigned_ms = self.topics_seen = None
        return write.header is not None

    # -- inside

    def _change(self) -> Write | None:
        if self._on_change is not None and self.open_write is None:
            self.open_write = Write(self.header)
            self._on_change(self)
        return self.open_write

    def _note(self, member_id: str) -> None:
        write = self._change()
        if write is not None and member_id not in write.members:
            write.members[member_id] = (self.members.get(member_id), self.target.get(member_id))

    def _put(self, member: Member) -> None:
        old = self.members.get(member.member_id)
        if old is not None:
            self._count(old, -1)
            self._release(old)
            self._forget_name(old)
        self._claim(member)
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.profile.instance_id is not None:
            self.static_ids[member.profile.instance_id] = member.member_id
        if old is None and self._books is not None:
            self._books.members += 1

    def _drop(self, member: Member) -> None:
        del self.members[member.member_id]
        self._count(member, -1)
        self._release(member)
        self._forget_name(member)
        if self._books is not None:
            self._books.members -= 1

    def _forget_name(self, member: Member) -> None:
        instance_id = member.profile.instance_id
        if instance_id is not None and self.static_ids.get(instance_id) == member.member_id:
            del self.static_ids[instance_id]

    def _set_target(self, member_id: str, partitions: Partitions | None) -> None:
        before = self.target.pop(member_id, {})
        if partitions:
            self.target[member_id] = partitions
        self._grow(PARTITION_BYTES * (_size(partitions or {}) - _size(before)))

    def _claim(self, member: Member) -> None:
        for epochs in (member.assigned, member.revoking):
            for topic_id, numbers in epochs.items():
                owners = self._owners.setdefault(topic_id, {})
                for number in numbers:
                    other = owners.setdefault(number, member.member_id)
                    if other != member.member_id:
                        raise AlreadyOwned(self.group_id, topic_id, number, other, member.member_id)

    def _release(self, member: Member) -> None:
        for epochs in (member.assigned, member.revoking):
            for topic_id, numbers in epochs.items():
                owners = self._owners[topic_id]
                for number in numbers:
                    del owners[number]
                if not owners:
                    del self._owners[topic_id]

    def _count(self, member: Member, sign: int) -> None:
        profile = member.profile
        _add(self.names, profile.topics, sign)
        if profile.pattern:
            _add(self.patterns, (profile.pattern,), sign)
            if self._books is not None:
                patterns = self._books.patterns
                patterns.acquire(profile.pattern) if sign > 0 else patterns.release(profile.pattern)
        if profile.assignor is not None:
            _add(self.votes, (profile.assignor,), sign)
        if profile.classic is not None:
            self.classic_members += sign
            _add(self.classic_protocols, {name for name, _ in profile.classic.protocols}, sign)
        self._grow(sign * size_bytes(member))

    def _grow(self, more_bytes: int) -> None:
        self.size_bytes += more_bytes
        if self._books is not None:
            self._books.budget.used_bytes += more_bytes


class AlreadyOwned(RuntimeError):
    """A partition was given to a second owner: a defect of this package, or of a record that was read."""

    def __init__(self, group_id: str, topic_id: UUID, partition: int, owner: str, other: str) -> None:
        super().__init__(
            f"group {group_id!r}: partition {partition} of topic {topic_id} is {owner!r}'s and cannot be {other!r}'s"
        )


def size_bytes(member: Member) -> int:
    """Memory that a member takes, roughly, without its target."""
    partitions = _size(member.assigned) + _size(member.revoking)
    ids = len(member.member_id)
    return MEMBER_OVERHEAD_BYTES + ids + member.profile.size_bytes + PARTITION_BYTES * partitions


def _size(partitions: Partitions | Epochs) -> int:
    return sum(len(numbers) for numbers in partitions.values())


def _add(counter: Counter[str], keys: Iterable[str], sign: int) -> None:
    for key in keys:
        counter[key] += sign
        if not counter[key]:
            del counter[key]
