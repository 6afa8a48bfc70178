"""The coordinator of consumer groups of the new protocol (KIP-848), without I/O.

Guarantees: those of `core`, `heartbeat`, `classic_members` and `migration`, and

- It never looks at a clock, rolls dice or touches a disk, as the classic coordinator does not.
- After `load`, members go on as if nothing had happened: same epochs, same assignments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from broker.groups.consumer.classic_members import ClassicMembers
from broker.groups.consumer.config import ConsumerConfig
from broker.groups.consumer.core import ChangeStore, Core
from broker.groups.consumer.group import ConsumerGroup
from broker.groups.consumer.heartbeat import Heartbeats
from broker.groups.consumer.member import Member, Partitions, without_epochs
from broker.groups.consumer.messages import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    HeartbeatReply,
    HeartbeatRequest,
)
from broker.groups.consumer.migration import Migration
from broker.groups.consumer.record import StoredGroup, read_group
from broker.groups.consumer.topics import TopicSource
from broker.groups.rebalance import Rebalancer
from wire.errors import ErrorCode


class ConsumerCoordinator:
    """All groups of the new protocol of one broker, beside the classic ones that `rebalancer` has."""

    def __init__(
        self,
        config: ConsumerConfig,
        rebalancer: Rebalancer,
        topics: TopicSource,
        store: ChangeStore,
        new_member_id: Callable[[str], str],
    ) -> None:
        self._core = Core(config, rebalancer, topics, store)
        migration = Migration(self._core, rebalancer)
        self._heartbeats = Heartbeats(self._core, migration, new_member_id)
        self.classic_members = ClassicMembers(self._core, migration, new_member_id)
        self.groups = self._core.groups

    def load(self, stored: Mapping[str, StoredGroup]) -> None:
        """Restore groups, before anything else is asked; sessions start afresh.

        Raises:
            BadGroupRecord: a record that cannot be read.
        """
        for group_id, records in stored.items():
            self._core.adopt(read_group(group_id, records))

    def heartbeat(self, request: HeartbeatRequest, reply: HeartbeatReply) -> None:
        """ConsumerGroupHeartbeat. `reply` is called once, when what it tells of is durable."""
        self._heartbeats.heartbeat(request, reply)

    def check_commit(
        self,
        group: ConsumerGroup,
        member_id: str,
        group_instance_id: str | None,
        member_epoch: int,
        partitions: Iterable[tuple[UUID, int]],
        *,
        transactional: bool,
        knows_epochs: bool,
    ) -> ErrorCode:
        """Whether these offsets may be committed (KIP-848, KIP-1251).

        By anybody while there are no members, and in a transaction without member and epoch. By a member in its
        epoch, or in an older one that is not older than its ownership of each of the partitions.

        UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION (a member of the new protocol in a request without epochs),
        STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for members of the classic protocol and in transactions.
        """
        if member_epoch < 0 and not group.members:
            return ErrorCode.none
        if transactional and member_epoch == -1 and not member_id and group_instance_id is None:
            return ErrorCode.none
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if not transactional and not member.speaks_classic and not knows_epochs:
            return ErrorCode.unsupported_version
        if member_epoch == member.epoch:
            return ErrorCode.none
        if member_epoch < member.epoch and all(
            (given := member.given_in(*partition)) is not None and member_epoch >= given
            for partition in partitions
        ):
            return ErrorCode.none
        return ErrorCode.illegal_generation if transactional else _stale(member)

    def check_fetch(self, group: ConsumerGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether offsets may be fetched: by anybody who names no member, and by a member in its epoch.

        UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for members of the classic protocol.
        """
        if member_id is None and member_epoch < 0:
            return ErrorCode.none
        member = group.members.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none if member_epoch == member.epoch else _stale(member)

    def subscribed_topics(self, group: ConsumerGroup) -> frozenset[str]:
        """The names of the topics that somebody in the group subscribes to."""
        return frozenset(self._core.subscribed_names(group))

    def delete(self, group: ConsumerGroup, done: Callable[[Exception | None], None]) -> None:
        """Delete a group that has no members; `done` when that is durable."""
        self._core.replace(group)
        self._core.when_stored(group, done)

    def describe(self, group: ConsumerGroup) -> ConsumerGroupDescription:
        return ConsumerGroupDescription(
            group.group_id,
            group.state,
            group.epoch,
            group.assignment_epoch,
            self._core.assignor_of(group),
            tuple(_describe(member, group.target_of(member.member_id)) for member in group.members.values()),
        )


def _stale(member: Member) -> ErrorCode:
    return ErrorCode.illegal_generation if member.speaks_classic else ErrorCode.stale_member_epoch


def _describe(member: Member, target: Partitions) -> ConsumerMemberDescription:
    profile = member.profile
    owned = dict(without_epochs(member.assigned))
    for topic_id, numbers in without_epochs(member.revoking).items():
        owned[topic_id] = owned.get(topic_id, frozenset()) | numbers
    return ConsumerMemberDescription(
        member_id=member.member_id,
        instance_id=profile.instance_id,
        rack_id=profile.rack_id,
        member_epoch=member.epoch,
        client_id=profile.client_id,
        client_host=profile.client_host,
        topics=tuple(sorted(profile.topics)),
        pattern=profile.pattern,
        assignment=owned,
        target=target,
        speaks_classic=member.speaks_classic,
    )
