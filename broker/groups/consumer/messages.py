"""What goes into consumer groups of the new protocol and what comes out: plain data without a protocol version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from broker.groups.consumer.member import Partitions
from broker.groups.consumer.states import ConsumerGroupState
from wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """ConsumerGroupHeartbeat, versions 0-1. None: not said, or as before."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    topics: Sequence[str] | None = None
    pattern: str | None = None
    """Regular expression of topic names; "" for none any more."""
    assignor: str | None = None
    owned: Partitions | None = None
    """What the client holds at this moment, by topic id."""
    names_itself: bool = True
    """True for version 1 and above: the client makes its member id."""

    @property
    def is_full(self) -> bool:
        """Whether it says all there is, as a client does that lost track: it is told its whole assignment."""
        says_topics = self.topics is not None or self.pattern is not None
        return self.rebalance_timeout_ms is not None and says_topics and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """None where it is as the member was told last."""


HeartbeatReply: TypeAlias = Callable[[HeartbeatResult], None]


@dataclass(frozen=True, slots=True)
class ConsumerMemberDescription:
    """One member for ConsumerGroupDescribe."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str
    assignment: Partitions
    """All that it owns, what it was told to give up included."""
    target: Partitions
    speaks_classic: bool


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """One group for ConsumerGroupDescribe."""

    group_id: str
    state: ConsumerGroupState
    epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
