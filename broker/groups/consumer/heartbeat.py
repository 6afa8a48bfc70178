"""ConsumerGroupHeartbeat: joining, living and leaving in one request (KIP-848).

Guarantee: a request is either refused and changes nothing, or does all of this: takes what the member says,
gives the group a new target where that, the topics or other members call for one, and moves the member a step
towards its part.

Source: Kafka's group coordinator, its order of checks included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from broker.groups.consumer.core import Core
from broker.groups.consumer.group import ConsumerGroup, size_bytes
from broker.groups.consumer.member import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Member,
    MemberState,
    Profile,
    without_epochs,
)
from broker.groups.consumer.messages import HeartbeatReply, HeartbeatRequest, HeartbeatResult
from broker.groups.consumer.migration import Migration
from broker.groups.rebalance import store_error
from wire.errors import ErrorCode, KafkaError


class Heartbeats:
    """Handles ConsumerGroupHeartbeat for all groups, inside the shared outbox."""

    def __init__(self, core: Core, migration: Migration, new_member_id: Callable[[str], str]) -> None:
        self._core = core
        self._migration = migration
        self._new_member_id = new_member_id

    def heartbeat(self, request: HeartbeatRequest, reply: HeartbeatReply) -> None:
        """Answers through `reply`, once: when all that the answer tells of is durable."""
        try:
            self._check(request)
            if request.member_epoch in (LEAVE_EPOCH, AWAY_EPOCH):
                group, result = self._leave(request)
            else:
                group, result = self._live(request)
        except KafkaError as refused:
            result = HeartbeatResult(error=refused.code, message=refused.message)
            self._core.shared.outbox.add(reply, result)
        else:
            self._core.answer(group, reply, result, _not_stored)

    def _check(self, request: HeartbeatRequest) -> None:
        """What can be said of a request without its group."""
        epoch = request.member_epoch
        if not request.member_id and (request.names_itself or epoch > 0 or epoch == LEAVE_EPOCH):
            raise _invalid("the member id is empty")
        for name, value in (
            ("group id", request.group_id),
            ("instance id", request.instance_id),
            ("rack id", request.rack_id),
        ):
            if value is not None and not value.strip():
                raise _invalid(f"the {name} is empty")
        if epoch == JOIN_EPOCH:
            if request.rebalance_timeout_ms is None:
                raise _invalid("a member that joins must say its rebalance timeout")
            if request.owned is None or request.owned:
                raise _invalid("a member that joins must own nothing, and say so")
            if request.topics is None and request.pattern is None:
                raise _invalid("a member that joins must say its topics or a pattern")
        elif epoch == AWAY_EPOCH and request.instance_id is None:
            raise _invalid("only a static member may leave for a while")
        elif epoch < AWAY_EPOCH:
            raise _invalid(f"{epoch} is no member epoch")
        assignors = self._core.config.assignors
        if request.assignor is not None and request.assignor not in assignors:
            raise KafkaError(
                ErrorCode.unsupported_assignor,
                f"the assignor {request.assignor!r} is not among those served: {', '.join(assignors)}",
            )

    # -- leaving

    def _leave(self, request: HeartbeatRequest) -> tuple[ConsumerGroup, HeartbeatResult]:
        core = self._core
        group = core.groups.get(request.group_id)
        if group is None:
            raise _no_group(request.group_id)
        if request.instance_id is None:
            member = _dynamic(group, request.member_id)
        else:
            member = _static(group, request.instance_id, request.member_id)
        if request.member_epoch == AWAY_EPOCH:
            core.end_time(group, member)
            core.touch(group, member)
            if member.state is not MemberState.AWAY:
                group.put(member.gone_away())
        else:
            core.fence(group, (member,))
        return group, HeartbeatResult(member_id=member.member_id, member_epoch=request.member_epoch)

    # -- living

    def _live(self, request: HeartbeatRequest) -> tuple[ConsumerGroup, HeartbeatResult]:
        core = self._core
        joins = request.member_epoch == JOIN_EPOCH
        group = core.groups.get(request.group_id)
        if group is None:
            if not joins:
                raise _no_group(request.group_id)
            group = self._migration.plan_consumer_group(request.group_id)
        member_id = request.member_id or self._new_member_id(request.client_id)
        predecessor, before = self._find(group, request, member_id)
        if before is None and len(group.members) >= core.shared.config.max_members_per_group:
            raise KafkaError(
                ErrorCode.group_max_size_reached, f"the group has its limit of {len(group.members)} members"
            )
        old = before.profile if before is not None else Profile()
        profile = _updated(old, request)
        if profile.pattern and profile.pattern != old.pattern:
            core.patterns.check(profile.pattern)
        if before is None:
            member = Member(member_id=member_id, profile=profile)
            core.check_memory(size_bytes(member))
        elif profile != old:
            member = replace(before, profile=profile)
            core.check_memory(profile.size_bytes - old.size_bytes)
        else:
            member = before

        # From here on nothing is refused.
        if group.group_id not in core.groups:
            self._migration.carry_out(group)
        if predecessor is not None:
            target = group.target_of(predecessor.member_id)
            core.take_out(group, predecessor)
            group.set_target(member_id, target)
        told = before.assigned if before is not None else {}
        if member != group.members.get(member_id):
            group.put(member)
        subscription_changed = (profile.topics, profile.pattern) != (old.topics, old.pattern)
        core.look_at_topics(group, changed=subscription_changed)
        core.move_on(group)
        core.watch(group, member)
        member = core.reconcile(group, member, request.owned, subscription_changed=subscription_changed)
        whole = joins or request.is_full or member.assigned != told
        return group, HeartbeatResult(
            member_id=member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=core.heartbeat_interval_ms(group, member),
            assignment=without_epochs(member.assigned) if whole else None,
        )

    def _find(
        self, group: ConsumerGroup, request: HeartbeatRequest, member_id: str
    ) -> tuple[Member | None, Member | None]:
        """(the member whose place is taken, the member as it was); None for neither.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, FENCED_MEMBER_EPOCH.
        """
        instance_id = request.instance_id
        if request.member_epoch != JOIN_EPOCH:
            if instance_id is None:
                member = _dynamic(group, member_id)
            else:
                member = _static(group, instance_id, member_id)
            _check_epoch(member, request)
            return None, member
        existing = group.members.get(member_id)
        if instance_id is not None:
            existing = group.static_member(instance_id) or existing
        if existing is None:
            return None, None
        if existing.state is MemberState.AWAY:
            return existing, existing.returned(member_id)
        if existing.member_id == member_id:
            return None, existing  # it was fenced, or lost the answer to its first request
        if not existing.speaks_classic:
            raise KafkaError(
                ErrorCode.unreleased_instance_id,
                f"the instance id {instance_id!r} is still that of member {existing.member_id!r}",
            )
        return existing, existing.returned(member_id)


def _updated(profile: Profile, request: HeartbeatRequest) -> Profile:
    """What a member says of itself, with what the request says anew."""

    def new(value: str | None, old: str | None) -> str | None:
        return old if value is None else value

    timeout_ms = request.rebalance_timeout_ms
    return Profile(
        instance_id=new(request.instance_id, profile.instance_id),
        rack_id=new(request.rack_id, profile.rack_id),
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=profile.rebalance_timeout_ms if timeout_ms is None else timeout_ms,
        topics=profile.topics if request.topics is None else frozenset(request.topics),
        pattern=profile.pattern if request.pattern is None else request.pattern,
        assignor=new(request.assignor, profile.assignor),
    )


def _dynamic(group: ConsumerGroup, member_id: str) -> Member:
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.unknown_member_id, f"{member_id!r} is not a member of group {group.group_id!r}"
        )
    return member


def _static(group: ConsumerGroup, instance_id: str, member_id: str) -> Member:
    member = group.static_member(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.unknown_member_id, f"no member has the instance id {instance_id!r}")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.fenced_instance_id,
            f"the instance id {instance_id!r} is now that of member {member.member_id!r}",
        )
    return member


def _check_epoch(member: Member, request: HeartbeatRequest) -> None:
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    # The answer that told of a new epoch may have been lost; but what it took away must not be held on to.
    missed = epoch < member.epoch and epoch == member.previous_epoch
    if not missed or request.owned is None or not member.owns_all(request.owned):
        raise KafkaError(
            ErrorCode.fenced_member_epoch,
            f"epoch {epoch} is not the member's, which is {member.epoch}: it must give up its partitions and join",
        )


def _no_group(group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.group_id_not_found, f"there is no consumer group {group_id!r}")


def _invalid(what: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, what)


def _not_stored(error: Exception) -> HeartbeatResult:
    return HeartbeatResult(error=store_error(error), message="the group could not be stored")
