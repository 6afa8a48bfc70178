"""This node's replicas of ranges that take over the partitions of others: a split, or a merge.

    WAITING -> MAKING -> made         from this node's replicas of the parents, when they have ended here, all durable
            -> FETCHING -> made       from another member's replica, where they are not here, or not any more

Guarantee: what is made holds all that the parents had, as `storage.replica_child` has it: a range that began without
could give its node's vote to a log that lacks what was acknowledged. Until then the group takes no part here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from broker.ranges.records import RangeRecord, directory, first_segment
from storage.ancestry import Parent
from storage.clock import Scheduler
from storage.disk import Disk
from storage.layout import LogConfig
from storage.replica_child import NewRange, make_child

if TYPE_CHECKING:
    from broker.ranges.hosting import Hosted

log = logging.getLogger("sealog")


class Step(Enum):
    WAITING = "waiting for its parents"
    MAKING = "being made"


class Births:
    """`hosted_of(group)`: what is here; `made(hosted, error)` when its folder is whole."""

    def __init__(
        self,
        node_id: int,
        disk: Disk,
        scheduler: Scheduler,
        hosted_of: Callable[[int], Hosted | None],
        log_config: Callable[[RangeRecord], LogConfig],
        made: Callable[[Hosted, OSError | None], None],
    ) -> None:
        self._node_id = node_id
        self._disk = disk
        self._scheduler = scheduler
        self._hosted_of = hosted_of
        self._log_config = log_config
        self._made = made
        self._steps: dict[Hosted, Step] = {}
        self._is_look_due = False

    def begin(self, hosted: Hosted) -> None:
        self._steps[hosted] = Step.WAITING
        self.look_soon()

    def is_waiting(self, hosted: Hosted) -> bool:
        """Whether nothing of it is here, and nothing under way."""
        return self._steps.get(hosted) is Step.WAITING

    def forget(self, hosted: Hosted) -> None:
        self._steps.pop(hosted, None)

    def close(self) -> None:
        self._steps.clear()

    def look_soon(self) -> None:
        """A parent may have come to its end here."""
        if self._steps and not self._is_look_due:
            self._is_look_due = True
            self._scheduler.call_soon(self._look)

    def _look(self) -> None:
        self._is_look_due = False
        for hosted in [one for one, step in self._steps.items() if step is Step.WAITING]:
            parents = self._parents(hosted.record)
            if parents is not None:
                self._make(hosted, parents)

    def _parents(self, record: RangeRecord) -> list[Parent] | None:
        """None: not all are here and at their end."""
        found: list[Parent] = []
        for group in record.parents:
            hosted = self._hosted_of(group)
            replica = hosted.replica if hosted is not None else None
            parent = replica.as_parent() if replica is not None and replica.state == "OPEN" else None
            if parent is None:
                return None
            found.append(parent)
        return found

    def _make(self, hosted: Hosted, parents: list[Parent]) -> None:
        self._steps[hosted] = Step.MAKING
        make_child(
            self._disk,
            new_range(hosted.number, hosted.record),
            parents,
            self._log_config(hosted.record),
            partial(self._over, hosted),
        )

    def _over(self, hosted: Hosted, error: OSError | None) -> None:
        if self._steps.pop(hosted, None) is not None:
            self._made(hosted, error)


def new_range(group: int, record: RangeRecord) -> NewRange:
    return NewRange(
        directory(group),
        record.id,
        record.first,
        record.last,
        first_segment(group),
        record.created_ms,
        record.members,
    )
