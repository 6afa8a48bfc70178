"""The members of consumer_world: a client of the new protocol, and a classic consumer whose metadata can be read.

They do what the test says, one request at a time, or with `live` what a client would do now.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from groups_world import Call, FakeMember

from broker.groups import HeartbeatRequest, HeartbeatResult, JoinResult, SyncResult
from broker.groups.consumer.embedded import (
    MalformedProtocol,
    read_assignment,
    read_subscription,
    write_assignment,
)
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from consumer_world import ConsumerWorld

GROUP = "orders"
REBALANCE_MS = 60_000


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
    def target_partitions(self) -> dict[UUID, frozenset[int]]:
        """What it was told to have."""
        return {topic_id: frozenset(numbers) for topic_id, numbers in self.target.items()}

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
