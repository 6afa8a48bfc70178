"""The group coordinator: Kafka's classic consumer groups, complete and without I/O.

Guarantees: those of `rebalance` and `join`, and

- The coordinator never looks at a clock, rolls dice or touches a disk: every call brings the time, member
  ids and durability come from outside, answers go out through callbacks. The same calls give the same
  answers.
- After `load`, members of a stable group go on as if nothing had happened: same ids, same generation.
- Callbacks run when the call that caused them has finished, so a reply may call straight back in.

Times are milliseconds of one clock that does not go backwards; a monotonic one, since a wall clock that is
set forward would end every session at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.groups.config import GroupConfig
from broker.groups.group import Group
from broker.groups.join import Joiner
from broker.groups.messages import (
    NO_MEMBER_ID,
    GroupDescription,
    GroupOverview,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    LeaveResult,
    LeavingMember,
    LeftMember,
    MemberDescription,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from broker.groups.outbox import Outbox
from broker.groups.rebalance import Rebalancer, Store, store_error, sync_result
from broker.groups.record import read_record
from broker.groups.states import GroupState
from wire.errors import ErrorCode


class GroupCoordinator:
    """All groups of one broker.

    `new_member_id(prefix)` makes a unique member id from a client id or a group instance id. `store` is
    told when a generation's assignment arrives, when a static member is replaced in a stable group, when a
    group becomes empty and when it is deleted; calls for one group must become durable in their order.
    """

    def __init__(self, config: GroupConfig, *, new_member_id: Callable[[str], str], store: Store) -> None:
        self._outbox = Outbox()
        self._rebalancer = Rebalancer(config, store, self._outbox)
        self._joiner = Joiner(self._rebalancer, new_member_id)
        self._groups = self._rebalancer.groups

    @property
    def rebalancer(self) -> Rebalancer:
        """The groups and what they share, for the coordinator of the other protocol."""
        return self._rebalancer

    # -- start and time

    def load(self, records: Mapping[str, Mapping[str, Any]], now_ms: int) -> None:
        """Restore groups from what `store` was given, before anything else is asked; sessions start afresh.

        Raises BadGroupRecord for a record that cannot be read.
        """
        rebalancer = self._rebalancer
        with self._outbox:
            self._advance(now_ms)
            for group_id, record in records.items():
                group = rebalancer.adopt(read_record(group_id, record, rebalancer.budget))
                for member in group.members.values():
                    rebalancer.start_session(group, member)
                if len(group.members) > rebalancer.config.max_members_per_group:
                    # The limit was lowered: the rebalance sheds those who join last.
                    rebalancer.prepare(group)

    def reconfigure(self, config: GroupConfig) -> None:
        """Go on under other limits and delays: what asks for something new meets them."""
        self._rebalancer.config = config
        self._joiner.config = config

    def next_deadline(self) -> int | None:
        """When to call `tick` next: nothing ends earlier, maybe later. None while nothing is waited for."""
        return self._rebalancer.deadlines.next_ms()

    def tick(self, now_ms: int) -> None:
        """End what has run out: sessions, joins, syncs, handed-out ids.

        The work of one call is bounded; `next_deadline` is not after `now_ms` where another call is needed.
        """
        with self._outbox:
            self._advance(now_ms)
            self._rebalancer.deadlines.tick(self._rebalancer.now_ms)

    # -- the members' requests

    def join(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        """JoinGroup. `reply` is called once, when the generation is complete or the join is refused."""
        with self._outbox:
            self._advance(now_ms)
            self._joiner.join(request, reply)

    def sync(self, request: SyncRequest, now_ms: int, reply: SyncReply) -> None:
        """SyncGroup. `reply` is called once, when the assignment is durable or the sync is refused."""
        with self._outbox:
            self._advance(now_ms)
            self._sync(request, reply)

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        """Heartbeat: NONE, or REBALANCE_IN_PROGRESS to make the member join again; both prolong its session.

        INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION otherwise.
        """
        self._advance(now_ms)
        if not group_id:
            return ErrorCode.invalid_group_id
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.check_member(member_id, group_instance_id)
        if error is not ErrorCode.none:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.illegal_generation
        self._rebalancer.touch(group.members[member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, request: LeaveRequest, now_ms: int) -> LeaveResult:
        """LeaveGroup: members go at once, static ones too; the others rebalance.

        INVALID_GROUP_ID for the whole; UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID for a member.
        """
        with self._outbox:
            self._advance(now_ms)
            if not request.group_id:
                return LeaveResult(error=ErrorCode.invalid_group_id)
            group = self._groups.get(request.group_id)
            left = []
            removed = False
            for leaving in request.members:
                error = ErrorCode.unknown_member_id
                if group is not None:
                    size = len(group.members)
                    error = self._leave(group, leaving)
                    removed = removed or len(group.members) < size
                left.append(LeftMember(leaving.member_id, leaving.group_instance_id, error))
            if group is not None:
                if removed:
                    self._rebalancer.after_removal(group)
                else:
                    self._rebalancer.after_removal_of_pending(group)
            return LeaveResult(members=tuple(left))

    def validate_offset_commit(
        self,
        group_id: str,
        generation_id: int,
        member_id: str,
        group_instance_id: str | None,
        *,
        transactional: bool,
        now_ms: int,
    ) -> ErrorCode:
        """Whether these may commit offsets for the group; a commit outside transactions counts as heartbeat.

        Without member and generation (-1): anybody while the group has no members, and within a transaction
        always, since TxnOffsetCommit below version 3 carries neither (KIP-447). Otherwise
        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION; and REBALANCE_IN_PROGRESS between a
        member's join and its assignment.
        """
        self._advance(now_ms)
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.none if generation_id < 0 else ErrorCode.illegal_generation
        if generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.none
        if generation_id < 0 and not member_id and group_instance_id is None:
            return ErrorCode.none if transactional else ErrorCode.unknown_member_id
        error = group.check_member(member_id, group_instance_id)
        if error is not ErrorCode.none:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.illegal_generation
        if transactional:
            return ErrorCode.none
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        self._rebalancer.touch(group.members[member_id])
        return ErrorCode.none

    # -- administration

    def list_groups(self) -> list[GroupOverview]:
        """Every group that has or had members; those that only hold offsets are not known here."""
        return [
            GroupOverview(group.group_id, group.protocol_type or "", group.state)
            for group in self._groups.values()
        ]

    def describe(self, group_id: str) -> GroupDescription | None:
        """None for a group that is not known here, which Kafka shows as Dead."""
        group = self._groups.get(group_id)
        if group is None:
            return None
        protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
        return GroupDescription(
            group_id=group_id,
            state=group.state,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type or "",
            protocol_name=protocol_name or "",
            leader_id=group.leader_id,
            members=tuple(
                MemberDescription(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(protocol_name),
                    member.assignment,
                )
                for member in group.members.values()
            ),
        )

    def delete(self, group_id: str, reply: Callable[[ErrorCode], None]) -> None:
        """DeleteGroups: `reply` once the deletion is durable; GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP at once."""
        with self._outbox:
            group = self._groups.get(group_id)
            if group is None:
                self._outbox.add(reply, ErrorCode.group_id_not_found)
            elif group.state is not GroupState.EMPTY:
                self._outbox.add(reply, ErrorCode.non_empty_group)
            else:
                self._rebalancer.forget(group)

                def done(error: Exception | None) -> None:
                    reply(ErrorCode.none if error is None else store_error(error))

                self._rebalancer.store(group_id, None, done)

    # -- inside

    def _advance(self, now_ms: int) -> None:
        if now_ms > self._rebalancer.now_ms:
            self._rebalancer.now_ms = now_ms

    def _sync(self, request: SyncRequest, reply: SyncReply) -> None:
        group = self._groups.get(request.group_id)
        error = _check_sync(group, request)
        if group is None or error is not ErrorCode.none:
            self._outbox.add(reply, SyncResult(error=error))
            return
        member = group.members[request.member_id]
        if group.state is GroupState.PREPARING_REBALANCE:
            self._outbox.add(reply, SyncResult(error=ErrorCode.rebalance_in_progress))
            return
        self._rebalancer.synced(group, member)
        if group.state is GroupState.STABLE:
            self._rebalancer.touch(member)
            self._outbox.add(reply, sync_result(group, member))
            return
        superseded = group.take_sync(member)
        if superseded is not None:
            self._outbox.add(superseded, SyncResult(error=ErrorCode.rebalance_in_progress))
        member.sync_reply = reply
        if member.member_id == group.leader_id:
            self._rebalancer.assign(group, request.assignments)

    def _leave(self, group: Group, leaving: LeavingMember) -> ErrorCode:
        """Remove one member or handed-out id, without setting off what follows from it."""
        if self._rebalancer.remove_pending(group, leaving.member_id):
            return ErrorCode.none
        member_id = leaving.member_id
        if member_id == NO_MEMBER_ID:
            member_id = group.static_ids.get(leaving.group_instance_id or "", NO_MEMBER_ID)
        error = group.check_member(member_id, leaving.group_instance_id)
        if error is ErrorCode.none:
            self._rebalancer.remove(group, group.members[member_id])
        return error


def _check_sync(group: Group | None, request: SyncRequest) -> ErrorCode:
    if request.require_protocol and (request.protocol_type is None or request.protocol_name is None):
        return ErrorCode.inconsistent_group_protocol
    if not request.group_id:
        return ErrorCode.invalid_group_id
    if group is None:
        return ErrorCode.unknown_member_id
    error = group.check_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.none:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    for given, current in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if given is not None and current is not None and given != current:
            return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none
