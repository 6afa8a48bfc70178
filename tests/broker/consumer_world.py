"""A small world of members of the new consumer group protocol on virtual time, beside the classic ones of groups_world.

    world = ConsumerWorld(orders=4)              # a topic with four partitions
    anna, ben = world.consumers("anna", "ben")
    world.settle(anna, ben)                      # they join and come again until everybody has its share
    assert anna.has == {"orders": {0, 1}}

A Consumer does what a client does: it takes what it is given, gives up what it is told to, and says so when it comes
next. Every request checks that it is answered at most once; `unanswered` lists those still held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import msgpack
from consumer_clients import GROUP, REBALANCE_MS, ClassicConsumer, Consumer
from groups_world import World

from broker.groups import (
    ConsumerConfig,
    ConsumerGroupState,
    GroupChange,
    Groups,
    MigrationPolicy,
    StoredGroup,
)

SESSION_MS = 45_000

__all__ = ("GROUP", "REBALANCE_MS", "SESSION_MS", "ConsumerWorld", "Topic", "Topics")


class Topic:
    def __init__(self, name: str, topic_id: UUID, count: int) -> None:
        self.name = name
        self.id = topic_id
        self.partitions = range(count)


class Topics:
    """The broker's topics, made, grown and deleted by the test."""

    def __init__(self) -> None:
        self.changes = 0
        self._topics: dict[str, Topic] = {}
        self._made = 0

    def make(self, name: str, count: int) -> UUID:
        self._made += 1
        self.changes += 1
        self._topics[name] = Topic(name, UUID(int=self._made), count)
        return self._topics[name].id

    def grow(self, name: str, count: int) -> None:
        self.changes += 1
        self._topics[name].partitions = range(count)

    def delete(self, name: str) -> None:
        self.changes += 1
        del self._topics[name]

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: UUID | None) -> Topic | None:
        return next((topic for topic in self._topics.values() if topic.id == topic_id), None)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())


class ConsumerWorld(World):
    """Groups of both protocols, a store that may be slow or fail, topics, and a clock that only this moves."""

    coordinator: Groups

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        /,
        *,
        slow_store: bool = False,
        classic: Mapping[str, int] | None = None,
        **config: Any,
    ) -> None:
        if "migration" in config:
            config["migration_policy"] = MigrationPolicy(config.pop("migration"))
        self.consumer_config = ConsumerConfig(**config)
        self.topics = Topics()
        for name, count in (topics or {"orders": 4}).items():
            self.topics.make(name, count)
        self.stored: dict[str, StoredGroup] = {}
        self.changes_in_flight: list[tuple[str, bytes, Callable[[Exception | None], None]]] = []
        self.changes_stored = 0
        super().__init__(slow_store=slow_store, **(classic or {}))

    def _new_coordinator(self) -> Groups:
        return Groups(
            self.config,
            self.consumer_config,
            self.topics,
            new_member_id=self._new_member_id,
            store=self._store_change,
        )

    # -- the store

    def _store_change(
        self, group_id: str, change: GroupChange, done: Callable[[Exception | None], None]
    ) -> None:
        # Packing fails on anything but plain data, and keeps what it was at this moment.
        data = msgpack.packb([change.state, change.members, change.assignments, change.whole])
        self.changes_in_flight.append((group_id, data, done))
        if not self.slow_store:
            self.finish_stores()

    def finish_stores(self, error: Exception | None = None) -> None:
        while self.changes_in_flight:
            group_id, data, done = self.changes_in_flight.pop(0)
            if error is None:
                self._apply(group_id, data)
            done(error)

    def _apply(self, group_id: str, data: bytes) -> None:
        self.changes_stored += 1
        state, members, assignments, whole = msgpack.unpackb(data)
        if whole:
            self.stored.pop(group_id, None)
        group = self.stored.setdefault(group_id, StoredGroup())
        group.state = state
        for records, changes in ((group.members, members), (group.assignments, assignments)):
            for member_id, record in changes.items():
                if record is None:
                    records.pop(member_id, None)
                else:
                    records[member_id] = record
        if state is None:
            assert not group.members, "a deleted group leaves no member behind"
            assert not group.assignments
            del self.stored[group_id]

    def restart(self, **config: Any) -> None:
        """The broker dies and comes back with what is durable; held requests are lost with their connections."""
        self.changes_in_flight.clear()
        self.calls = [call for call in self.calls if not call.held]
        self.coordinator = self._new_coordinator()
        self.coordinator.load(self.stored, self.now_ms)

    # -- members and groups

    def consumer(self, name: str, **settings: Any) -> Consumer:
        return Consumer(self, name, **settings)

    def consumers(self, *names: str, **settings: Any) -> list[Consumer]:
        return [self.consumer(name, **settings) for name in names]

    def classic(self, name: str, *topics: str, **settings: Any) -> ClassicConsumer:
        return ClassicConsumer(self, name, topics or ("orders",), **settings)

    def settle(self, *members: Consumer | ClassicConsumer) -> None:  # type: ignore[override]
        """Everybody does the next thing a client would do, until nobody has anything to do."""
        for _ in range(20):
            for member in members:
                member.live()
            self.advance(100)
            if self.is_settled(*members):
                return
        raise AssertionError(f"not settled: {self.description}")

    def is_settled(self, *members: Consumer | ClassicConsumer) -> bool:
        state = self.coordinator.describe(members[0].group_id)
        stable = state is not None and state.state.value == "Stable"
        return stable and all(member.is_settled for member in members)

    @property
    def group_state(self) -> ConsumerGroupState | None:
        description = self.coordinator.describe_consumer_group(GROUP)
        return None if description is None else description.state

    @property
    def description(self) -> Any:
        return self.coordinator.describe_consumer_group(GROUP) or self.coordinator.describe(GROUP)

    @property
    def epoch(self) -> int:
        return self.coordinator.describe_consumer_group(GROUP).epoch

    def owners(self, group_id: str = GROUP) -> dict[tuple[str, int], list[str]]:
        """Who owns each partition, by the group's own account."""
        found: dict[tuple[str, int], list[str]] = {}
        description = self.coordinator.describe_consumer_group(group_id)
        for member in description.members if description else ():
            for topic, numbers in self.by_name(member.assignment).items():
                for number in numbers:
                    found.setdefault((topic, number), []).append(member.member_id)
        return found

    def by_name(self, partitions: Mapping[UUID, frozenset[int]]) -> dict[str, set[int]]:
        found = {}
        for topic_id, numbers in partitions.items():
            topic = self.topics.get_by_id(topic_id)
            found[topic.name if topic else f"deleted {topic_id.int}"] = set(numbers)
        return found
