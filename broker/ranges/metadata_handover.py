"""The metadata's leadership goes to another node by the leader's own will, so that transactions go on (docs/raft.md,
section 8).

    WAITING -> HELD -> MARKED -> (another node leads)
                              -> TAKING_BACK -> (this node goes on)

WAITING       what the controller aborted when it began is not closed at all ranges' leaders yet
HELD          the store takes nothing more; requests wait (`broker.ranges.node`), and so do steps that were under way
MARKED        the headers of all open transactions are written, and as the last batch the mark that names the
              controller's term (`broker.ranges.parting`); raft hands over
TAKING_BACK   nobody took over: the mark is taken back, and nothing else is taken before that is committed

Guarantee: where the mark is the last batch of its coordinator, the store says of every open transaction all that this
one had let be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Final

from broker.ranges.controller import Controller
from broker.replication.handover import LOOK_MS, PATIENCE_MS, best_target
from broker.replication.metadata_group import MetadataGroup
from raftish.core import NotLeader, NotNow
from raftish.host import GroupFailed
from storage.clock import Scheduler
from txn.metastore import Op, StoreFailed, TryAgain

log = logging.getLogger("sealog")


class Stage(Enum):
    WAITING = "waiting"
    HELD = "held"
    MARKED = "marked"
    TAKING_BACK = "taking the mark back"
    OVER = "over"


TRANSITIONS: Final = {
    Stage.WAITING: {Stage.HELD, Stage.OVER},
    Stage.HELD: {Stage.MARKED, Stage.OVER},
    Stage.MARKED: {Stage.TAKING_BACK, Stage.OVER},
    Stage.TAKING_BACK: {Stage.OVER},
    Stage.OVER: set[Stage](),
}


class MetadataHandover:
    """One attempt, to `target` or to the voter that has most. `done` once, when this node does not lead any more, or
    goes on leading. `controller()` is this node's, if it serves as one."""

    def __init__(
        self,
        metadata: MetadataGroup,
        controller: Callable[[], Controller | None],
        target: int | None,
        scheduler: Scheduler,
        done: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._target = target
        self._scheduler = scheduler
        self._done = done
        self._term = metadata.group.raft.term
        self._waited_ms = 0
        self._left: list[list[Op]] = []
        self._marks: Controller | None = None
        """Whose mark is in the store, or about to be."""
        self.stage = Stage.WAITING
        self._wait()

    def _move(self, stage: Stage) -> None:
        if stage not in TRANSITIONS[self.stage]:
            raise AssertionError(f"a hand-over that is {self.stage.value} is not {stage.value} next")
        self.stage = stage

    def _leads(self) -> bool:
        group = self._metadata.group
        return group.failure is None and group.raft.leadership is not None and group.raft.term == self._term

    def _wait(self) -> None:
        controller = self._controller()
        if not self._leads() or self._waited_ms > PATIENCE_MS:
            self._end()
        elif controller is not None and controller.is_closing:
            self._waited_ms += LOOK_MS
            self._scheduler.call_later(LOOK_MS, self._wait)
        else:
            self._move(Stage.HELD)
            self._metadata.hold()
            self._marks = controller
            self._left = controller.parting_ops() if controller is not None else []
            self._write()

    def _write(self) -> None:
        """Part by part, as the group takes it. Its commit is not waited for: raft hands over to who has all of it."""
        try:
            while self._left:
                self._metadata.apply_held(self._left[0])
                del self._left[0]
        except TryAgain:
            if self._leads():
                self._scheduler.call_later(LOOK_MS, self._write)
            else:
                self._end()
            return
        except StoreFailed as error:
            log.info("the metadata are not handed over: %s", error)
            self._end()
            return
        self._move(Stage.MARKED)
        group = self._metadata.group
        target = best_target(group) if self._target is None else self._target
        try:
            if target is not None:
                group.transfer(target)
        except (NotLeader, NotNow, GroupFailed, ValueError) as error:
            log.info("the metadata are not handed over to node %d: %s", target, error)
        self._look()

    def _look(self) -> None:
        """Whether somebody has taken over, or will not."""
        leadership = self._metadata.group.raft.leadership
        if not self._leads() or leadership is None:
            self._end()
        elif leadership.transfer_target is not None:
            self._scheduler.call_later(LOOK_MS, self._look)
        elif self._marks is None:
            self._end()
        else:
            self._move(Stage.TAKING_BACK)
            self._take_back(self._marks)

    def _take_back(self, controller: Controller) -> None:
        try:
            lsn = self._metadata.apply_held([controller.parting.mark_taken_back()])
        except TryAgain:
            if self._leads():
                self._scheduler.call_later(LOOK_MS, self._take_back, controller)
            else:
                self._end()
            return
        except StoreFailed:
            self._end()
            return
        self._metadata.store.when_durable(lsn, lambda error: self._end())

    def _end(self) -> None:
        self._move(Stage.OVER)
        if self._leads():
            self._metadata.release()
        self._done()
