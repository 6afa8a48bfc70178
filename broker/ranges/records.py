"""What the metadata store says of a replicated range: `/range/<group>`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

from raftish import membership
from raftish.membership import Membership

FIRST_GROUP: Final = 16
"""The numbers below are of groups that hold no range (`metadata_group.METADATA_GROUP`)."""
SEGMENTS_PER_RANGE: Final = 1 << 32
"""Segments have one number each in the whole cluster: a range's are those from its group's number times this on."""


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """Partitions `first` to `last` of a topic. `replicas`: the group's members, as its leader reported them last; of
    a new one the first of them should lead. Changes: `broker.ranges.moves`."""

    topic: str
    topic_id: bytes
    first: int
    last: int
    replicas: tuple[int, ...]
    created_ms: int
    began: tuple[int, ...] = ()
    """The group's first members, where it has others now."""
    target: tuple[int, ...] = ()
    """Whom the group should have; empty: it has them."""
    step: int = 0
    """Grows with each target."""
    left: tuple[int, ...] = ()
    """Nodes that may have had a vote and have none any more: none is made a member again before all of them have
    `dropped` what they had (docs/raft.md, 8)."""
    dropped: tuple[int, ...] = ()

    @classmethod
    def of(cls, value: Any) -> RangeRecord:
        fields: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in value.items()}
        return cls(**fields)

    def value(self) -> dict[str, Any]:
        return {key: list(one) if isinstance(one, tuple) else one for key, one in asdict(self).items()}

    @property
    def goal(self) -> tuple[int, ...]:
        """The members that the group should have."""
        return self.target or self.replicas

    @property
    def holders(self) -> frozenset[int]:
        """The nodes that have a replica, or are to have one."""
        return frozenset(self.replicas + self.target)

    @property
    def founders(self) -> tuple[int, ...]:
        return self.began or self.replicas

    @property
    def id(self) -> UUID:
        return UUID(bytes=self.topic_id)

    @property
    def members(self) -> bytes:
        """As the group's first header block has them."""
        return membership.encode(Membership(frozenset(self.founders)))


def first_segment(group: int) -> int:
    return group * SEGMENTS_PER_RANGE


def directory(group: int) -> str:
    """Where a node keeps its replica."""
    return f"ranges/{group:010d}"
