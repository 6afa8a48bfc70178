"""A small world of members of the new consumer group protocol on virtual time, beside the classic ones of groups_world.

    world = ConsumerWorld(orders=4)              # a topic with four partitions
    anna, ben = world.consumers("anna", "ben")
    world.settle(anna, ben)                      # they join and come again until everybody has its share
    assert anna.has == {"orders": {0, 1}}

A Consumer does what a client does: it takes what it is given, gives up what it is told to, and says so when it comes
next. Every request checks that it is answered at most once; `unanswered` lists those still held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import msgpack
from groups_world import Call, FakeMember, World

from broker.groups import (
    ConsumerConfig,
    ConsumerGroupState,
    GroupChange,
    Groups,
    HeartbeatRequest,
    HeartbeatResult,
    JoinResult,
    MigrationPolicy,
    StoredGroup,
    SyncResult,
)
from broker.groups.consumer.embedded import (
    MalformedProtocol,
    read_assignment,
    read_subscription,
    write_assignment,
)
from wire.errors import ErrorCode

GROUP = "orders"
REBALANCE_MS = 60_000
SESSION_MS = 45_000


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


class Consumer:
    """A client of the new protocol. `beat` is one heartbeat; `live` is what a client would do now."""

    def __init__(
        self,
        world: ConsumerWorld,
        name: str,
        *,
        topics: tuple[str, ...] | None = ("orders",),
        pattern: str | None = None,
        group_id: str = GROUP,
        instance: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
        assignor: str | None = None,
        member_id: str | None = None,
        stubborn: bool = False,
    ) -> None:
        self.world = world
        self.name = name
        self.group_id = group_id
        self.topics = topics
        self.pattern = pattern
        self.instance = instance
        self.rebalance_ms = rebalance_ms
        self.assignor = assignor
        self.member_id = name if member_id is None else member_id
        self.epoch = 0
        self.stubborn = stubborn
        """Does not give up what it was told to give up."""
        self.target: dict[UUID, set[int]] = {}
        self.owned: dict[UUID, set[int]] = {}
        self._said: dict[UUID, set[int]] | None = None
        self.last: Call
        self.errors: list[ErrorCode] = []
        self.lost_track = False
        """An answer failed to come or was an error: the next heartbeat says everything."""

    # -- requests

    def request(self, **fields: Any) -> Call:
        """One ConsumerGroupHeartbeat as given."""
        call = Call(self.world, f"heartbeat of {self.name}")
        self.last = call
        defaults: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "client_id": self.name,
            "client_host": f"/{self.name}",
        }

        def reply(result: HeartbeatResult) -> None:
            if call is self.last:
                self._told(result)
            call(result)

        self.world.coordinator.consumer_heartbeat(
            HeartbeatRequest(**defaults | fields), self.world.now_ms, reply
        )
        return call

    def join(self, **fields: Any) -> Call:
        """The first request: all there is to say."""
        self.epoch = 0
        self.target, self.owned, self._said = {}, {}, {}
        return self.request(**self._all() | {"owned": {}} | fields)

    def beat(self, **fields: Any) -> Call:
        """A heartbeat that says what it owns where that has changed."""
        if self._said != self.owned and "owned" not in fields:
            fields["owned"] = {topic_id: frozenset(numbers) for topic_id, numbers in self.owned.items()}
            self._said = {topic_id: set(numbers) for topic_id, numbers in self.owned.items()}
        return self.request(**fields)

    def beat_in_full(self, **fields: Any) -> Call:
        """What a client sends that missed an answer."""
        owned = {topic_id: frozenset(numbers) for topic_id, numbers in self.owned.items()}
        return self.request(**self._all() | {"owned": owned} | fields)

    def leave(self, epoch: int = -1) -> Call:
        call = self.request(member_epoch=epoch)
        self.owned, self.target = {}, {}
        return call

    def subscribe(self, *topics: str, pattern: str | None = None) -> Call:
        self.topics = topics
        self.pattern = pattern
        return self.beat(topics=topics, pattern=pattern)

    def live(self) -> None:
        """Join, come again, or join again after being fenced."""
        if hasattr(self, "last") and self.last.held:
            return
        lost_track, self.lost_track = self.lost_track, False
        if self.epoch <= 0:
            self.join()
        elif lost_track:
            self.beat_in_full()
        else:
            self.beat()

    # -- what it has

    @property
    def has(self) -> dict[str, set[int]]:
        return self.world.by_name({t: frozenset(numbers) for t, numbers in self.owned.items()})

    @property
    def is_settled(self) -> bool:
        return self.epoch > 0 and self._said == self.owned == self.target

    def commit(self, *partitions: tuple[str, int], **fields: Any) -> ErrorCode:
        """Whether it may commit offsets of these partitions."""
        named = [(self.world.topics.get(topic).id, number) for topic, number in partitions]
        settings: dict[str, Any] = {
            "transactional": False,
            "knows_epochs": True,
            "epoch": self.epoch,
        } | fields
        return self.world.coordinator.validate_offset_commit(
            self.group_id,
            settings.pop("epoch"),
            self.member_id,
            self.instance,
            now_ms=self.world.now_ms,
            partitions=named,
            **settings,
        )

    def _all(self) -> dict[str, Any]:
        return {
            "topics": self.topics,
            "pattern": self.pattern,
            "rebalance_timeout_ms": self.rebalance_ms,
            "assignor": self.assignor,
        }

    def _told(self, result: HeartbeatResult) -> None:
        if result.error is not ErrorCode.none:
            self.errors.append(result.error)
            if result.error in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
                self.epoch = 0
                self.owned, self.target = {}, {}
            self.lost_track = True
            return
        if result.member_id is not None:
            self.member_id = result.member_id
        self.epoch = result.member_epoch
        if result.assignment is not None:
            self.target = {topic_id: set(numbers) for topic_id, numbers in result.assignment.items()}
        if not self.stubborn:
            self.give_up()
        for topic_id, numbers in self.target.items():
            self.owned.setdefault(topic_id, set()).update(numbers)

    def give_up(self) -> None:
        """Let go of what is not assigned any more."""
        kept = {
            topic_id: numbers & self.target.get(topic_id, set()) for topic_id, numbers in self.owned.items()
        }
        self.owned = {topic_id: numbers for topic_id, numbers in kept.items() if numbers}


def subscription(
    topics: tuple[str, ...], owned: Mapping[str, set[int]] | None = None, *, version: int = 1
) -> bytes:
    """A classic consumer's subscription as it stands in JoinGroup."""

    def string(text: str) -> bytes:
        return len(text).to_bytes(2, "big") + text.encode()

    def number(value: int) -> bytes:
        return value.to_bytes(4, "big", signed=True)

    out = version.to_bytes(2, "big") + number(len(topics)) + b"".join(map(string, topics)) + number(-1)
    if version >= 1:
        out += number(len(owned or {}))
        for topic, numbers in (owned or {}).items():
            out += string(topic) + number(len(numbers)) + b"".join(map(number, sorted(numbers)))
    if version >= 2:
        out += number(-1)
    if version >= 3:
        out += (-1).to_bytes(2, "big", signed=True)
    return out


class ClassicConsumer(FakeMember):
    """A classic consumer that rebalances cooperatively, or eagerly: then it owns nothing while it joins."""

    def __init__(
        self,
        world: ConsumerWorld,
        name: str,
        topics: tuple[str, ...],
        *,
        eager: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(world, name, **settings)
        self.topics = topics
        self.eager = eager
        self.owned: dict[str, set[int]] = {}
        self.must_join = True
        self.must_sync = False
        self.last_join = self.last_sync = Call(world, "nothing")
        self.last_join(None)

    def join_once(self, **changes: Any) -> Call:
        owned = {} if self.eager else self.owned
        self.protocols = (("range", subscription(self.topics, owned)),)
        return super().join_once(**{"protocols": self.protocols} | changes)

    def plan(self) -> list[tuple[str, bytes]]:
        """As the leader of a classic group: by turns; but what another member still holds is only taken from it."""
        assert self.view is not None
        said = {member.member_id: read_subscription(member.metadata) for member in self.view.members}
        holders = {
            (topic, number): member_id
            for member_id, one in said.items()
            for topic, numbers in one.owned.items()
            for number in numbers
        }
        shares: dict[str, dict[str, set[int]]] = {member_id: {} for member_id in said}
        for topic in sorted({topic for one in said.values() for topic in one.topics}):
            known = self.world.topics.get(topic)  # type: ignore[attr-defined]
            takers = [member_id for member_id, one in said.items() if topic in one.topics]
            for number in known.partitions if known else ():
                taker = takers[number % len(takers)]
                if holders.get((topic, number), taker) == taker:
                    shares[taker].setdefault(topic, set()).add(number)
        return [
            (member_id, write_assignment(1, {t: frozenset(numbers) for t, numbers in share.items()}))
            for member_id, share in shares.items()
        ]

    def live(self) -> None:
        """Join when it has to, sync after each join, and come again."""
        if self.last_join.held or (self.last_sync.held and not self.must_join):
            return
        if self.must_join:
            self.must_join = False
            self.join()
        elif self.must_sync:
            self.must_sync = False
            self.sync()
        elif self.heartbeat() is not ErrorCode.none:
            self.must_join = True
            return
        else:
            return
        if not self.must_join:
            self.live()

    def _joined(self, result: JoinResult) -> None:
        super()._joined(result)
        self.must_sync = result.error is ErrorCode.none
        self.must_join = result.error not in (ErrorCode.none, ErrorCode.member_id_required)

    def sync(self, **changes: Any) -> Call:
        call = super().sync(**changes)
        call.then = self._synced
        if not call.held:
            self._synced(call.answer)
        return call

    def _synced(self, result: SyncResult) -> None:
        if result.error is not ErrorCode.none:
            self.must_join = True
            return
        with contextlib.suppress(MalformedProtocol):
            self.take(read_assignment(result.assignment)[0])

    def heartbeat(self) -> ErrorCode:
        error = super().heartbeat()
        if error is ErrorCode.unknown_member_id or error is ErrorCode.illegal_generation:
            self.member_id = "" if error is ErrorCode.unknown_member_id else self.member_id
            self.owned = {}
        return error

    def take(self, assigned: Mapping[str, frozenset[int]]) -> None:
        lost = any(numbers - assigned.get(topic, frozenset()) for topic, numbers in self.owned.items())
        self.owned = {topic: set(numbers) for topic, numbers in assigned.items()}
        if lost and not self.eager:
            self.must_join = True  # a cooperative consumer says at once what it has given up

    @property
    def has(self) -> dict[str, set[int]]:
        return self.owned

    @property
    def is_settled(self) -> bool:
        return not (self.must_join or self.must_sync or self.last_join.held or self.last_sync.held)
