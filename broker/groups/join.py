"""JoinGroup: who may join, as whom, and what it sets off.

Guarantee: a join either is refused and changes nothing (but for the member it sheds from an oversized
group), or is held, or is answered with the current generation; a static member's new incarnation takes its
place without a rebalance where the group is stable and its protocol would stay the same (KIP-345, KIP-814).

Source: Kafka's JoinGroup in classic groups, its order of checks included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.groups.group import MEMBER_OVERHEAD_BYTES, Group, Member, protocols_size_bytes
from broker.groups.messages import NO_MEMBER_ID, JoinReply, JoinRequest, JoinResult, SyncResult
from broker.groups.rebalance import Rebalancer, store_error
from broker.groups.record import make_record
from broker.groups.states import GroupState
from wire.errors import ErrorCode


class Joiner:
    """Handles JoinGroup for all groups, inside the shared outbox."""

    def __init__(self, rebalancer: Rebalancer, new_member_id: Callable[[str], str]) -> None:
        self._rebalancer = rebalancer
        self.config = rebalancer.config
        self._outbox = rebalancer.outbox
        self._new_member_id = new_member_id

    def join(self, request: JoinRequest, reply: JoinReply) -> None:
        """Answers through `reply`, once: now or when the rebalance completes."""
        config = self.config
        if not request.group_id:
            return self._refuse(reply, ErrorCode.invalid_group_id, request.member_id)
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            return self._refuse(reply, ErrorCode.invalid_session_timeout, request.member_id)
        group = self._rebalancer.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return self._refuse(reply, ErrorCode.unknown_member_id, request.member_id)
            if len(self._rebalancer.groups) >= config.max_groups:
                return self._refuse(reply, ErrorCode.group_max_size_reached, NO_MEMBER_ID)
            group = self._rebalancer.adopt(Group(request.group_id, self._rebalancer.budget))
        self._join_group(group, request, reply)
        self._rebalancer.forget_if_unused(group)
        return None

    def _join_group(self, group: Group, request: JoinRequest, reply: JoinReply) -> None:
        member = group.find(request.member_id, request.group_instance_id)
        if not self._has_room(group, member):
            self._shed(group, request.member_id, member)
            self._refuse(reply, ErrorCode.group_max_size_reached, NO_MEMBER_ID)
        elif not group.supports(request.protocol_type, [name for name, _ in request.protocols]):
            self._refuse(reply, ErrorCode.inconsistent_group_protocol, request.member_id)
        elif not self._has_memory(member, request):
            self._refuse(reply, ErrorCode.group_max_size_reached, request.member_id)
        elif request.member_id:
            self._join_known(group, request, reply)
        elif request.group_instance_id is not None and member is not None:
            self._replace_static(group, member, request, reply)
        elif request.group_instance_id is None and request.require_known_member_id:
            self._hand_out_id(group, request, reply)
        else:
            member_id = self._new_member_id(request.group_instance_id or request.client_id)
            self._add(group, member_id, request, reply)

    # -- limits

    def _has_room(self, group: Group, member: Member | None) -> bool:
        """Kafka's group.max.size. The replacement of a static member takes no room of its own."""
        limit = self.config.max_members_per_group
        if group.state is GroupState.PREPARING_REBALANCE:
            # Those who have joined count, not the members there are: a group that is too large since the
            # limit was lowered sheds those who come last.
            return group.joins_held < limit or (member is not None and member.join_reply is not None)
        return member is not None or len(group.members) < limit

    def _shed(self, group: Group, member_id: str, member: Member | None) -> None:
        if member is not None:
            self._rebalancer.remove(group, member)
            self._rebalancer.after_removal(group)
        elif self._rebalancer.remove_pending(group, member_id):
            self._rebalancer.after_removal_of_pending(group)

    def _has_memory(self, member: Member | None, request: JoinRequest) -> bool:
        size_bytes = protocols_size_bytes(request.protocols)
        size_bytes += MEMBER_OVERHEAD_BYTES if member is None else -protocols_size_bytes(member.protocols)
        return self._rebalancer.budget.fits(size_bytes)

    # -- newcomers

    def _hand_out_id(self, group: Group, request: JoinRequest, reply: JoinReply) -> None:
        if len(group.pending) >= self.config.max_members_per_group:
            return self._refuse(reply, ErrorCode.group_max_size_reached, NO_MEMBER_ID)
        member_id = self._new_member_id(request.client_id)
        self._rebalancer.add_pending(group, member_id, request.session_timeout_ms)
        return self._refuse(reply, ErrorCode.member_id_required, member_id)

    def _add(self, group: Group, member_id: str, request: JoinRequest, reply: JoinReply) -> None:
        member = _new_member(member_id, request)
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE:
            group.newcomer = True
        group.add(member, request.protocol_type)
        group.hold_join(member, reply)
        self._rebalancer.start_session(group, member, self.config.new_member_join_timeout_ms)
        self._rebalancer.prepare_or_complete(group)

    # -- members

    def _join_known(self, group: Group, request: JoinRequest, reply: JoinReply) -> None:
        member_id = request.member_id
        if request.group_instance_id is None and self._rebalancer.remove_pending(group, member_id):
            return self._add(group, member_id, request, reply)
        error = group.check_member(member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return self._refuse(reply, error, member_id)
        member = group.members[member_id]
        unchanged = member.protocols == tuple(request.protocols)
        leads = member_id == group.leader_id
        if group.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # The answer to its first JoinGroup got lost.
            members = group.joined_members() if leads else ()
            self._outbox.add(reply, group.join_result(member_id, members=members))
        elif group.state is GroupState.STABLE and unchanged and not leads:
            self._outbox.add(reply, group.join_result(member_id))
        else:
            # A stable leader that joins again wants a rebalance: the topics changed, say, and only it knows.
            self._hold(group, member, request, reply)
            self._rebalancer.prepare_or_complete(group)
        return None

    def _hold(self, group: Group, member: Member, request: JoinRequest, reply: JoinReply) -> None:
        group.update(member, request.protocols, request.session_timeout_ms, request.rebalance_timeout_ms)
        superseded = group.hold_join(member, reply)
        if superseded is not None:
            self._refuse(superseded, ErrorCode.rebalance_in_progress, member.member_id)

    # -- static members that return without their member id

    def _replace_static(self, group: Group, old: Member, request: JoinRequest, reply: JoinReply) -> None:
        rebalancer = self._rebalancer
        # Two instances of the same name: the elder one is told to stop.
        rebalancer.answer_join(
            group, old, JoinResult(error=ErrorCode.fenced_instance_id, member_id=old.member_id)
        )
        rebalancer.answer_sync(group, old, SyncResult(error=ErrorCode.fenced_instance_id))
        rebalancer.deadlines.cancel(old.session)
        member = _new_member(self._new_member_id(request.group_instance_id or ""), request)
        member.assignment = old.assignment
        told_leader_id = group.leader_id
        group.replace_static(old, member)
        group.hold_join(member, reply)
        rebalancer.start_session(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            rebalancer.complete_if_joined(group)
        elif group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            done = partial(self._replacement_stored, group, member, request, told_leader_id)
            rebalancer.store(group.group_id, make_record(group), done)
        else:
            # While completing, the leader may be assigning to the member id that is no more.
            rebalancer.prepare(group)

    def _replacement_stored(
        self,
        group: Group,
        member: Member,
        request: JoinRequest,
        told_leader_id: str | None,
        error: Exception | None,
    ) -> None:
        with self._outbox:
            if group.state is not GroupState.STABLE or group.members.get(member.member_id) is not member:
                return  # a rebalance began: the member has joined it and is answered by it
            leads = member.member_id == group.leader_id
            if error is not None:
                result = JoinResult(error=store_error(error), member_id=NO_MEMBER_ID)
            elif request.can_skip_assignment:
                members = group.joined_members() if leads else ()
                result = group.join_result(member.member_id, members=members, skip_assignment=leads)
            else:
                # Told of its former id as the leader's, a returning leader does not assign anew: in a
                # stable group nobody would hear of it.
                result = group.join_result(member.member_id, leader_id=told_leader_id)
            self._rebalancer.answer_join(group, member, result)

    def _refuse(self, reply: JoinReply, error: ErrorCode, member_id: str) -> None:
        self._outbox.add(reply, JoinResult(error=error, member_id=member_id))


def _new_member(member_id: str, request: JoinRequest) -> Member:
    return Member(
        member_id,
        group_instance_id=request.group_instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
    )
