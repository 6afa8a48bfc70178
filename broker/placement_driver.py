"""Carries out what placement decides: on the node that takes changes, look, order the next moves, and look again.

It keeps nothing that a successor would miss: every look begins with how things are. A move that was ordered and has not
shown yet is not ordered again before `patience_ms`: whoever was told may be gone. Doing one twice does no harm,
since a leader refuses what is done already or makes no sense any more. A node that leaves and holds nothing is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from broker.node_registry import NodeRecord, Standing, views
from broker.placement import Move, NodeView, Plan, Policy, RangeView, decide
from storage.clock import Periodic, Scheduler

log = logging.getLogger("sealog")


class Surroundings(Protocol):
    """What the driver needs of its node. No call waits."""

    def in_charge(self) -> bool:
        """Whether this node is the one that takes changes."""
        ...

    def nodes(self) -> Mapping[int, NodeRecord]: ...

    def away(self) -> Collection[int]: ...

    def ranges(self) -> Sequence[RangeView]: ...

    def order(self, move: Move) -> None:
        """Tell the range's leader, wherever it is; lost or refused, it will show."""
        ...

    def emptied(self, node: int) -> None:
        """Note that a leaving node holds nothing any more."""
        ...


class PlacementDriver:
    """`policy` is asked for at each look, since settings change."""

    def __init__(
        self,
        around: Surroundings,
        scheduler: Scheduler,
        policy: Callable[[], Policy],
        *,
        interval_ms: int = 1_000,
        patience_ms: int = 10_000,
    ) -> None:
        self._around = around
        self._scheduler = scheduler
        self._policy = policy
        self._interval_ms = interval_ms
        self._patience_ms = patience_ms
        self._ordered: dict[Move, int] = {}
        """When, by the monotonic clock."""
        self._were_away: set[int] = set()
        self._back_ms: dict[int, int] = {}
        """When a node was seen to be back, by the wall clock."""
        self._looks = Periodic(scheduler, interval_ms, self.look)
        self.plan = Plan()
        """What the last look found, for people."""

    def close(self) -> None:
        self._looks.close()

    def look(self) -> None:
        """Once; also to be called when something has changed."""
        if not self._around.in_charge():
            # Who comes into charge begins without what it knew long ago.
            self._ordered.clear()
            self._were_away.clear()
            self.plan = Plan()
            return
        nodes, ranges = self._around.nodes(), self._around.ranges()
        plan = decide(self._views(nodes), ranges, self._policy(), self._scheduler.now_ms())
        if plan.moves and plan.moves != self.plan.moves:
            for move in plan.moves:
                log.info("placement: %s", move)
        self.plan = plan
        self._carry_out(plan)
        held = {node for one in ranges for node in (*one.replicas, *one.learners)}
        for node, record in nodes.items():
            if record.standing is Standing.LEAVING and node not in held:
                self._around.emptied(node)

    def _carry_out(self, plan: Plan) -> None:
        now_ms = self._scheduler.monotonic_ms()
        self._ordered = {
            move: at_ms
            for move, at_ms in self._ordered.items()
            if move in plan.moves and now_ms - at_ms < self._patience_ms
        }
        for move in plan.moves:
            if move not in self._ordered:
                self._ordered[move] = now_ms
                self._around.order(move)

    def _views(self, nodes: Mapping[int, NodeRecord]) -> list[NodeView]:
        """A node that was away counts as young: it gets leaders after its cooldown."""
        away = set(self._around.away())
        now_ms = self._scheduler.now_ms()
        self._back_ms |= dict.fromkeys(self._were_away - away, now_ms)
        self._were_away = away
        return [
            replace(view, since_ms=max(view.since_ms, self._back_ms.get(view.id, 0)))
            for view in views(nodes, away)
        ]
