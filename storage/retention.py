"""Which segments go by age and by size: one pure function (design, section 11).

Whole sealed segments go, oldest first along the chains. Size is counted over the topic, as a segment holds records of
many partitions: so much per partition, times their number. So a topic never takes more than that and what has not been
sealed, while a partition that takes more than its share leaves less to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Policy:
    """A topic's settings, -1: no limit. `delete` is whether cleanup.policy has it: else only what lies below the log
    starts goes."""

    delete: bool
    retention_ms: int
    retention_bytes: int
    """Of the whole topic."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One segment of a topic. Sizes in bytes, times in ms since the epoch."""

    segment_id: int
    parents: tuple[int, ...]
    size_bytes: int
    newest_ms: int
    """The largest timestamp of its records; where they have none, when the segment was made."""
    ready: bool
    """It is settled: sealed, and none of its records has an open outcome, or one that is not recorded for good."""
    hidden: bool
    """Everything in it is below the log starts."""
    needed: bool
    """It goes on with an active segment that a start could not open rightly without it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`hide`: readers shall not see these any more; `remove`: of those, whose files go. `reasons` by segment id."""

    hide: tuple[int, ...]
    remove: tuple[int, ...]
    reasons: dict[int, str]


def newest_ms(segment: Segment) -> int:
    """As `Candidate.newest_ms`."""
    newest = max((index.max_timestamp for index in segment.indexes.values() if index.runs), default=-1)
    return newest if newest >= 0 else segment.header.created_ms


def decide(candidates: Sequence[Candidate], policy: Policy, now_ms: int) -> Verdict:
    """What goes now. `candidates`: all segments of the topic, parents before children."""
    known = {one.segment_id for one in candidates}
    left_bytes = sum(one.size_bytes for one in candidates)
    hidden: set[int] = set()
    removed: list[int] = []
    reasons: dict[int, str] = {}
    for one in candidates:
        if not one.ready or any(parent in known and parent not in hidden for parent in one.parents):
            continue
        reason = _reason(one, policy, left_bytes, now_ms)
        if reason is None:
            continue
        hidden.add(one.segment_id)
        reasons[one.segment_id] = reason
        left_bytes -= one.size_bytes
        if not one.needed and all(parent in removed for parent in one.parents if parent in known):
            removed.append(one.segment_id)
    return Verdict(
        tuple(one.segment_id for one in candidates if one.segment_id in hidden), tuple(removed), reasons
    )


def _reason(one: Candidate, policy: Policy, left_bytes: int, now_ms: int) -> str | None:
    if one.hidden:
        return "everything in it was deleted"
    if not policy.delete:
        return None
    if 0 <= policy.retention_ms < now_ms - one.newest_ms:
        return f"its newest record is {(now_ms - one.newest_ms) // 1000} s old"
    if policy.retention_bytes >= 0 and left_bytes - one.size_bytes >= policy.retention_bytes:
        return f"there are {left_bytes - one.size_bytes} newer bytes"
    return None
