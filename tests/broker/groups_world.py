"""A small world of consumer group members on virtual time, for the scenario tests.

    world = World()
    anna, ben = world.members("anna", "ben")
    world.settle(anna, ben)          # join, sync, until the group is stable
    world.advance(10_000)            # time passes, whatever is due fires
    assert ben.heartbeat() is ErrorCode.none

Members remember what they were told, as a client does. Every request checks that it is answered at most once;
`World.unanswered` lists those still held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from broker.groups import (
    GroupConfig,
    GroupCoordinator,
    GroupState,
    JoinRequest,
    JoinResult,
    LeaveRequest,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from wire.errors import ErrorCode

GROUP = "orders"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (("range", b"topics"),)


class Call:
    """One request and its answer."""

    def __init__(self, world: World, what: str) -> None:
        self.what = what
        self.answers: list[Any] = []
        self.then: Callable[[Any], None] | None = None
        """Called with a late answer."""
        self._world = world
        world.calls.append(self)

    def __call__(self, answer: Any) -> None:
        assert not self.answers, f"{self.what} is answered twice: {self.answers[0]}, {answer}"
        self.answers.append(answer)
        self._world.transcript.append((self.what, answer))
        if self.then is not None:
            self.then(answer)

    @property
    def answer(self) -> Any:
        assert self.answers, f"{self.what} is not answered"
        return self.answers[0]

    @property
    def held(self) -> bool:
        return not self.answers


class World:
    """A coordinator, a store that may be slow or fail, and a clock that only this moves."""

    def __init__(self, *, slow_store: bool = False, **config: int) -> None:
        self.config = GroupConfig(**config)
        self.now_ms = 1_000_000
        self.slow_store = slow_store
        self.durable: dict[str, bytes] = {}
        self.store_calls: list[tuple[str, dict[str, Any] | None]] = []
        self.stores_in_flight: list[tuple[str, bytes | None, Callable[[Exception | None], None]]] = []
        self.calls: list[Call] = []
        self.transcript: list[tuple[str, Any]] = []
        self._ids = 0
        self.coordinator = self._new_coordinator()

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.config, new_member_id=self._new_member_id, store=self._store)

    def _new_member_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    # -- the store

    def _store(
        self, group_id: str, record: dict[str, Any] | None, done: Callable[[Exception | None], None]
    ) -> None:
        self.store_calls.append((group_id, record))
        data = None if record is None else msgpack.packb(record)  # fails on anything but plain data
        self.stores_in_flight.append((group_id, data, done))
        if not self.slow_store:
            self.finish_stores()

    def finish_stores(self, error: Exception | None = None) -> None:
        while self.stores_in_flight:
            group_id, data, done = self.stores_in_flight.pop(0)
            if error is None and data is None:
                self.durable.pop(group_id, None)
            elif error is None:
                self.durable[group_id] = data
            done(error)

    def record(self, group_id: str = GROUP) -> dict[str, Any]:
        return msgpack.unpackb(self.durable[group_id])

    def restart(self, **config: int) -> None:
        """The broker dies and comes back with what is durable; held requests are lost with their connections."""
        if config:
            self.config = GroupConfig(**config)
        self.stores_in_flight.clear()
        self.calls = [call for call in self.calls if not call.held]
        self.coordinator = self._new_coordinator()
        records = {group_id: msgpack.unpackb(data) for group_id, data in self.durable.items()}
        self.coordinator.load(records, self.now_ms)

    # -- time

    def advance(self, ms: int) -> None:
        """Let time pass; deadlines fire at their own time."""
        end_ms = self.now_ms + ms
        while (due_ms := self.coordinator.next_deadline()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.coordinator.tick(self.now_ms)
        self.now_ms = end_ms

    def advance_heartbeating(self, ms: int, *members: FakeMember) -> None:
        """Let time pass while these members live."""
        for _ in range(ms // 1_000):
            self.advance(1_000)
            for member in members:
                member.heartbeat()

    # -- members and groups

    def member(self, name: str, **settings: Any) -> FakeMember:
        return FakeMember(self, name, **settings)

    def members(self, *names: str, **settings: Any) -> list[FakeMember]:
        return [self.member(name, **settings) for name in names]

    def settle(self, *members: FakeMember) -> None:
        """Everybody joins, learns of the rebalances this sets off, joins again, and syncs: a stable group."""
        for member in members:
            member.join()
        for member in members:
            if not member.last_join.held and member.heartbeat() is not ErrorCode.none:
                member.join()
        self.sync_all(*members)
        assert self.state(members[0].group_id) is GroupState.STABLE

    def sync_all(self, *members: FakeMember) -> None:
        """Followers sync first, then the leader with an assignment for everybody."""
        for member in sorted(members, key=lambda member: member.leads):
            member.sync()

    def state(self, group_id: str = GROUP) -> GroupState | None:
        description = self.coordinator.describe(group_id)
        return None if description is None else description.state

    def generation(self, group_id: str = GROUP) -> int:
        description = self.coordinator.describe(group_id)
        assert description is not None
        return description.generation_id

    def member_ids(self, group_id: str = GROUP) -> list[str]:
        description = self.coordinator.describe(group_id)
        return [] if description is None else [member.member_id for member in description.members]

    @property
    def unanswered(self) -> list[str]:
        return [call.what for call in self.calls if call.held]


class FakeMember:
    """A client's side of the protocol, without its own will: it does what the test says."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        group_id: str = GROUP,
        instance: str | None = None,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        protocol_type: str = "consumer",
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        two_steps: bool = True,
        can_skip: bool = True,
    ) -> None:
        self.world = world
        self.name = name
        self.group_id = group_id
        self.instance = instance
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.two_steps = two_steps
        self.can_skip = can_skip
        self.member_id = ""
        self.generation_id = -1
        self.assignment: bytes | None = None
        self.leads = False
        self.view: JoinResult | None = None
        self.last_join: Call
        self.last_sync: Call

    def join_once(self, **changes: Any) -> Call:
        """One JoinGroup."""
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "client_id": self.name,
            "client_host": f"/{self.name}",
            "session_timeout_ms": self.session_ms,
            "rebalance_timeout_ms": self.rebalance_ms,
            "protocol_type": self.protocol_type,
            "protocols": self.protocols,
            "require_known_member_id": self.two_steps,
            "can_skip_assignment": self.can_skip,
        }
        call = Call(self.world, f"join of {self.name}")

        def reply(result: JoinResult) -> None:
            if call is self.last_join:
                self._joined(result)
            call(result)

        self.last_join = call
        self.world.coordinator.join(JoinRequest(**fields | changes), self.world.now_ms, reply)
        return call

    def join(self) -> Call:
        """JoinGroup, and once more with the member id where one is required."""
        call = self.join_once()
        if not call.held and call.answer.error is ErrorCode.member_id_required:
            call = self.join_once()
        return call

    def _joined(self, result: JoinResult) -> None:
        if result.error is ErrorCode.none:
            self.member_id = result.member_id
            self.generation_id = result.generation_id
            self.leads = result.leader_id == result.member_id
            self.view = result
        elif result.error is ErrorCode.member_id_required:
            self.member_id = result.member_id
        elif result.error is ErrorCode.unknown_member_id:
            self.member_id = ""
            self.generation_id = -1

    def sync(self, **changes: Any) -> Call:
        """SyncGroup; a leader assigns everybody a plan that names its generation and owner."""
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
            "assignments": self.plan() if self.leads and self.view and not self.view.skip_assignment else (),
        }
        call = Call(self.world, f"sync of {self.name}")

        def reply(result: SyncResult) -> None:
            if call is self.last_sync and result.error is ErrorCode.none:
                self.assignment = result.assignment
            call(result)

        self.last_sync = call
        self.world.coordinator.sync(SyncRequest(**fields | changes), self.world.now_ms, reply)
        return call

    def plan(self) -> list[tuple[str, bytes]]:
        assert self.view is not None
        return [
            (member.member_id, f"g{self.generation_id} for {member.member_id}".encode())
            for member in self.view.members
        ]

    def heartbeat(self) -> ErrorCode:
        return self.world.coordinator.heartbeat(
            self.group_id, self.generation_id, self.member_id, self.instance, self.world.now_ms
        )

    def commit(self, *, transactional: bool = False) -> ErrorCode:
        return self.world.coordinator.validate_offset_commit(
            self.group_id,
            self.generation_id,
            self.member_id,
            self.instance,
            transactional=transactional,
            now_ms=self.world.now_ms,
        )

    def leave(self) -> ErrorCode:
        leaving = LeavingMember(member_id=self.member_id, group_instance_id=self.instance)
        request = LeaveRequest(group_id=self.group_id, members=(leaving,))
        return self.world.coordinator.leave(request, self.world.now_ms).single_error
