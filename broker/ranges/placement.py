"""Replicas and leaders are spread over the nodes, and leave one that drains: a `broker.placement_driver.Surroundings`.

Runs with the controller, on its scheduler, and ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from broker.cluster_view import METADATA, range_name
from broker.node_registry import NodeRecord, NodeRegistry
from broker.placement import Move, MoveLeader, Policy, RangeView
from broker.placement_driver import PlacementDriver
from broker.ranges.replica_moves import ReplicaMoves
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from broker.replication.metadata_group import METADATA_GROUP
from storage.clock import Scheduler
from txn.metastore import MetaStore

REPLICA_MOVES: Final = 4
"""Ranges on the move at a time. Each is a copy of a whole log, which a leader's disk and network have to give beside
what clients want; a few at a time keep several leaders busy, as the ranges of one topic have different ones."""


class RangePlacement:
    """`hand_over(leader, group, target)`: that leader shall let the target lead, or it is lost."""

    def __init__(
        self,
        registry: NodeRegistry,
        topics: RangeTopics,
        view: RangesView,
        scheduler: Scheduler,
        hand_over: Callable[[int, int, int], None],
        store: MetaStore,
    ) -> None:
        self._registry = registry
        self._topics = topics
        self._view = view
        self._hand_over = hand_over
        self.moves = ReplicaMoves(store, topics, scheduler, view.said_of)
        self._driver = PlacementDriver(self, scheduler, self._policy)

    def close(self) -> None:
        self._driver.close()

    def _policy(self) -> Policy:
        """Each range says how many replicas it should have."""
        return Policy(max_replica_moves=REPLICA_MOVES)

    def in_charge(self) -> bool:
        return True

    def nodes(self) -> Mapping[int, NodeRecord]:
        return self._registry.all()

    def away(self) -> Collection[int]:
        return self._view.away()

    def ranges(self) -> Sequence[RangeView]:
        return [one.for_placement() for one in self._view.ranges()]

    def order(self, move: Move) -> None:
        if move.range == METADATA:
            assert isinstance(move, MoveLeader), "all nodes are members of it"
            self._hand_over(move.source, METADATA_GROUP, move.target)
            return
        for group, record in self._topics.ranges.items():
            if range_name(record.topic, record.first, record.last) != move.range:
                continue
            if not isinstance(move, MoveLeader):
                self.moves.order(group, move)
            else:
                self._hand_over(move.source, group, move.target)

    def emptied(self, node: int) -> None:
        """Noted where members of the metadata's group are changed (`member_changes`)."""
