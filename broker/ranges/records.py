"""What the metadata store says of a replicated range: `/range/<group>`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

from raftish import membership
from raftish.membership import Membership
from txn import keys

FIRST_GROUP: Final = 16
"""The numbers below are of groups that hold no range (`metadata_group.METADATA_GROUP`)."""


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
    becomes: tuple[tuple[int, int, int], ...] = ()
    """(group, first, last) of the ranges that shall take over its partitions (`broker.ranges.lineage`); of a merge,
    with those of the other parents."""
    retired: bool = False
    """They have: there are records of them, and this one holds no partitions any more."""
    parents: tuple[int, ...] = ()
    """Whose partitions it took over, in their order."""
    before: tuple[int, ...] = ()
    """The groups whose segments its log may begin with."""
    wanted: int = 0
    """How many replicas it should have; 0: as many as it began with."""
    base_term: int = 0
    """Its group begins in this term, so that leader epochs rise."""

    @classmethod
    def of(cls, value: Any) -> RangeRecord:
        return cls(**{key: _frozen(one) for key, one in value.items()})

    def value(self) -> dict[str, Any]:
        return {key: _plain(one) for key, one in asdict(self).items()}

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
    def factor(self) -> int:
        """How many replicas it should have."""
        return self.wanted or len(self.founders)

    @property
    def id(self) -> UUID:
        return UUID(bytes=self.topic_id)

    @property
    def members(self) -> bytes:
        """As the group's first header block has them."""
        return membership.encode(Membership(frozenset(self.founders)))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def first_segment(group: int) -> int:
    return group * keys.SEGMENTS_PER_RANGE


def directory(group: int) -> str:
    """Where a node keeps its replica."""
    return f"ranges/{group:010d}"
