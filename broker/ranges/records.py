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
    """Partitions `first` to `last` of a topic. `replicas`: the group's first members; the first of them should lead."""

    topic: str
    topic_id: bytes
    first: int
    last: int
    replicas: tuple[int, ...]
    created_ms: int

    @classmethod
    def of(cls, value: Any) -> RangeRecord:
        return cls(**{**value, "replicas": tuple(value["replicas"])})

    def value(self) -> dict[str, Any]:
        return {**asdict(self), "replicas": list(self.replicas)}

    @property
    def id(self) -> UUID:
        return UUID(bytes=self.topic_id)

    @property
    def members(self) -> bytes:
        """As the group's first header block has them."""
        return membership.encode(Membership(frozenset(self.replicas)))


def first_segment(group: int) -> int:
    return group * SEGMENTS_PER_RANGE


def directory(group: int) -> str:
    """Where a node keeps its replica."""
    return f"ranges/{group:010d}"
