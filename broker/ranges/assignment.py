"""Which nodes hold a new range. Pure; the choice itself is `broker.placement.place`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from broker.placement import NodeView, NoPlace, RangeView, place
from broker.ranges.records import RangeRecord
from wire.errors import ErrorCode, KafkaError


def replication_factor(wanted: int, nodes: int, default: int) -> int:
    """-1: the default, or as many as there are nodes. Raises KafkaError: INVALID_REPLICATION_FACTOR."""
    if wanted == -1:
        return min(default, nodes)
    if 1 <= wanted <= nodes:
        return wanted
    raise KafkaError(
        ErrorCode.invalid_replication_factor,
        f"replication factor {wanted} is refused: the cluster has {nodes} nodes",
    )


def split_evenly(first: int, count: int, ranges: int) -> list[tuple[int, int]]:
    """(first, last) of so many ranges, or fewer, that follow each other and hold these partitions."""
    parts = max(1, min(ranges, count))
    ends = [first + count * number // parts for number in range(parts + 1)]
    return [(begin, end - 1) for begin, end in pairwise(ends)]


def assign(
    nodes: Sequence[NodeView],
    ranges: Mapping[int, RangeRecord],
    leaders: Mapping[int, int],
    spans: Iterable[tuple[int, int]],
    factor: int,
) -> list[tuple[int, ...]]:
    """The replicas of each new range, the one that should lead first. `leaders`: who leads which group now, where that
    is known; of others the first replica is expected to. Raises KafkaError: INVALID_REPLICATION_FACTOR."""
    known = [
        RangeView(str(group), one.replicas, leaders.get(group, one.replicas[0]))
        for group, one in ranges.items()
    ]
    found: list[tuple[int, ...]] = []
    for first, last in spans:
        try:
            replicas = place(nodes, known, factor)
        except NoPlace as error:
            raise KafkaError(ErrorCode.invalid_replication_factor, str(error)) from error
        known.append(RangeView(f"new {first}-{last}", replicas, replicas[0]))
        found.append(replicas)
    return found
