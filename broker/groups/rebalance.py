"""The rebalance: from the first reason for one to the members' answers, with every timeout on the way.

Guarantees:

- A held JoinGroup or SyncGroup is answered exactly once, whatever becomes of its member.
- Members hear of an assignment only when it is durable, and only in the generation it was made for.
- A generation consists of members that joined it, and of static members, which may miss one (KIP-345).
- A member lives as long as it is heard of within its session timeout. While the group holds a request of
  it, the clock stands still, since its client cannot heartbeat then; it starts afresh with the answer.

Source: the classic groups of Kafka's group coordinator; KIP-62, KIP-134, KIP-345, KIP-394.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

from broker.groups.config import GroupConfig
from broker.groups.deadlines import Deadline, Deadlines
from broker.groups.group import Budget, Group, Member
from broker.groups.messages import NO_MEMBER_ID, JoinResult, SyncResult
from broker.groups.outbox import Outbox
from broker.groups.record import GroupRecord, make_record
from broker.groups.states import GroupState
from wire.errors import ErrorCode, KafkaError

Stored: TypeAlias = Callable[[Exception | None], None]
Store: TypeAlias = Callable[[str, GroupRecord | None, Stored], None]
"""store(group id, record or None to delete, done): `done(error)` is called once, when durable or failed."""

STORE_ERRORS: Final = {
    # The store is broken or no longer ours: clients look for the coordinator again.
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    # The group is too large for a record: trying again cannot help.
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}


class Rebalancer:
    """Moves groups through rebalances. What may answer somebody is to be called inside the shared outbox."""

    def __init__(self, config: GroupConfig, store: Store, outbox: Outbox) -> None:
        self.config = config
        self.outbox = outbox
        self.deadlines = Deadlines()
        self.budget = Budget(config.max_memory_bytes)
        self.groups: dict[str, Group] = {}
        # The latest time that any call brought. A store that finishes brings none, but it takes
        # milliseconds only.
        self.now_ms = 0
        self._store = store

    # -- groups

    def adopt(self, group: Group) -> Group:
        """Take a group in and keep its time."""
        group.join_deadline.fire = partial(self._joining_ended, group)
        group.sync_deadline.fire = partial(self._syncing_ended, group)
        self.groups[group.group_id] = group
        return group

    def forget(self, group: Group) -> None:
        """Drop an empty group from memory."""
        group.transition_to(GroupState.DEAD)
        for member_id in list(group.pending):
            self.remove_pending(group, member_id)
        del self.groups[group.group_id]

    def forget_if_unused(self, group: Group) -> None:
        """Drop a group that never had a generation: nothing of it was stored, nobody knows it."""
        if group.state is GroupState.EMPTY and group.generation_id == 0 and not group.pending:
            self.forget(group)

    def store(self, group_id: str, record: GroupRecord | None, done: Stored) -> None:
        """Hand a record to the store at the end of this call; `done` may come at once or later."""
        self.outbox.add(self._store, group_id, record, done)

    # -- members

    def start_session(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Give a member its session timeout, or `timeout_ms`, to be heard of."""
        member.session.fire = partial(self._session_ended, group, member)
        self.deadlines.set(member.session, self.now_ms + (timeout_ms or member.session_timeout_ms))

    def touch(self, member: Member) -> None:
        """The member was heard of."""
        self.deadlines.set(member.session, self.now_ms + member.session_timeout_ms)

    def add_pending(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Hand out a member id that lapses unless its owner joins in time (KIP-394)."""
        deadline = Deadline(partial(self._pending_ended, group, member_id))
        group.add_pending(member_id, deadline)
        self.deadlines.set(deadline, self.now_ms + timeout_ms)

    def remove_pending(self, group: Group, member_id: str) -> bool:
        """Whether the id was one handed out and not yet joined with."""
        deadline = group.remove_pending(member_id)
        if deadline is not None:
            self.deadlines.cancel(deadline)
        return deadline is not None

    def remove(self, group: Group, member: Member) -> None:
        """Take a member out. A held request of it gets UNKNOWN_MEMBER_ID, so that it may join anew."""
        self.answer_join(group, member, JoinResult(error=ErrorCode.unknown_member_id, member_id=NO_MEMBER_ID))
        self.answer_sync(group, member, SyncResult(error=ErrorCode.unknown_member_id))
        self.deadlines.cancel(member.session)
        group.remove(member)

    def after_removal(self, group: Group) -> None:
        """Go on without members that have been removed."""
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group)
        else:
            self.after_removal_of_pending(group)

    def after_removal_of_pending(self, group: Group) -> None:
        """Ids that nobody joined with are gone: no reason for a rebalance, but maybe the end of one."""
        self.complete_if_joined(group)
        self.forget_if_unused(group)

    def answer_join(self, group: Group, member: Member, result: JoinResult) -> None:
        """Answer the member's JoinGroup, if one is held; its session starts afresh."""
        reply = group.take_join(member)
        if reply is not None:
            self.outbox.add(reply, result)
            self.touch(member)

    def answer_sync(self, group: Group, member: Member, result: SyncResult) -> None:
        """Answer the member's SyncGroup, if one is held; its session starts afresh."""
        reply = group.take_sync(member)
        if reply is not None:
            self.outbox.add(reply, result)
            self.touch(member)

    # -- joining

    def prepare(self, group: Group) -> None:
        """Begin a rebalance: every member has to join again within the rebalance timeout."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(group, ErrorCode.rebalance_in_progress)
        group.unsynced.clear()
        self.deadlines.cancel(group.sync_deadline)
        group.initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE)
        delay_ms = self.config.initial_rebalance_delay_ms
        if group.initial and delay_ms:
            group.newcomer = False
            group.initial_rest_ms = group.rebalance_timeout_ms - delay_ms
            self.deadlines.set(group.join_deadline, self.now_ms + delay_ms)
        elif group.initial or group.all_joined or not group.members:
            self._complete(group)
        else:
            self.deadlines.set(group.join_deadline, self.now_ms + group.rebalance_timeout_ms)

    def prepare_or_complete(self, group: Group) -> None:
        """A member joined: a reason for a rebalance, or perhaps the one that the running one waited for."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_joined(group)
        else:
            self.prepare(group)

    def complete_if_joined(self, group: Group) -> None:
        """End the joining when nobody is missing; an initial delay is sat out all the same."""
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined and not group.initial:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        """End the joining: dynamic members that have not joined are out, the others are a new generation."""
        self.deadlines.cancel(group.join_deadline)
        for member in list(group.members.values()):
            if member.join_reply is None and not member.is_static:
                self.remove(group, member)
        if group.members and not group.elect_joined_leader():
            # Only static members are left, none of them here: wait for one, or for their sessions to end.
            self.deadlines.set(group.join_deadline, self.now_ms + group.rebalance_timeout_ms)
            return
        group.next_generation()
        if group.state is GroupState.EMPTY:
            self.store(group.group_id, make_record(group), _empty_group_stored)
            return
        joined = group.joined_members()
        for member in group.members.values():
            member.is_new = False
            members = joined if member.member_id == group.leader_id else ()
            self.answer_join(group, member, group.join_result(member.member_id, members=members))
        self.deadlines.set(group.sync_deadline, self.now_ms + group.rebalance_timeout_ms)

    # -- syncing

    def synced(self, group: Group, member: Member) -> None:
        """The member has sent SyncGroup for the current generation."""
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            self.deadlines.cancel(group.sync_deadline)

    def assign(self, group: Group, assignments: Sequence[tuple[str, bytes]]) -> None:
        """The leader's assignment: in force, and told to the members, as soon as it is durable."""
        if group.storing_generation == group.generation_id:
            return  # the leader repeats itself; what it said first is on its way to the store
        known = {member_id: data for member_id, data in assignments if member_id in group.members}
        if not self.budget.fits(group.assignment_growth_bytes(known)):
            self._fail_syncs(group, ErrorCode.group_max_size_reached)
            self.prepare(group)
            return
        group.storing_generation = group.generation_id
        done = partial(self._assignment_stored, group, group.generation_id, known)
        self.store(group.group_id, make_record(group, known), done)

    def _assignment_stored(
        self, group: Group, generation_id: int, assignments: dict[str, bytes], error: Exception | None
    ) -> None:
        with self.outbox:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
                return  # another rebalance began meanwhile: all who waited have been told so
            if error is not None:
                self._fail_syncs(group, store_error(error))
                self.prepare(group)
                return
            group.assign(assignments)
            group.transition_to(GroupState.STABLE)
            for member in group.members.values():
                self.answer_sync(group, member, sync_result(group, member))

    def _fail_syncs(self, group: Group, error: ErrorCode) -> None:
        group.assign({})
        for member in group.members.values():
            self.answer_sync(group, member, SyncResult(error=error))

    # -- timeouts

    def _session_ended(self, group: Group, member: Member, _now_ms: int) -> None:
        # A new member is not spared: its client may be gone, and has no heartbeat to tell.
        if not member.is_new and (member.join_reply is not None or member.sync_reply is not None):
            return
        self.remove(group, member)
        self.after_removal(group)

    def _pending_ended(self, group: Group, member_id: str, _now_ms: int) -> None:
        self.remove_pending(group, member_id)
        self.after_removal_of_pending(group)

    def _joining_ended(self, group: Group, _now_ms: int) -> None:
        if group.initial and group.newcomer and group.initial_rest_ms > 0:
            group.newcomer = False
            delay_ms = min(self.config.initial_rebalance_delay_ms, group.initial_rest_ms)
            group.initial_rest_ms -= delay_ms
            self.deadlines.set(group.join_deadline, self.now_ms + delay_ms)
        else:
            self._complete(group)

    def _syncing_ended(self, group: Group, _now_ms: int) -> None:
        for member_id in list(group.unsynced):
            self.remove(group, group.members[member_id])
        self.prepare(group)


def sync_result(group: Group, member: Member) -> SyncResult:
    """A member's assignment in a stable group."""
    return SyncResult(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


def store_error(error: Exception) -> ErrorCode:
    """What members are told when their group could not be stored: retriable, unless known to be in vain."""
    if isinstance(error, KafkaError):
        return STORE_ERRORS.get(error.code, ErrorCode.coordinator_not_available)
    return ErrorCode.coordinator_not_available


def _empty_group_stored(error: Exception | None) -> None:
    """Nobody waits for this. If it failed, a crash brings the last generation back, to time out once more."""
