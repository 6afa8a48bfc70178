"""sealog's own API: the ranges and segments of a topic, seen and changed (design, section 5)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from wire.private_answer import Answer

Name = Annotated[str, Meta(min_length=1, max_length=249)]
Index = Annotated[int, Meta(ge=0, lt=1 << 31)]


class _Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    topic: Name


class Split(_Request, frozen=True, kw_only=True, tag="split"):
    """Let a range begin at each of these partitions."""

    at: Annotated[tuple[Index, ...], Meta(min_length=1, max_length=10_000)]


class Merge(_Request, frozen=True, kw_only=True, tag="merge"):
    """One range for partitions `first`..`last`, which must be whole ranges."""

    first: Index
    last: Index


class Seal(_Request, frozen=True, kw_only=True, tag="seal"):
    """Seal the active segment of the range of this partition and go on in a new one."""

    partition: Index


class Describe(_Request, frozen=True, kw_only=True, tag="describe"):
    """All segments of the topic, and what the policy would do now."""


Request = Split | Merge | Seal | Describe


class Segment(Struct, frozen=True, kw_only=True):
    """One segment. Sizes in bytes; `records` are offsets given out in it; `open` counts transactions with records here
    that are open or ending; times in milliseconds since the epoch."""

    id: int
    first: int
    last: int
    state: Literal["ACTIVE", "SEALED"]
    parents: tuple[int, ...]
    created_ms: int
    term: int
    size_bytes: int
    records: int
    open: int = 0


class Advice(Struct, frozen=True, kw_only=True):
    """What the policy would do, or why it does nothing."""

    action: Literal["split", "merge", "none"]
    first: int
    last: int
    reason: str


class Response(Answer, frozen=True, kw_only=True):
    """The ranges as (first, last) after the call; whether it changed them. The rest is Describe's."""

    ranges: tuple[tuple[int, int], ...] = ()
    changed: bool = False
    epoch: int = 0
    segments: tuple[Segment, ...] = ()
    advice: tuple[Advice, ...] = ()
