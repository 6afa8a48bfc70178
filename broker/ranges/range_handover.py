"""A range's leadership goes to another node by the leader's own will; transactions go on (docs/raft.md, section 8).

    HELD -> MARKED -> (another node leads)
                   -> TAKING_BACK -> (this node goes on)

HELD          the replica takes nothing more; requests wait (`broker.ranges.node`)
MARKED        the clean mark is behind all that it wrote (`broker.replication.lineage`), and raft hands over
TAKING_BACK   nobody took over: an entry that takes the mark back is proposed, and nothing is taken before that one is
              committed. Otherwise a log that was cut right behind the mark would pass for all that was written

Guarantee: between the mark and a committed entry that takes it back nothing is written under that term.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from broker.replication import lineage
from broker.replication.handover import LOOK_MS, best_target
from broker.replication.range_group import RangeGroup
from raftish.core import NotLeader, NotNow
from raftish.entries import Kind
from raftish.host import Group, GroupFailed
from storage.clock import Scheduler

log = logging.getLogger("sealog")


class Stage(Enum):
    HELD = "held"
    MARKED = "marked"
    TAKING_BACK = "taking the mark back"
    OVER = "over"


TRANSITIONS: Final = {
    Stage.HELD: {Stage.MARKED, Stage.OVER},
    Stage.MARKED: {Stage.TAKING_BACK, Stage.OVER},
    Stage.TAKING_BACK: {Stage.OVER},
    Stage.OVER: set[Stage](),
}


class RangeHandover:
    """One attempt. `done` once, when this node does not lead any more, or goes on leading."""

    def __init__(
        self, range_: RangeGroup, target: int, scheduler: Scheduler, done: Callable[[], None]
    ) -> None:
        group = range_.group
        assert group is not None
        self._range = range_
        self._group: Group = group
        self._term = group.raft.term
        self._scheduler = scheduler
        self._done = done
        self._stage = Stage.HELD
        range_.replica.hold()
        try:
            group.propose([lineage.mark(range_.lineage)], _nobody_waits, kind=Kind.NOOP)
        except (NotLeader, NotNow, GroupFailed) as error:
            log.info("group %d is not handed over now: %s", group.number, error)
            self._end()
            return
        self._move(Stage.MARKED)
        try:
            group.transfer(target)
        except (NotLeader, NotNow, GroupFailed, ValueError) as error:
            log.info("group %d is not handed over to node %d: %s", group.number, target, error)
        self._look()

    def _move(self, stage: Stage) -> None:
        if stage not in TRANSITIONS[self._stage]:
            raise AssertionError(f"a hand-over that is {self._stage.value} is not {stage.value} next")
        self._stage = stage

    def _leads(self) -> bool:
        raft = self._group.raft
        return (
            self._group.failure is None
            and raft.leadership is not None
            and raft.term == self._term
            and self._range.is_held
        )

    def _look(self) -> None:
        """Whether somebody has taken over, or will not."""
        if not self._leads():
            self._end()
            return
        leadership = self._group.raft.leadership
        if leadership is not None and leadership.transfer_target is None:
            self._move(Stage.TAKING_BACK)
            self._take_back()
            return
        self._scheduler.call_later(LOOK_MS, self._look)

    def _take_back(self) -> None:
        if not self._leads():
            self._end()
            return
        try:
            self._group.propose([lineage.UNMARK], self._taken_back, kind=Kind.NOOP)
        except (NotLeader, NotNow, GroupFailed):
            self._scheduler.call_later(LOOK_MS, self._take_back)

    def _taken_back(self, error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self._move(Stage.OVER)
        if self._leads():
            self._range.replica.go_on()
        self._done()


def hand_range_over(
    range_: RangeGroup, target: int | None, scheduler: Scheduler, done: Callable[[], None] = lambda: None
) -> None:
    """To `target`, or to the voter that has most. `done` when that is over, whoever leads then."""
    group = range_.group
    if group is None or group.failure is not None or not range_.leads or range_.is_held:
        done()
        return
    if target is None:
        target = best_target(group)
    if target is None or target == group.raft.node_id or target not in group.raft.membership.voters:
        done()
        return
    RangeHandover(range_, target, scheduler, done)


def _nobody_waits(error: Exception | None) -> None:
    """Whether it is committed is the next leader's business, or that of the entry that takes it back."""
