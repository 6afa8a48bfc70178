"""Server side assignors: who should have which partitions (KIP-848, "Server side assignors").

Guarantees, for each of them: every partition of every subscribed topic goes to exactly one member that is
subscribed to it; the same input gives the same output; the work is bounded.

`uniform` makes the members' shares as even as their subscriptions allow, with as few moves as that takes: equal
up to one partition where all subscribe to the same topics. `range` gives each member a run of adjacent partitions
of every topic, in the members' order, so that topics with the same number of partitions are split alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from broker.groups.consumer.member import Partitions

MAX_ROUNDS: Final = 16
"""How often `uniform` goes over topics whose subscribers overlap, at most; each round evens out a good part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    """Those of its topics that exist."""
    instance_id: str | None = None
    current: Partitions = field(default_factory=dict)
    """Its target so far."""


Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""(subscribers by member id, partition count by topic id) -> each member's partitions.

Every subscribed topic must have a count. Members that get nothing are left out of the result.
"""

_TopicPartition: TypeAlias = tuple[UUID, int]


def assign_range(members: Mapping[str, Subscriber], counts: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Static members come first, by instance id, so that they keep their place; then the others by member id."""
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members, key=lambda each: _place(each, members[each])):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    shares: dict[str, dict[UUID, frozenset[int]]] = {}
    for topic_id, member_ids in subscribers.items():
        size, larger = divmod(counts[topic_id], len(member_ids))
        start = 0
        for number, member_id in enumerate(member_ids):
            end = start + size + (number < larger)
            if start < end:
                shares.setdefault(member_id, {})[topic_id] = frozenset(range(start, end))
            start = end
    return dict(shares)


def _place(member_id: str, member: Subscriber) -> tuple[bool, str, str]:
    return member.instance_id is None, member.instance_id or "", member_id


def assign_uniform(members: Mapping[str, Subscriber], counts: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Keep what each has, hand out what nobody has, then move partitions from the most to the least loaded."""
    loads = dict.fromkeys(members, 0)
    pools = _pools(members)
    for pool in pools:
        pool.keep_current(loads, members, counts)
    for pool in pools:
        pool.hand_out(loads)
    for _ in range(MAX_ROUNDS):
        moved = sum([pool.even_out(loads) for pool in pools])
        if not moved or len(pools) == 1:
            break
    result: dict[str, dict[UUID, set[int]]] = {}
    for pool in pools:
        for member_id, partitions in pool.held.items():
            for topic_id, number in partitions:
                result.setdefault(member_id, {}).setdefault(topic_id, set()).add(number)
    return {
        member_id: {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}
        for member_id, topics in result.items()
    }


class _Pool:
    """Topics with the same subscribers: any of their partitions can be any of these members'.

    `loads` is how many partitions each member has, those of other pools included.
    """

    def __init__(self, member_ids: list[str]) -> None:
        self.member_ids = member_ids
        self.topics: list[UUID] = []
        self.held: dict[str, list[_TopicPartition]] = {}
        self.unassigned: list[_TopicPartition] = []

    def keep_current(
        self, loads: dict[str, int], members: Mapping[str, Subscriber], counts: Mapping[UUID, int]
    ) -> None:
        taken: dict[UUID, set[int]] = {topic_id: set() for topic_id in self.topics}
        for member_id in self.member_ids:
            current = members[member_id].current
            kept: list[_TopicPartition] = []
            for topic_id in self.topics if len(self.topics) < len(current) else sorted(current):
                numbers = current.get(topic_id)
                if numbers and topic_id in taken:
                    valid = [n for n in sorted(numbers - taken[topic_id]) if n < counts[topic_id]]
                    taken[topic_id].update(valid)
                    kept += [(topic_id, number) for number in valid]
            self.held[member_id] = kept
            loads[member_id] += len(kept)
        self.unassigned = [
            (topic_id, number)
            for topic_id in self.topics
            for number in range(counts[topic_id])
            if number not in taken[topic_id]
        ]

    def hand_out(self, loads: dict[str, int]) -> None:
        """Each partition that nobody has goes to the member with the least."""
        if not self.unassigned:
            return
        least = [(loads[member_id], order) for order, member_id in enumerate(self.member_ids)]
        heapify(least)
        for partition in self.unassigned:
            load, order = heappop(least)
            member_id = self.member_ids[order]
            self.held[member_id].append(partition)
            loads[member_id] = load + 1
            heappush(least, (load + 1, order))
        self.unassigned = []

    def even_out(self, loads: dict[str, int]) -> int:
        """Move partitions while a member has at least two more than another; how many were moved.

        Of two that a partition moves between, neither passes the other. So a giver never becomes the least
        loaded nor a taker the most, and it does no harm that the other heap does not hear of the move.
        """
        least = [(loads[member_id], order) for order, member_id in enumerate(self.member_ids)]
        most = [
            (-loads[member_id], order)
            for order, member_id in enumerate(self.member_ids)
            if self.held[member_id]
        ]
        heapify(least)
        heapify(most)
        moved = 0
        while most:
            low, taker_order = least[0]
            high, giver_order = -most[0][0], most[0][1]
            if high - low < 2:
                break
            giver, taker = self.member_ids[giver_order], self.member_ids[taker_order]
            partition = self.held[giver].pop()
            self.held[taker].append(partition)
            loads[giver], loads[taker] = high - 1, low + 1
            heappop(most)
            if self.held[giver]:
                heappush(most, (1 - high, giver_order))
            heappop(least)
            heappush(least, (low + 1, taker_order))
            moved += 1
        return moved


def _pools(members: Mapping[str, Subscriber]) -> list[_Pool]:
    """The pools, fewest subscribers first: whoever can choose least is served first."""
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    pools: dict[tuple[str, ...], _Pool] = {}
    for topic_id in sorted(subscribers):
        member_ids = subscribers[topic_id]
        key = tuple(member_ids)
        if key not in pools:
            pools[key] = _Pool(member_ids)
        pools[key].topics.append(topic_id)
    return sorted(pools.values(), key=lambda pool: (len(pool.member_ids), pool.topics[0]))


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {"uniform": assign_uniform, "range": assign_range}
)
"""By the names that clients and the configuration use."""
