"""Members that speak the classic protocol in a group of the new one, while a group is migrated (KIP-848).

Guarantee: a classic client sees what it knows. It joins without waiting for others, is never the leader, gets
its assignment by SyncGroup, and hears REBALANCE_IN_PROGRESS from its heartbeat whenever it should join again: to
give up partitions, to take some that have become free, or to catch up with a new target.

Its generation is its member epoch. Source: Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from broker.groups.consumer.config import MigrationPolicy
from broker.groups.consumer.core import Core
from broker.groups.consumer.embedded import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    Subscription,
    read_subscription,
    write_assignment,
)
from broker.groups.consumer.group import ConsumerGroup, size_bytes
from broker.groups.consumer.member import ClassicSide, Member, MemberState, Profile, without_epochs
from broker.groups.consumer.migration import Migration, by_topic_id, by_topic_name, not_joined
from broker.groups.messages import (
    NO_MEMBER_ID,
    JoinReply,
    JoinRequest,
    JoinResult,
    LeaveRequest,
    LeaveResult,
    LeftMember,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from broker.groups.rebalance import store_error
from wire.errors import ErrorCode, KafkaError


class ClassicMembers:
    """Handles the classic group APIs for groups of the new protocol, inside the shared outbox."""

    def __init__(self, core: Core, migration: Migration, new_member_id: Callable[[str], str]) -> None:
        self._core = core
        self._migration = migration
        self._new_member_id = new_member_id

    # -- JoinGroup

    def join(self, group: ConsumerGroup, request: JoinRequest, reply: JoinReply) -> None:
        """Answers through `reply`, once: when what it tells of is durable."""
        try:
            self._join(group, request, reply)
        except KafkaError as refused:
            result = JoinResult(error=refused.code, member_id=request.member_id)
            self._core.shared.outbox.add(reply, result)

    def _join(self, group: ConsumerGroup, request: JoinRequest, reply: JoinReply) -> None:
        core, config = self._core, self._core.shared.config
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            raise KafkaError(ErrorCode.invalid_session_timeout)
        if core.config.migration_policy is MigrationPolicy.DISABLED:
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        subscription = _subscription(group, request)
        member_id = request.member_id
        if not member_id:
            member_id = self._new_member_id(request.group_instance_id or request.client_id)
        predecessor, before = _find(group, request, member_id)
        if before is None and len(group.members) >= config.max_members_per_group:
            raise KafkaError(ErrorCode.group_max_size_reached)
        dynamic = request.group_instance_id is None
        if dynamic and not request.member_id and request.require_known_member_id:
            told = JoinResult(error=ErrorCode.member_id_required, member_id=member_id)
            core.shared.outbox.add(reply, told)
            return
        old = before.profile if before is not None else Profile()
        profile = _profile(request, subscription, old)
        if before is None:
            member = Member(member_id=member_id, profile=profile)
            core.check_memory(size_bytes(member))
        else:
            member = replace(before, profile=profile)
            core.check_memory(profile.size_bytes - old.size_bytes)

        # From here on nothing is refused.
        if predecessor is not None:
            target = group.target_of(predecessor.member_id)
            core.take_out(group, predecessor)
            group.set_target(member_id, target)
        if member != group.members.get(member_id):
            group.put(member)
        changed = (profile.topics, profile.pattern) != (old.topics, old.pattern)
        core.look_at_topics(group, changed=changed)
        core.move_on(group)
        core.watch(group, member)
        owned = by_topic_id(subscription.owned, core.topics)
        member = core.reconcile(group, member, owned, subscription_changed=changed)
        if predecessor is not None and self._migration.may_downgrade(group):
            self._migration.downgrade(group, (member, reply))
            return
        # It has its rebalance timeout to fetch the assignment.
        core.end_time(group, member)
        core.give_time(group, member)
        result = JoinResult(
            member_id=member_id,
            generation_id=member.epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=request.protocols[0][0],
        )
        core.answer(group, reply, result, not_joined)

    # -- SyncGroup

    def sync(self, group: ConsumerGroup, request: SyncRequest, reply: SyncReply) -> None:
        """Answers through `reply`, once: when what it tells of is durable."""
        try:
            member = self._check_sync(group, request)
        except KafkaError as refused:
            self._core.shared.outbox.add(reply, SyncResult(error=refused.code))
            return
        side = member.profile.classic
        assert side is not None
        self._core.end_time(group, member)
        self._core.touch(group, member)
        assigned = by_topic_name(without_epochs(member.assigned), self._core.topics)
        result = SyncResult(
            protocol_type=PROTOCOL_TYPE,
            protocol_name=side.protocols[0][0],
            assignment=write_assignment(read_subscription(side.protocols[0][1]).version, assigned),
        )
        self._core.answer(group, reply, result, lambda error: SyncResult(error=store_error(error)))

    def _check_sync(self, group: ConsumerGroup, request: SyncRequest) -> Member:
        if request.require_protocol and (request.protocol_type is None or request.protocol_name is None):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        member = _member(group, request.member_id, request.group_instance_id, request.generation_id)
        side = member.profile.classic
        assert side is not None
        if request.protocol_type not in (None, PROTOCOL_TYPE):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if request.protocol_name not in (None, side.protocols[0][0]):
            raise KafkaError(ErrorCode.inconsistent_group_protocol)
        if _is_behind(group, member):
            self._core.give_time(group, member)
            raise KafkaError(ErrorCode.rebalance_in_progress)
        return member

    # -- Heartbeat and LeaveGroup

    def heartbeat(
        self, group: ConsumerGroup, generation_id: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """NONE, or REBALANCE_IN_PROGRESS to make the member join again; both prolong its session."""
        core = self._core
        try:
            member = _member(group, member_id, group_instance_id, generation_id)
        except KafkaError as refused:
            return refused.code
        core.touch(group, member)
        # Whoever comes moves the group on: there may be nobody else to notice that topics have changed.
        core.look_at_topics(group, changed=False)
        core.move_on(group)
        can_go_on = member.state is MemberState.WAITING and not group.waits_in_vain(member)
        if _is_behind(group, member) or member.state is MemberState.REVOKING or can_go_on:
            core.give_time(group, member)
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, group: ConsumerGroup, request: LeaveRequest) -> LeaveResult:
        """Members of either protocol go at once, static ones too."""
        left: list[LeftMember] = []
        leaving: dict[str, Member] = {}
        for one in request.members:
            error = ErrorCode.none
            member: Member | None
            if one.group_instance_id is None:
                member = group.members.get(one.member_id)
            else:
                member = group.static_member(one.group_instance_id)
                if member is not None and one.member_id not in (NO_MEMBER_ID, member.member_id):
                    error = ErrorCode.fenced_instance_id
            if member is None or member.member_id in leaving:
                error = ErrorCode.unknown_member_id
            if member is not None and error is ErrorCode.none:
                leaving[member.member_id] = member
            left.append(LeftMember(one.member_id, one.group_instance_id, error))
        if leaving:
            self._core.fence(group, tuple(leaving.values()))
        return LeaveResult(members=tuple(left))


def _subscription(group: ConsumerGroup, request: JoinRequest) -> Subscription:
    """
    Raises:
        KafkaError: INCONSISTENT_GROUP_PROTOCOL.
    """
    names = [name for name, _ in request.protocols]
    if request.protocol_type != PROTOCOL_TYPE or not names or not group.supports_classic(names):
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    try:
        # Whatever protocol a group would choose, its metadata must be good, and all of them say the same.
        subscriptions = [read_subscription(metadata) for _, metadata in request.protocols]
    except MalformedProtocol as malformed:
        raise KafkaError(ErrorCode.inconsistent_group_protocol, str(malformed)) from malformed
    return subscriptions[0]


def _find(group: ConsumerGroup, request: JoinRequest, member_id: str) -> tuple[Member | None, Member | None]:
    """(the member whose place is taken, the member as it was); None for neither.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    instance_id = request.group_instance_id
    existing = group.members.get(member_id)
    if instance_id is not None:
        existing = group.static_member(instance_id)
        if request.member_id:
            if existing is None:
                raise KafkaError(ErrorCode.unknown_member_id)
            if existing.member_id != request.member_id:
                raise KafkaError(ErrorCode.fenced_instance_id)
    if existing is None:
        return None, None
    if existing.member_id != member_id or existing.state is MemberState.AWAY:
        return existing, existing.returned(member_id)
    return None, existing


def _profile(request: JoinRequest, subscription: Subscription, old: Profile) -> Profile:
    timeout_ms = request.rebalance_timeout_ms
    return Profile(
        instance_id=request.group_instance_id or old.instance_id,
        rack_id=subscription.rack_id or old.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=timeout_ms if timeout_ms > 0 else request.session_timeout_ms,
        topics=subscription.topics,
        assignor=old.assignor,
        classic=ClassicSide(request.session_timeout_ms, tuple(request.protocols)),
    )


def _member(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation_id: int
) -> Member:
    """
    Raises:
        KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION.
    """
    if group_instance_id is None:
        member = group.members.get(member_id)
    else:
        member = group.static_member(group_instance_id)
        if member is not None and member.member_id != member_id:
            raise KafkaError(ErrorCode.fenced_instance_id)
    if member is None or not member.speaks_classic:
        raise KafkaError(ErrorCode.unknown_member_id)
    if generation_id != member.epoch:
        raise KafkaError(ErrorCode.illegal_generation)
    return member


def _is_behind(group: ConsumerGroup, member: Member) -> bool:
    """Whether there is a newer target than the one the member has come to, and it need not revoke first."""
    return member.epoch < group.assignment_epoch and member.state is not MemberState.REVOKING
