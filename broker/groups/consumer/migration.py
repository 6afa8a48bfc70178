"""Groups that change their protocol, with members or without (KIP-848, "Migration").

Guarantees:

- A classic group becomes one of the new protocol when the first member of that joins, and back when the last
  one is gone; ids, subscriptions, assignments and epochs (generations) go along, and the change is one batch.
- A group that cannot be changed is left as it is, and whoever wanted it changed is refused.
- What a classic group holds is answered: its members rejoin, and are served as members of the new group.
- A group becomes classic in a rebalance, unless everybody already has what the target assignment says: so
  nobody is given what another has yet to give up.

Source: Kafka's group coordinator with group.consumer.migration.policy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from broker.groups.consumer.core import Core
from broker.groups.consumer.embedded import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    read_assignment,
    read_subscription,
    write_assignment,
)
from broker.groups.consumer.group import AlreadyOwned, ConsumerGroup, Header
from broker.groups.consumer.member import ClassicSide, Member, MemberState, Partitions, Profile
from broker.groups.consumer.topics import TopicSource, topics_hash
from broker.groups.group import Group
from broker.groups.group import Member as ClassicMember
from broker.groups.messages import NO_MEMBER_ID, JoinReply, JoinResult, SyncResult
from broker.groups.rebalance import Rebalancer, store_error
from broker.groups.record import make_record
from broker.groups.states import GroupState
from wire.errors import ErrorCode, KafkaError

REBALANCE_KEY: Final = "rebalance"
"""In the record of a classic group that has yet to share out what members of the new protocol had: a start goes on
with that. The next generation's record lacks it."""


class Migration:
    """Moves groups between the two coordinators, inside their shared outbox."""

    def __init__(self, core: Core, rebalancer: Rebalancer) -> None:
        self._core = core
        self._rebalancer = rebalancer
        core.when_fenced = self._downgrade_without

    # -- from classic

    def plan_consumer_group(self, group_id: str) -> ConsumerGroup:
        """A group for a member that joins by the new protocol, from the classic one if it has members.

        Nothing has changed yet: `carry_out` does that.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND for a classic group that cannot be upgraded, GROUP_MAX_SIZE_REACHED
                where there are too many groups.
        """
        classic = self._rebalancer.groups.get(group_id)
        if classic is None:
            if len(self._rebalancer.groups) + len(self._core.groups) >= self._rebalancer.config.max_groups:
                raise KafkaError(ErrorCode.group_max_size_reached, "this broker has its limit of groups")
            return ConsumerGroup(group_id)
        if classic.state is GroupState.EMPTY:
            return ConsumerGroup(group_id)
        if not self._core.config.migration_policy.may_upgrade:
            raise _not_upgraded(group_id, "the migration policy forbids it")
        if classic.protocol_type != PROTOCOL_TYPE:
            raise _not_upgraded(group_id, f"its protocol type is {classic.protocol_type!r}")
        try:
            return _upgraded(classic, self._core.topics)
        except (MalformedProtocol, AlreadyOwned) as error:
            raise _not_upgraded(group_id, str(error)) from error

    def carry_out(self, planned: ConsumerGroup) -> None:
        """Put a planned group in its place."""
        classic = self._rebalancer.groups.get(planned.group_id)
        if classic is not None:
            self._dismiss(classic)
        self._core.adopt(planned)
        planned.note_all()
        if classic is not None:
            self._core.when_stored(planned, partial(self._upgrade_stored, classic))

    def _dismiss(self, classic: Group) -> None:
        """Take a classic group out of its coordinator; those whose requests it holds are told to join again."""
        rebalancer = self._rebalancer
        for member_id in list(classic.pending):
            rebalancer.remove_pending(classic, member_id)
        for member in classic.members.values():
            rejoin = JoinResult(error=ErrorCode.rebalance_in_progress, member_id=member.member_id)
            rebalancer.answer_join(classic, member, rejoin)
            rebalancer.answer_sync(classic, member, SyncResult(error=ErrorCode.rebalance_in_progress))
            rebalancer.deadlines.cancel(member.session)
        rebalancer.deadlines.cancel(classic.join_deadline)
        rebalancer.deadlines.cancel(classic.sync_deadline)
        del rebalancer.groups[classic.group_id]

    def _upgrade_stored(self, classic: Group, error: Exception | None) -> None:
        """Let go of the classic group, or put it back where it was."""
        rebalancer, group_id = self._rebalancer, classic.group_id
        if error is None or group_id in rebalancer.groups or group_id in self._core.groups:
            for member in list(classic.members.values()):
                classic.remove(member)
            return
        rebalancer.adopt(classic)
        for member in classic.members.values():
            rebalancer.start_session(classic, member)
        if classic.state is GroupState.PREPARING_REBALANCE:
            due_ms = rebalancer.now_ms + classic.rebalance_timeout_ms
            rebalancer.deadlines.set(classic.join_deadline, due_ms)
        elif classic.state is not GroupState.EMPTY:
            rebalancer.prepare(classic)

    # -- to classic

    def may_downgrade(self, group: ConsumerGroup, leaving: Collection[Member] = ()) -> bool:
        """Whether the group becomes a classic one without these members: only classic ones stay."""
        gone = {member.member_id for member in leaving}
        staying = [member for member in group.members.values() if member.member_id not in gone]
        return (
            0 < len(staying) <= self._rebalancer.config.max_members_per_group
            and all(member.speaks_classic for member in staying)
            and self._core.config.migration_policy.may_downgrade
        )

    def downgrade(self, group: ConsumerGroup, joining: tuple[Member, JoinReply] | None = None) -> None:
        """Make it a classic group. A member that is joining is answered by that, or by its rebalance."""
        settled = all(member.is_settled(group.epoch) for member in group.members.values())
        self._downgrade(group, (), joining, rebalance=not settled)

    def _downgrade_without(self, group: ConsumerGroup, leaving: Collection[Member]) -> bool:
        if not self.may_downgrade(group, leaving):
            return False
        self._downgrade(group, leaving, None, rebalance=True)
        return True

    def _downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[Member],
        joining: tuple[Member, JoinReply] | None,
        *,
        rebalance: bool,
    ) -> None:
        core, rebalancer = self._core, self._rebalancer
        gone = {member.member_id for member in leaving}
        classic = _downgraded(group, gone, rebalancer, core.topics)
        record = make_record(classic)
        if rebalance:
            record[REBALANCE_KEY] = True
        core.replace(group, record)
        rebalancer.adopt(classic)
        for member in classic.members.values():
            rebalancer.start_session(classic, member)
        if joining is not None:
            member_id, reply = joining[0].member_id, joining[1]
            if rebalance:
                classic.hold_join(classic.members[member_id], reply)
            else:
                # Told of no leader, it does not assign anew: in a stable group nobody would hear of it.
                result = JoinResult(
                    member_id=member_id,
                    generation_id=classic.generation_id,
                    protocol_type=classic.protocol_type,
                    protocol_name=classic.protocol_name,
                )
                core.answer(group, reply, result, not_joined)
        if rebalance:
            rebalancer.prepare(classic)


def _upgraded(classic: Group, topics: TopicSource) -> ConsumerGroup:
    """The same group in the new protocol: everybody has what the last assignment gave.

    Raises:
        MalformedProtocol: a subscription or assignment that is not a consumer's, or has more to it than that.
        AlreadyOwned: the leader gave a partition to two members.
    """
    group = ConsumerGroup(classic.group_id)
    epoch = classic.generation_id
    protocol = classic.select_protocol()
    for old in classic.members.values():
        subscription = read_subscription(old.metadata(protocol))
        assigned: Partitions = {}
        if old.assignment:
            by_name, user_data = read_assignment(old.assignment)
            if user_data:
                raise MalformedProtocol("the assignor of its members puts data of its own into assignments")
            assigned = by_topic_id(by_name, topics)
        group.put(
            Member(
                member_id=old.member_id,
                profile=Profile(
                    instance_id=old.group_instance_id,
                    rack_id=subscription.rack_id,
                    client_id=old.client_id,
                    client_host=old.client_host,
                    rebalance_timeout_ms=old.rebalance_timeout_ms,
                    topics=subscription.topics,
                    classic=ClassicSide(old.session_timeout_ms, old.protocols),
                ),
                epoch=epoch,
                previous_epoch=epoch,
                state=MemberState.STABLE,
                assigned={topic_id: dict.fromkeys(numbers, epoch) for topic_id, numbers in assigned.items()},
            )
        )
        group.set_target(old.member_id, assigned)
    group.set_header(Header(epoch, epoch, topics_hash(topics, group.names)))
    return group


def _downgraded(
    group: ConsumerGroup, gone: Collection[str], rebalancer: Rebalancer, topics: TopicSource
) -> Group:
    """The same group in the classic protocol, stable, without those that are gone: everybody has its target."""
    classic = Group(group.group_id, rebalancer.budget)
    for member in group.members.values():
        side = member.profile.classic
        if side is not None and member.member_id not in gone:
            classic.add(
                ClassicMember(
                    member.member_id,
                    group_instance_id=member.profile.instance_id,
                    client_id=member.profile.client_id,
                    client_host=member.profile.client_host,
                    session_timeout_ms=side.session_timeout_ms,
                    rebalance_timeout_ms=member.profile.rebalance_timeout_ms,
                    protocols=side.protocols,
                ),
                PROTOCOL_TYPE,
            )
    classic.generation_id = group.epoch
    classic.protocol_name = classic.select_protocol()
    classic.assign(
        {
            member.member_id: write_assignment(
                read_subscription(member.metadata(classic.protocol_name)).version,
                by_topic_name(group.target_of(member.member_id), topics),
            )
            for member in classic.members.values()
        }
    )
    classic.state = GroupState.STABLE
    return classic


def by_topic_id(partitions: Mapping[str, frozenset[int]], topics: TopicSource) -> Partitions:
    """Partitions by topic id, without what is not there."""
    found: dict[UUID, frozenset[int]] = {}
    for name, numbers in partitions.items():
        topic = topics.get(name)
        if topic is not None:
            there = frozenset(number for number in numbers if 0 <= number < len(topic.partitions))
            if there:
                found[topic.id] = there
    return found


def by_topic_name(partitions: Partitions, topics: TopicSource) -> dict[str, frozenset[int]]:
    """Partitions by topic name, without topics that are not there."""
    found = ((topics.get_by_id(topic_id), numbers) for topic_id, numbers in partitions.items())
    return {topic.name: numbers for topic, numbers in found if topic is not None}


def not_joined(error: Exception) -> JoinResult:
    """What a JoinGroup is answered with whose group could not be stored."""
    return JoinResult(error=store_error(error), member_id=NO_MEMBER_ID)


def _not_upgraded(group_id: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found,
        f"the classic group {group_id!r} cannot take members of this protocol: {why}",
    )
