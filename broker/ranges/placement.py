"""Leaders are spread over the nodes, and leave a draining one: a `broker.placement_driver.Surroundings`.

Runs with the controller, on its scheduler, and ends with it. Replicas are not moved yet: that needs changes of a
group's members and, for a range whose begin is gone, files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from broker.cluster_view import METADATA, range_name
from broker.node_registry import NodeRecord, NodeRegistry
from broker.placement import Move, MoveLeader, Policy, RangeView
from broker.placement_driver import PlacementDriver
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from broker.replication.metadata_group import METADATA_GROUP
from storage.clock import Scheduler


class RangePlacement:
    """`hand_over(leader, group, target)`: that leader shall let the target lead, or it is lost."""

    def __init__(
        self,
        registry: NodeRegistry,
        topics: RangeTopics,
        view: RangesView,
        scheduler: Scheduler,
        hand_over: Callable[[int, int, int], None],
    ) -> None:
        self._registry = registry
        self._topics = topics
        self._view = view
        self._hand_over = hand_over
        self._driver = PlacementDriver(self, scheduler, self._policy)

    def close(self) -> None:
        self._driver.close()

    def _policy(self) -> Policy:
        """As many replicas as the range has that has most: none is added. (A range with fewer waits.)"""
        return Policy(replication_factor=max((len(one.replicas) for one in self.ranges()), default=1))

    def in_charge(self) -> bool:
        return True

    def nodes(self) -> Mapping[int, NodeRecord]:
        return self._registry.all()

    def away(self) -> Collection[int]:
        return self._view.away()

    def ranges(self) -> Sequence[RangeView]:
        return [one.for_placement() for one in self._view.ranges()]

    def order(self, move: Move) -> None:
        if not isinstance(move, MoveLeader):
            return
        if move.range == METADATA:
            self._hand_over(move.source, METADATA_GROUP, move.target)
            return
        for group, record in self._topics.ranges.items():
            if range_name(record.topic, record.first, record.last) == move.range:
                self._hand_over(move.source, group, move.target)

    def emptied(self, node: int) -> None:
        """Nodes are not removed yet."""
