"""A member of a consumer group of the new protocol (KIP-848): what it wants, what it has, and its states.

Guarantee: a member is a value. Whatever changes it makes another one, along an edge of `TRANSITIONS` or not at
all, so a change that could not be stored is undone by putting the old value back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id. No topic is there without a partition."""

Epochs: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""The same, each partition with the member epoch in which it was given to its owner."""

JOIN_EPOCH = 0
"""Sent to join, or to join again after being fenced."""

LEAVE_EPOCH = -1
"""Sent to leave for good."""

AWAY_EPOCH = -2
"""Sent by a static member that leaves and means to come back; its epoch while it is away."""


class MemberState(Enum):
    """How far a member is on its way to its target assignment; the value is the stored form."""

    JOINING = "joining"
    """Just made; it is given its first assignment by the same request."""

    STABLE = "stable"
    """Has what its target says."""

    REVOKING = "revoking"
    """Has been told to give up partitions and has not said yet that it did (Kafka: UNREVOKED_PARTITIONS)."""

    WAITING = "waiting"
    """Is in the target's epoch, but others still hold some of its partitions (Kafka: UNRELEASED_PARTITIONS)."""

    AWAY = "away"
    """A static member that said it would be back: its partitions are kept for it until its session ends."""


_PRESENT: Final = frozenset({MemberState.STABLE, MemberState.REVOKING, MemberState.WAITING})

TRANSITIONS: Final[Mapping[MemberState, frozenset[MemberState]]] = MappingProxyType(
    {
        MemberState.JOINING: _PRESENT,
        MemberState.STABLE: _PRESENT | {MemberState.AWAY},
        MemberState.REVOKING: _PRESENT | {MemberState.AWAY},
        MemberState.WAITING: _PRESENT | {MemberState.AWAY},
        # It comes back as another member, which takes its place.
        MemberState.AWAY: frozenset({MemberState.AWAY}),
    }
)


class ImpossibleMove(RuntimeError):
    """A member was told to go where `TRANSITIONS` has no edge: a defect of this package, never of a client."""

    def __init__(self, member_id: str, current: MemberState, wanted: MemberState) -> None:
        super().__init__(f"member {member_id!r} cannot go from {current.value} to {wanted.value}")


@dataclass(frozen=True, slots=True)
class ClassicSide:
    """What a member says that speaks the classic protocol in a group of the new one."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) by preference, as in JoinGroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a member says of itself."""

    instance_id: str | None = None
    """KIP-345: the name of a static member, which outlives its member ids."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    """How long it may take to give up partitions."""
    topics: frozenset[str] = frozenset()
    """Subscribed topics by name; they need not exist."""
    pattern: str = ""
    """A regular expression of further topics; "" for none."""
    assignor: str | None = None
    """The server side assignor it votes for."""
    classic: ClassicSide | None = None

    @property
    def size_bytes(self) -> int:
        """Memory it takes, roughly."""
        size = len(self.client_id) + len(self.client_host) + len(self.instance_id or "") + len(self.pattern)
        size += sum(len(topic) + 64 for topic in self.topics)
        if self.classic is not None:
            size += sum(len(name) + len(metadata) for name, metadata in self.classic.protocols)
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member at one moment."""

    member_id: str
    profile: Profile
    epoch: int = JOIN_EPOCH
    """The epoch it was told last; AWAY_EPOCH while it is away."""
    previous_epoch: int = -1
    """The one before: a request that carries it may come from a client that missed the last answer."""
    state: MemberState = MemberState.JOINING
    assigned: Epochs = field(default_factory=dict)
    """What it may use."""
    revoking: Epochs = field(default_factory=dict)
    """What it was told to give up and still owns."""

    def moved(
        self,
        state: MemberState,
        *,
        epoch: int,
        assigned: Epochs | None = None,
        revoking: Epochs | None = None,
    ) -> Member:
        """The member in another state; `revoking` ends unless given. Raises ImpossibleMove."""
        if state not in TRANSITIONS[self.state]:
            raise ImpossibleMove(self.member_id, self.state, state)
        return replace(
            self,
            state=state,
            epoch=epoch,
            previous_epoch=self.previous_epoch if epoch == self.epoch else self.epoch,
            assigned=self.assigned if assigned is None else assigned,
            revoking=revoking or {},
        )

    def gone_away(self) -> Member:
        """A static member that left and means to come back."""
        # Whoever takes its place has another member epoch, so these count as given in an epoch before any.
        assigned = {topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in self.assigned.items()}
        return self.moved(MemberState.AWAY, epoch=AWAY_EPOCH, assigned=assigned)

    def returned(self, member_id: str) -> Member:
        """Its successor under the same instance id, which has yet to be given an assignment."""
        return Member(member_id=member_id, profile=self.profile, previous_epoch=0, assigned=self.assigned)

    def is_settled(self, target_epoch: int) -> bool:
        """Whether it has all that the target of this epoch gives it."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    @property
    def speaks_classic(self) -> bool:
        return self.profile.classic is not None

    def given_in(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch in which it was given a partition that it owns; None where it does not."""
        given = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if given is None else given

    def owns_all(self, partitions: Partitions) -> bool:
        """Whether all of these are assigned to it."""
        return all(
            partition in self.assigned.get(topic_id, {})
            for topic_id, numbers in partitions.items()
            for partition in numbers
        )


def without_epochs(epochs: Epochs) -> Partitions:
    return {topic_id: frozenset(partitions) for topic_id, partitions in epochs.items()}
