"""What to compact, and when: pure decisions over a topic's sealed segments (cleanup.policy=compact).

How a segment is written anew is in `storage.compaction_rewrite`, which another process does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Policy:
    """A topic's settings of compaction. Times in ms."""

    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int
    min_dirty_ratio: float
    segment_bytes: int = 0
    """Neighbours that are together no larger than this are joined; 0: none are."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sealed segment, as far as compaction is concerned."""

    segment_id: int
    parents: tuple[int, ...]
    size_bytes: int
    max_timestamp_ms: int
    ready: bool
    """Every transaction in it is settled, and everything in it is below the last stable offsets."""
    cleaned_ms: int | None = None
    """When it was first compacted; None: it never was."""
    tombstones: bool = False
    """It holds marks of deletion still."""
    first: int = 0
    last: int = 0
    """Its partitions."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do: from `dirty` segments the keys are learned, and all `segments` are written anew."""

    segments: tuple[int, ...]
    dirty: tuple[int, ...]
    without_tombstones: tuple[int, ...]
    reason: str
    join: bool = False
    """They become one, and nothing is taken."""


def choose(candidates: Sequence[Candidate], policy: Policy, now_ms: int) -> Choice | None:
    """Which segments to compact now, if any. `candidates`: all segments of a topic, parents before children.

    Nothing is compacted beyond a segment that must not be: a mark of deletion must never be taken before what it
    deletes.
    """
    chosen: list[Candidate] = []
    taken: set[int] = set()
    known = {candidate.segment_id for candidate in candidates}
    for one in candidates:
        parents_taken = all(parent in taken or parent not in known for parent in one.parents)
        if one.ready and parents_taken and one.max_timestamp_ms <= now_ms - policy.min_lag_ms:
            chosen.append(one)
            taken.add(one.segment_id)
    dirty = [one for one in chosen if one.cleaned_ms is None]
    over = [
        one.segment_id
        for one in chosen
        if one.tombstones
        and one.cleaned_ms is not None
        and now_ms - one.cleaned_ms >= policy.delete_retention_ms
    ]
    dirty_bytes = sum(one.size_bytes for one in dirty)
    total = sum(one.size_bytes for one in chosen)
    ratio = dirty_bytes / total if total else 0.0
    if dirty and ratio >= policy.min_dirty_ratio:
        reason = f"{ratio:.0%} of {total} bytes are not compacted yet"
    elif any(now_ms - one.max_timestamp_ms >= policy.max_lag_ms for one in dirty):
        reason = "max.compaction.lag.ms is over"
    elif over:
        return Choice(tuple(over), (), tuple(over), "delete.retention.ms of marks of deletion is over")
    else:
        return _choose_join(candidates, policy)
    return Choice(
        tuple(one.segment_id for one in chosen),
        tuple(one.segment_id for one in dirty),
        tuple(over),
        reason,
    )


JOIN_AT_LEAST: Final = 4
JOIN_AT_MOST: Final = 64


def _choose_join(candidates: Sequence[Candidate], policy: Policy) -> Choice | None:
    """Small segments that follow each other, all compacted, of the same partitions.

    The largest is at most half of the whole, so a record is written anew a few times at most, however many come. None
    that holds marks of deletion: their time is counted per segment.
    """

    def joinable(one: Candidate) -> bool:
        return one.ready and one.cleaned_ms is not None and not one.tombstones

    following = {one.parents[0]: one for one in candidates if len(one.parents) == 1}
    for first in candidates:
        group: list[Candidate] = []
        total = largest = fitting = 0
        one: Candidate | None = first
        while one is not None and joinable(one) and (one.first, one.last) == (first.first, first.last):
            total += one.size_bytes
            if total > policy.segment_bytes or len(group) == JOIN_AT_MOST:
                break
            group.append(one)
            largest = max(largest, one.size_bytes)
            if len(group) >= JOIN_AT_LEAST and 2 * largest <= total:
                fitting = len(group)
            one = following.get(one.segment_id)
        if fitting:
            chosen = tuple(one.segment_id for one in group[:fitting])
            return Choice(chosen, (), (), f"{fitting} small segments become one", join=True)
    return None
