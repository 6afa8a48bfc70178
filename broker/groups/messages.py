"""What goes into the group coordinator and what comes out: plain data without a protocol version.

The request handlers turn Kafka's messages into these and back; whatever depends on the version of a request
is a flag here. Strings that Kafka's older versions cannot hold as null (protocol names below JoinGroup v7)
are None here and become "" there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from broker.groups.consumer.states import ConsumerGroupState
from broker.groups.states import GroupState
from wire.errors import ErrorCode

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""(name, metadata) by preference. The metadata is the members' business: the coordinator never reads it."""

NO_MEMBER_ID = ""
NO_GENERATION = -1

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"
"""Types of groups, as ListGroups names them: of the classic protocol, and of the new one (KIP-848)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroup, versions 0-9."""

    group_id: str
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    """KIP-345: the name of a static member, which outlives its member ids."""
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    """Zero or less (version 0 has no such field): the session timeout."""
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    require_known_member_id: bool = False
    """KIP-394, true for version 4 and above: a dynamic member is first told its id, then joins with it."""
    can_skip_assignment: bool = False
    """KIP-814, true for version 9 and above: a returning static leader is told the members, not to assign."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """One member as the leader sees it; `metadata` belongs to the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """`members` is filled for the leader alone."""

    error: ErrorCode = ErrorCode.none
    member_id: str
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroup, versions 0-5. `assignments` comes from the leader; other members send none."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    require_protocol: bool = False
    """KIP-559, true for version 5: protocol type and name must be given."""
    assignments: Sequence[tuple[str, bytes]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """Without a member id the instance id alone names a static member: removal by an administrator."""

    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """LeaveGroup, versions 0-5; below version 3 `members` has exactly one entry."""

    group_id: str
    members: Sequence[LeavingMember]


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResult:
    error: ErrorCode = ErrorCode.none
    members: tuple[LeftMember, ...] = ()

    @property
    def single_error(self) -> ErrorCode:
        """The one error code that versions 0-2 can carry."""
        if self.error is ErrorCode.none and self.members:
            return self.members[0].error
        return self.error


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """One group for ListGroups."""

    group_id: str
    protocol_type: str
    state: GroupState | ConsumerGroupState
    group_type: str = CLASSIC_TYPE


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member for DescribeGroups; `metadata` is empty unless the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group for DescribeGroups; `protocol_name` is "" unless the group is stable."""

    group_id: str
    state: GroupState | ConsumerGroupState
    generation_id: int
    protocol_type: str
    protocol_name: str
    leader_id: str | None
    members: tuple[MemberDescription, ...]
    group_type: str = CLASSIC_TYPE
    """DescribeGroups shows no groups of another type."""
    topics: frozenset[str] | None = None
    """The names of the topics that its members subscribe to, where the group itself knows them."""


JoinReply: TypeAlias = Callable[[JoinResult], None]
SyncReply: TypeAlias = Callable[[SyncResult], None]
