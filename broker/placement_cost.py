"""How far replicas are from where they should be: what one change of a range's replicas makes better or worse.

The whole is a sum over ranges and nodes, so a change is judged without looking at the other ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

Cost = tuple[int, int, int, int]
"""(replicas on nodes that go, replicas missing, pairs of one range in one rack, sum of squares of replicas per node).

The earlier ones weigh more than all later ones together.
"""

NOTHING: Cost = (0, 0, 0, 0)


def racks_of(nodes: Iterable[tuple[int, str | None]]) -> dict[int, object]:
    """The rack of each node; one that names none is a rack of its own."""
    return {node: ("of", node) if rack is None else rack for node, rack in nodes}


class Costs:
    """`staying`: the racks of the nodes that shall keep what they hold; every other node has to give it up.
    `held`: replicas per node now."""

    def __init__(
        self, staying: Mapping[int, str | None], held: Mapping[int, int], replication_factor: int
    ) -> None:
        self.racks = racks_of(staying.items())
        self.held = Counter(held)
        self._wanted = replication_factor

    def change(self, before: Sequence[int], after: Sequence[int], wanted: int | None = None) -> Cost:
        """What it adds to the whole if a range's replicas become others; below NOTHING: it gets better. `wanted`: how
        many this range should have, where that is not what the others should."""
        wanted = self._wanted if wanted is None else wanted
        old, new = self._of_range(before, wanted), self._of_range(after, wanted)
        squares = 0
        for node in set(before) ^ set(after):
            if node in self.racks:
                step = 1 if node in after else -1
                squares += (self.held[node] + step) ** 2 - self.held[node] ** 2
        return new[0] - old[0], new[1] - old[1], new[2] - old[2], squares

    def _of_range(self, replicas: Sequence[int], wanted: int) -> tuple[int, int, int]:
        here = [node for node in replicas if node in self.racks]
        per_rack = Counter(self.racks[node] for node in here)
        crowded = sum(count * (count - 1) // 2 for count in per_rack.values())
        return len(replicas) - len(here), max(0, wanted - len(replicas)), crowded
