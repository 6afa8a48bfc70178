"""Arithmetic on offsets: what a batch takes of what is there, and how it is shared among tasks. Pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark_sealog.cluster import TopicPartition

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition: start <= offset < end."""

    part: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As the Kafka connector writes offsets: {"topic": {"0": 12}}, sorted."""
    out: dict[str, dict[str, int]] = {}
    for part in sorted(offsets):
        out.setdefault(part.topic, {})[str(part.partition)] = offsets[part]
    return out


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """`end`, or so much less that about `limit` records lie before it, by each partition's share of what waits.

    Every partition with records gets on by one at least, so that none starves.
    """
    waiting = {part: max(end[part] - start.get(part, end[part]), 0) for part in end}
    total = sum(waiting.values())
    if total <= limit:
        return dict(end)
    out: Offsets = {}
    for part, size in waiting.items():
        share = limit * size / total
        taken = math.ceil(share) if share < 1 else math.floor(share)
        out[part] = end[part] - size + min(taken, size)
    return out


def split(ranges: Sequence[OffsetRange], at_least: int, longest: int) -> list[OffsetRange]:
    """Cut ranges so that there are `at_least` so many (0: no matter), none above `longest` records (0: no matter).

    Ranges are cut into equal parts, the longer ones into more; empty ones are left out.
    """
    ranges = [one for one in ranges if len(one)]
    pieces = dict.fromkeys(ranges, 1)
    if longest:
        pieces = {one: math.ceil(len(one) / longest) for one in ranges}
    missing = at_least - sum(pieces.values())
    if missing > 0:
        total = sum(map(len, ranges))
        for one in ranges:
            wanted = round(at_least * len(one) / total) if total else 1
            pieces[one] = max(pieces[one], min(max(wanted, 1), len(one)))
    out = []
    for one in ranges:
        count = pieces[one]
        bounds = [one.start + len(one) * n // count for n in range(count + 1)]
        out += [OffsetRange(one.part, a, b) for a, b in itertools.pairwise(bounds)]
    return out
