"""The states of a consumer group and the only ways from one to another.

Guarantee: a group is always in exactly one of these states, and no code can move it along an edge that is
not in `TRANSITIONS`: an attempt raises instead of leaving a group that no member can make sense of.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class GroupState(Enum):
    """A classic group's state; the value is the name that ListGroups and DescribeGroups show."""

    EMPTY = "Empty"
    """No members. The generation is kept, so that it never repeats while the group exists."""

    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for members to (re)join; joins are held until all have, or the rebalance timeout ends."""

    COMPLETING_REBALANCE = "CompletingRebalance"
    """Members know the new generation; their syncs are held until the leader's assignment is durable."""

    STABLE = "Stable"
    """Every member of the generation can have its assignment."""

    DEAD = "Dead"
    """Deleted; nothing leads out of here."""


TRANSITIONS: Final[Mapping[GroupState, frozenset[GroupState]]] = MappingProxyType(
    {
        GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
        GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
        GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
        GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
        GroupState.DEAD: frozenset(),
    }
)


class ImpossibleTransition(RuntimeError):
    """A group was told to go where `TRANSITIONS` has no edge: a defect of this package, never of a client."""

    def __init__(self, group_id: str, current: GroupState, wanted: GroupState) -> None:
        super().__init__(f"group {group_id!r} cannot go from {current.value} to {wanted.value}")
