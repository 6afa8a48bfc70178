"""One consumer group and its members: pure bookkeeping, no timers and no answers.

Guarantee: the counts kept here (joins held, protocols in common, memory) always agree with the members,
whatever the order of calls; every change of state goes along an edge of `states.TRANSITIONS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from broker.groups.deadlines import Deadline
from broker.groups.messages import JoinedMember, JoinReply, JoinResult, Protocols, SyncReply
from broker.groups.states import TRANSITIONS, GroupState, ImpossibleTransition
from wire.errors import ErrorCode

MEMBER_OVERHEAD_BYTES = 1024
"""A generous guess at what a member takes beside its strings and bytes."""

PENDING_BYTES = 512
"""The same for an id that was handed out and not used yet."""


class Budget:
    """Memory that all groups share; a limit that is asked, never enforced behind a caller's back."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def fits(self, extra_bytes: int) -> bool:
        return extra_bytes <= 0 or self.used_bytes + extra_bytes <= self.limit_bytes


class Member:
    """A member of a group and what it waits for."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_reply",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
        "sync_reply",
    )

    def __init__(
        self,
        member_id: str,
        *,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Iterable[tuple[str, bytes]],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        # A timeout of zero would end a rebalance before anybody could join; version 0 of JoinGroup has none
        # at all.
        self.rebalance_timeout_ms = rebalance_timeout_ms if rebalance_timeout_ms > 0 else session_timeout_ms
        self.protocols: Protocols = tuple(protocols)
        self.session = Deadline(_unbound)
        """When it is given up; bound by whoever keeps the time."""
        self.assignment = assignment
        self.is_new = False
        self.join_reply: JoinReply | None = None
        self.sync_reply: SyncReply | None = None

    @property
    def is_static(self) -> bool:
        """KIP-345: known by its instance id, kept when it misses a rebalance."""
        return self.group_instance_id is not None

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    @property
    def size_bytes(self) -> int:
        """Memory it takes, roughly."""
        ids = len(self.member_id) + len(self.group_instance_id or "") + len(self.client_id)
        return MEMBER_OVERHEAD_BYTES + ids + protocols_size_bytes(self.protocols) + len(self.assignment)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Its metadata for a protocol; empty where it has none."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: set[str]) -> str:
        """Its most preferred protocol among candidates, which it supports all."""
        return next(name for name, _ in self.protocols if name in candidates)


class Group:
    """A classic group: members in the order of joining, the current generation and its leader."""

    def __init__(self, group_id: str, budget: Budget) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.pending: dict[str, Deadline] = {}
        """Member ids handed out (KIP-394) that have not joined yet, and when they lapse."""
        self.unsynced: set[str] = set()
        """Members of this generation that have not sent SyncGroup."""
        self.storing_generation: int | None = None
        """The generation whose assignment is on its way to the store."""
        self.initial = False
        """This rebalance found the group empty, so it may wait for more members than have joined."""
        self.newcomer = False
        """A member joined since the initial delay was set last."""
        self.initial_rest_ms = 0
        """How much longer the initial delay may be extended."""
        self.join_deadline = Deadline(_unbound)
        """When the joining ends without those who are missing."""
        self.sync_deadline = Deadline(_unbound)
        """When members that have not synced are given up."""
        self._budget = budget
        self._joins_held = 0
        self._support: Counter[str] = Counter()

    def transition_to(self, state: GroupState) -> None:
        """Raises ImpossibleTransition where the table has no such edge."""
        if state not in TRANSITIONS[self.state]:
            raise ImpossibleTransition(self.group_id, self.state, state)
        self.state = state

    # -- members

    @property
    def joins_held(self) -> int:
        """Members whose JoinGroup waits for an answer."""
        return self._joins_held

    @property
    def all_joined(self) -> bool:
        """Whether no member and no handed-out id is missing from the running rebalance."""
        return self._joins_held == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of the members'; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def add(self, member: Member, protocol_type: str) -> None:
        """A new member. The first one of an empty group sets the protocol type and leads."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self._count(member, 1)

    def remove(self, member: Member) -> None:
        """Forget a member; its held requests must have been taken. The eldest follows a removed leader."""
        del self.members[member.member_id]
        if member.group_instance_id is not None:
            del self.static_ids[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)
        self.unsynced.discard(member.member_id)
        self._count(member, -1)

    def replace_static(self, old: Member, new: Member) -> None:
        """Put a static member's new incarnation in the old one's place: assignment, leadership and all."""
        led = self.leader_id == old.member_id
        unsynced = old.member_id in self.unsynced
        # Not remove and add: the group must not look empty, nor another member lead, in between.
        del self.members[old.member_id]
        self.unsynced.discard(old.member_id)
        self._count(old, -1)
        self.members[new.member_id] = new
        self._count(new, 1)
        assert new.group_instance_id is not None
        self.static_ids[new.group_instance_id] = new.member_id
        if led:
            self.leader_id = new.member_id
        if unsynced:
            self.unsynced.add(new.member_id)

    def update(
        self,
        member: Member,
        protocols: Iterable[tuple[str, bytes]],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        """What a member says anew when it joins again."""
        self._count(member, -1)
        member.protocols = tuple(protocols)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms if rebalance_timeout_ms > 0 else session_timeout_ms
        self._count(member, 1)

    def add_pending(self, member_id: str, deadline: Deadline) -> None:
        """An id handed out, to be joined with before the deadline."""
        self.pending[member_id] = deadline
        self._budget.used_bytes += PENDING_BYTES

    def remove_pending(self, member_id: str) -> Deadline | None:
        """Forget an id that was handed out; None where it was not."""
        deadline = self.pending.pop(member_id, None)
        if deadline is not None:
            self._budget.used_bytes -= PENDING_BYTES
        return deadline

    def find(self, member_id: str, group_instance_id: str | None) -> Member | None:
        """A member by its id, or by its instance id when it gives no member id."""
        if not member_id and group_instance_id is not None:
            member_id = self.static_ids.get(group_instance_id, "")
        return self.members.get(member_id)

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when another member goes by this instance id."""
        if group_instance_id is not None:
            known_id = self.static_ids.get(group_instance_id)
            if known_id is None:
                return ErrorCode.unknown_member_id
            if known_id != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    # -- held requests

    def hold_join(self, member: Member, reply: JoinReply) -> JoinReply | None:
        """Keep a JoinGroup waiting; returns the reply of an earlier one that it supersedes."""
        superseded = member.join_reply
        if superseded is None:
            self._joins_held += 1
        member.join_reply = reply
        return superseded

    def take_join(self, member: Member) -> JoinReply | None:
        """The held JoinGroup's reply, to be called by the taker; None when none is held."""
        reply = member.join_reply
        if reply is not None:
            member.join_reply = None
            self._joins_held -= 1
        return reply

    def take_sync(self, member: Member) -> SyncReply | None:
        """The held SyncGroup's reply, to be called by the taker; None when none is held."""
        reply, member.sync_reply = member.sync_reply, None
        return reply

    # -- generations

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether somebody with these protocols can be in the group: one of them is common to all members."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in names)
        if self.protocol_type != protocol_type:
            return False
        return any(self._support[name] == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """The protocol common to all members with most votes; the eldest voters' choice where even."""
        candidates = {name for name, count in self._support.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    def elect_joined_leader(self) -> bool:
        """See that the leader is a member that has joined this rebalance; False when nobody has."""
        leader = self.members.get(self.leader_id or "")
        if leader is None or leader.join_reply is None:
            leader = next((member for member in self.members.values() if member.join_reply is not None), None)
            if leader is None:
                return False
            self.leader_id = leader.member_id
        return True

    def next_generation(self) -> None:
        """End the joining: a new generation, of the members there are."""
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY)
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.initial = self.newcomer = False
        self.storing_generation = None
        self.unsynced = set(self.members)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """All members with their metadata for the chosen protocol: what the leader assigns by."""
        return tuple(
            JoinedMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    def join_result(
        self,
        member_id: str,
        *,
        leader_id: str | None = None,
        members: tuple[JoinedMember, ...] = (),
        skip_assignment: bool = False,
    ) -> JoinResult:
        """The current generation as a member is told of it, as if led by `leader_id` where that is given."""
        return JoinResult(
            member_id=member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader_id=leader_id or self.leader_id or "",
            skip_assignment=skip_assignment,
            members=members,
        )

    def assignment_growth_bytes(self, assignments: Mapping[str, bytes]) -> int:
        """How much more memory these assignments take than the present ones."""
        return sum(
            len(assignments.get(member_id, b"")) - len(member.assignment)
            for member_id, member in self.members.items()
        )

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Every member's assignment; empty for those not named."""
        self._budget.used_bytes += self.assignment_growth_bytes(assignments)
        for member_id, member in self.members.items():
            member.assignment = assignments.get(member_id, b"")

    def _count(self, member: Member, sign: int) -> None:
        for name in member.protocol_names:
            self._support[name] += sign
            if not self._support[name]:
                del self._support[name]
        self._budget.used_bytes += sign * member.size_bytes


def _unbound(now_ms: int) -> None:
    raise RuntimeError(f"a deadline fired at {now_ms} that nobody bound")


def protocols_size_bytes(protocols: Sequence[tuple[str, bytes]]) -> int:
    """Memory that protocol names and metadata take."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)
