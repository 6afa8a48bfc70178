"""Ranges that are split and merged, as their records have it (docs/raft.md, section 8). Pure.

    AT REST --wished--> RETIRING --succeeded--> RETIRED --(nobody needs it any more)--> its record is gone
                                 with the records of its children

A split has one parent and several children, a merge several parents and one child: all have the same members, so that
every node makes its replica of a child from its own of the parents. Each step is decided anew from the records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from broker.ranges.leaders import Led
from broker.ranges.records import RangeRecord

Span = tuple[int, int]
"""(first, last) partition."""

EPOCHS_BETWEEN: Final = 100
"""So far above its parents' last terms a child begins. Their groups go on meanwhile, and clients pass by whatever they
hear of a lower leader epoch than they knew."""


def is_at_rest(record: RangeRecord) -> bool:
    """Whether it may be split or merged now."""
    return not record.becomes and not record.target


def cut(first: int, last: int, at: Iterable[int]) -> list[Span]:
    """These partitions, with a range that begins at each of `at` among them."""
    starts = sorted({first, *(partition for partition in at if first < partition <= last)})
    return [(begin, end - 1) for begin, end in pairwise([*starts, last + 1])]


def same_members(records: Collection[RangeRecord]) -> bool:
    return len({frozenset(one.replicas) for one in records}) == 1


def wished(record: RangeRecord, children: Sequence[tuple[int, int, int]]) -> RangeRecord:
    """Its leader ends it as soon as it hears that."""
    assert is_at_rest(record)
    return replace(record, becomes=tuple(children))


def has_ended(record: RangeRecord, led: Led | None) -> bool:
    """Whether its leader says so, and that its members are those on record."""
    return (
        led is not None
        and led.is_retired
        and not led.learners
        and not record.target
        and set(led.voters) == set(record.replicas)
    )


def succeeded(
    parents: Mapping[int, RangeRecord], leds: Mapping[int, Led], now_ms: int
) -> tuple[dict[int, RangeRecord], dict[int, RangeRecord]]:
    """The records of the parents and of their children, when all parents have ended."""
    ordered = sorted(parents, key=lambda group: parents[group].first)
    retired = {group: replace(parents[group], retired=True) for group in ordered}
    base_term = max(leds[group].term for group in ordered) + EPOCHS_BETWEEN
    children: dict[int, RangeRecord] = {}
    for child, first, last in parents[ordered[0]].becomes:
        mine = [group for group in ordered if parents[group].first <= last and parents[group].last >= first]
        leader = leds[mine[0]].leader
        like = parents[mine[0]]
        rest = tuple(node for node in like.replicas if node != leader)
        before = {one for group in mine for one in leds[group].before}
        children[child] = RangeRecord(
            like.topic,
            like.topic_id,
            first,
            last,
            (leader, *rest),
            now_ms,
            parents=tuple(mine),
            before=tuple(sorted(before)),
            wanted=max(parents[group].factor for group in mine),
            base_term=base_term,
        )
    return retired, children


def is_over(record: RangeRecord, ranges: Mapping[int, RangeRecord], leds: Mapping[int, Led | None]) -> bool:
    """Whether every member of every child has its replica, so far as the children's leaders say; of one that is gone
    itself, its own children have."""
    for child, _, _ in record.becomes:
        known = ranges.get(child)
        led = leds.get(child)
        if known is None:
            continue
        if led is None or not led.is_here or not set(known.replicas) <= set(led.voters):
            return False
    return record.retired


def alive(ranges: Mapping[int, RangeRecord]) -> set[int]:
    """The groups that have segments somewhere: in their own ranges, or in those that came of them."""
    return {one for group, record in ranges.items() for one in (group, *record.before)}
