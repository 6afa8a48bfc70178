"""All consumer groups of a broker, whatever their protocol: one door for the request handlers.

Guarantees: those of the two coordinators behind it, and that a group id is known to one of them at a time. A
request goes to the coordinator that has the group; a group changes sides when a member of the other protocol joins
it or the last one is gone (`consumer.migration`).

Times are milliseconds of one clock that does not go backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from broker.groups.config import GroupConfig
from broker.groups.consumer.config import ConsumerConfig
from broker.groups.consumer.coordinator import ConsumerCoordinator
from broker.groups.consumer.core import ChangeStore
from broker.groups.consumer.embedded import PROTOCOL_TYPE
from broker.groups.consumer.group import ConsumerGroup, GroupChange
from broker.groups.consumer.messages import ConsumerGroupDescription, HeartbeatReply, HeartbeatRequest
from broker.groups.consumer.migration import REBALANCE_KEY
from broker.groups.consumer.record import StoredGroup
from broker.groups.consumer.topics import TopicSource
from broker.groups.coordinator import GroupCoordinator
from broker.groups.messages import (
    CONSUMER_TYPE,
    NO_MEMBER_ID,
    GroupDescription,
    GroupOverview,
    JoinReply,
    JoinRequest,
    JoinResult,
    LeaveRequest,
    LeaveResult,
    MemberDescription,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from broker.groups.rebalance import store_error
from broker.groups.states import GroupState
from wire.errors import ErrorCode


class Groups:
    """Both coordinators of one broker.

    `new_member_id(prefix)` makes a unique member id. `store` is given whatever of a group has to outlive a crash.
    `topics` are those of the broker.
    """

    def __init__(
        self,
        config: GroupConfig,
        consumer_config: ConsumerConfig,
        topics: TopicSource,
        *,
        new_member_id: Callable[[str], str],
        store: ChangeStore,
    ) -> None:
        self._classic = GroupCoordinator(
            config,
            new_member_id=new_member_id,
            store=lambda group_id, record, done: store(group_id, GroupChange(record, whole=True), done),
        )
        self._shared = self._classic.rebalancer
        self._consumer = ConsumerCoordinator(consumer_config, self._shared, topics, store, new_member_id)

    # -- start and time

    def load(self, stored: Mapping[str, StoredGroup], now_ms: int) -> None:
        """Restore groups from what `store` was given, before anything else is asked; sessions start afresh.

        Raises:
            BadGroupRecord: a record that cannot be read.
        """
        classic = {
            group_id: records.state
            for group_id, records in stored.items()
            if records.state is not None and not records.is_consumer_group
        }
        self._classic.load(classic, now_ms)
        with self._shared.outbox:
            self._consumer.load(
                {group_id: records for group_id, records in stored.items() if group_id not in classic}
            )
            for group_id, record in classic.items():
                if record.get(REBALANCE_KEY) and self._shared.groups[group_id].state is GroupState.STABLE:
                    self._shared.prepare(self._shared.groups[group_id])

    def reconfigure(self, config: GroupConfig) -> None:
        """Go on under other limits and delays: what asks for something new meets them."""
        self._classic.reconfigure(config)

    def next_deadline(self) -> int | None:
        """When to call `tick` next: nothing ends earlier, maybe later. None while nothing is waited for."""
        return self._classic.next_deadline()

    def tick(self, now_ms: int) -> None:
        """End what has run out. The work of one call is bounded, as `GroupCoordinator.tick` says."""
        self._classic.tick(now_ms)

    # -- members of the new protocol

    def consumer_heartbeat(self, request: HeartbeatRequest, now_ms: int, reply: HeartbeatReply) -> None:
        """ConsumerGroupHeartbeat. `reply` is called once, when what it tells of is durable."""
        with self._shared.outbox:
            self._advance(now_ms)
            self._consumer.heartbeat(request, reply)

    # -- members of the classic protocol

    def join(self, request: JoinRequest, now_ms: int, reply: JoinReply) -> None:
        """JoinGroup: to the group as it is; one without members becomes a classic one."""
        with self._shared.outbox:
            self._advance(now_ms)
            group = self._consumer.groups.get(request.group_id)
            if group is not None and group.members:
                self._consumer.classic_members.join(group, request, reply)
                return
            if group is not None and request.member_id == NO_MEMBER_ID:
                self._consumer.delete(group, _nobody_waits)
            elif group is None and self._is_full(request):
                refused = JoinResult(error=ErrorCode.group_max_size_reached, member_id=NO_MEMBER_ID)
                self._shared.outbox.add(reply, refused)
                return
            self._classic.join(request, now_ms, reply)

    def sync(self, request: SyncRequest, now_ms: int, reply: SyncReply) -> None:
        """SyncGroup. `reply` is called once."""
        with self._shared.outbox:
            self._advance(now_ms)
            group = self._consumer.groups.get(request.group_id)
            if group is None:
                self._classic.sync(request, now_ms, reply)
            elif group.members:
                self._consumer.classic_members.sync(group, request, reply)
            else:
                self._shared.outbox.add(reply, SyncResult(error=ErrorCode.unknown_member_id))

    def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None, now_ms: int
    ) -> ErrorCode:
        """Heartbeat: NONE, or REBALANCE_IN_PROGRESS to make the member join again."""
        group = self._consumer.groups.get(group_id)
        if group is None:
            return self._classic.heartbeat(group_id, generation_id, member_id, group_instance_id, now_ms)
        with self._shared.outbox:
            self._advance(now_ms)
            return self._consumer.classic_members.heartbeat(
                group, generation_id, member_id, group_instance_id
            )

    def leave(self, request: LeaveRequest, now_ms: int) -> LeaveResult:
        """LeaveGroup: members go at once, whatever their protocol."""
        group = self._consumer.groups.get(request.group_id)
        if group is None:
            return self._classic.leave(request, now_ms)
        with self._shared.outbox:
            self._advance(now_ms)
            return self._consumer.classic_members.leave(group, request)

    # -- offsets

    def validate_offset_commit(
        self,
        group_id: str,
        generation_id: int,
        member_id: str,
        group_instance_id: str | None,
        *,
        transactional: bool,
        now_ms: int,
        partitions: Iterable[tuple[UUID, int]] = (),
        knows_epochs: bool = False,
    ) -> ErrorCode:
        """Whether these may commit offsets of these partitions for the group.

        `generation_id` may be a member epoch; `knows_epochs` says that the request's version speaks of them
        (OffsetCommit 9 and above), and has an error for a group that does not exist.
        """
        group = self._consumer.groups.get(group_id)
        if group is not None:
            return self._consumer.check_commit(
                group,
                member_id,
                group_instance_id,
                generation_id,
                partitions,
                transactional=transactional,
                knows_epochs=knows_epochs,
            )
        if knows_epochs and generation_id >= 0 and group_id not in self._shared.groups:
            return ErrorCode.group_id_not_found
        return self._classic.validate_offset_commit(
            group_id,
            generation_id,
            member_id,
            group_instance_id,
            transactional=transactional,
            now_ms=now_ms,
        )

    def validate_offset_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether a member may fetch the group's offsets; only groups of the new protocol look at members."""
        group = self._consumer.groups.get(group_id)
        return ErrorCode.none if group is None else self._consumer.check_fetch(group, member_id, member_epoch)

    # -- administration

    def list_groups(self) -> list[GroupOverview]:
        """Every group that has or had members; those that only hold offsets are not known here."""
        return self._classic.list_groups() + [
            GroupOverview(group.group_id, PROTOCOL_TYPE, group.state, CONSUMER_TYPE)
            for group in self._consumer.groups.values()
        ]

    def describe(self, group_id: str) -> GroupDescription | None:
        """What groups of both protocols have in common. None for a group that is not known here."""
        group = self._consumer.groups.get(group_id)
        return self._classic.describe(group_id) if group is None else self._overall(group)

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription | None:
        """None for a group that is not known here, or is a classic one."""
        group = self._consumer.groups.get(group_id)
        return None if group is None else self._consumer.describe(group)

    def delete(self, group_id: str, reply: Callable[[ErrorCode], None]) -> None:
        """DeleteGroups: `reply` once the deletion is durable; GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP at once."""
        group = self._consumer.groups.get(group_id)
        if group is None:
            self._classic.delete(group_id, reply)
            return
        with self._shared.outbox:
            if group.members:
                self._shared.outbox.add(reply, ErrorCode.non_empty_group)
                return
            self._consumer.delete(
                group, lambda error: reply(ErrorCode.none if error is None else store_error(error))
            )

    # -- inside

    def _advance(self, now_ms: int) -> None:
        self._shared.now_ms = max(self._shared.now_ms, now_ms)

    def _is_full(self, request: JoinRequest) -> bool:
        """Whether the join would make one group too many; the classic coordinator counts only its own."""
        known = self._shared.groups
        if not request.group_id or request.member_id or request.group_id in known:
            return False
        return len(known) + len(self._consumer.groups) >= self._shared.config.max_groups

    def _overall(self, group: ConsumerGroup) -> GroupDescription:
        return GroupDescription(
            group_id=group.group_id,
            state=group.state,
            generation_id=group.epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol_name="",
            leader_id=None,
            members=tuple(
                MemberDescription(
                    member.member_id,
                    member.profile.instance_id,
                    member.profile.client_id,
                    member.profile.client_host,
                    b"",
                    b"",
                )
                for member in group.members.values()
            ),
            group_type=CONSUMER_TYPE,
            topics=self._consumer.subscribed_topics(group),
        )


def _nobody_waits(error: Exception | None) -> None:
    """An empty group that could not be deleted is found again by the next start, and gives way again."""
