"""Placement in a cluster whose one group holds everything: nodes on record, and a leader that leaves a draining node.

Runs with the node that leads, on its scheduler, and ends with it. All nodes have everything: there are no replicas to
move; who is a node at all is the work of `member_changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from broker.cluster_view import ClusterView
from broker.node_registry import NodeRecord, NodeRegistry
from broker.placement import Move, MoveLeader, Policy, RangeView
from broker.placement_driver import PlacementDriver
from storage.clock import Scheduler
from txn.metastore import MetaStore


class LeaderPlacement:
    """A `broker.placement_driver.Surroundings`. `hand_over(node)` makes that node the leader, or tries."""

    def __init__(
        self, store: MetaStore, view: ClusterView, scheduler: Scheduler, hand_over: Callable[[int], None]
    ) -> None:
        self._registry = NodeRegistry(store, scheduler.now_ms)
        self._view = view
        self._hand_over = hand_over
        self._driver = PlacementDriver(self, scheduler, self._policy)

    def close(self) -> None:
        self._driver.close()

    def _policy(self) -> Policy:
        """As many replicas as there are members: none is moved."""
        return Policy(replication_factor=max((len(one.replicas) for one in self._view.ranges()), default=1))

    def in_charge(self) -> bool:
        return self._view.controller() == self._view.node_id

    def nodes(self) -> Mapping[int, NodeRecord]:
        return self._registry.all()

    def away(self) -> Collection[int]:
        return self._view.away()

    def ranges(self) -> Sequence[RangeView]:
        return [one.for_placement() for one in self._view.ranges()]

    def order(self, move: Move) -> None:
        if isinstance(move, MoveLeader):
            self._hand_over(move.target)

    def emptied(self, node: int) -> None:
        """Noted where members are changed."""
