"""When ranges are split and merged without being asked: one pure function over plain data (design, section 5).

A range is split where its one file and one flush at a time are what producers wait for: it takes more bytes per second
than a device shares out well, or its flushes have become slow. Neighbours that are nearly idle are merged again, since
each range is a file, and a flush of its own in every commit that touches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal


@dataclass(frozen=True, slots=True)
class RangeLoad:
    """What one range carries: partitions `first`..`last`; bytes appended per second, over the policy's window, in all
    and per partition; the median time of its flushes in ms; when it came to be, in ms since the epoch."""

    first: int
    last: int
    bytes_per_s: float
    flush_ms: float
    created_ms: int
    per_partition: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of automatic changes. `split_bytes_per_s` and `merge_bytes_per_s` are per range; a cooldown holds for
    ranges younger than it, and `max_ranges` for the topic. A merge leaves room: the sum stays below half of a split."""

    split_bytes_per_s: float = 64e6
    split_flush_ms: float = 250.0
    split_flush_bytes_per_s: float = 4e6
    """Slow flushes split a range only if it carries this much: else the device is slow, not the range large."""
    merge_bytes_per_s: float = 1e6
    split_cooldown_ms: int = 60_000
    merge_cooldown_ms: int = 600_000
    max_ranges: int = 16


@dataclass(frozen=True, slots=True)
class Decision:
    """One change, or none: `at` is where the second half of a split begins; a merge joins partitions first..last."""

    action: Literal["split", "merge", "none"]
    first: int
    last: int
    reason: str
    at: int = -1


def decide(ranges: Sequence[RangeLoad], policy: Policy, now_ms: int) -> list[Decision]:
    """What to do now, the most urgent first: at most one change per range, and for every range the reason.

    `ranges` by first partition, covering the topic.
    """
    decisions = [_split(load, len(ranges), policy, now_ms) for load in ranges]
    if any(decision.action == "split" for decision in decisions):
        return sorted(decisions, key=lambda decision: decision.action != "split")
    merges = [
        merge
        for left, right in pairwise(ranges)
        if (merge := _merge(left, right, policy, now_ms)) is not None
    ]
    return (merges[:1] if merges else []) + decisions


def _split(load: RangeLoad, count: int, policy: Policy, now_ms: int) -> Decision:
    def nothing(reason: str) -> Decision:
        return Decision("none", load.first, load.last, reason)

    rate = f"{load.bytes_per_s / 1e6:.1f} MB/s"
    if load.bytes_per_s >= policy.split_bytes_per_s:
        why = f"{rate}, a range carries up to {policy.split_bytes_per_s / 1e6:.1f}"
    elif load.flush_ms >= policy.split_flush_ms and load.bytes_per_s >= policy.split_flush_bytes_per_s:
        why = f"its flushes take {load.flush_ms:.0f} ms at {rate}"
    else:
        return nothing(f"{rate}, flushes of {load.flush_ms:.1f} ms: nothing to relieve")
    if load.first == load.last:
        return nothing(f"{why}; but one partition cannot be split")
    if count >= policy.max_ranges:
        return nothing(f"{why}; but the topic has its limit of {policy.max_ranges} ranges")
    if now_ms - load.created_ms < policy.split_cooldown_ms:
        return nothing(f"{why}; but it is younger than {policy.split_cooldown_ms / 1000:.0f} s")
    return Decision("split", load.first, load.last, why, _middle(load))


def _middle(load: RangeLoad) -> int:
    """The partition from which on the second half of the bytes is written; both halves have one at least."""
    half, carried = sum(load.per_partition.values()) / 2, 0.0
    best, best_gap = load.first + 1, float("inf")
    for partition in range(load.first, load.last):
        carried += load.per_partition.get(partition, 0.0)
        if abs(carried - half) < best_gap:
            best, best_gap = partition + 1, abs(carried - half)
    return best


def _merge(left: RangeLoad, right: RangeLoad, policy: Policy, now_ms: int) -> Decision | None:
    together = left.bytes_per_s + right.bytes_per_s
    if together >= min(policy.merge_bytes_per_s, policy.split_bytes_per_s / 2):
        return None
    if now_ms - max(left.created_ms, right.created_ms) < policy.merge_cooldown_ms:
        return None
    return Decision(
        "merge",
        left.first,
        right.last,
        f"together they carry {together / 1e6:.2f} MB/s: one file does for both",
    )
