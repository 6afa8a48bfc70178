"""The end of a leadership by its own will: name the next leader, and wait until it is one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from raftish.core import NotLeader, NotNow
from raftish.host import Group, GroupFailed
from storage.clock import Scheduler

log = logging.getLogger("sealog")

LOOK_MS: Final = 20
PATIENCE_MS: Final = 1000


def hand_over(
    group: Group | None, target: int | None, scheduler: Scheduler, done: Callable[[], None]
) -> None:
    """To `target`, or to the voter that has most. `done` when this node does not lead any more, or nobody took over."""
    best = best_target(group) if group is not None else None
    if group is None or best is None:
        done()
        return
    try:
        group.transfer(best if target is None else target)
    except (NotLeader, NotNow, GroupFailed, ValueError) as error:
        log.info("leadership is not handed over: %s", error)
    waited_ms = 0

    def look() -> None:
        nonlocal waited_ms
        waited_ms += LOOK_MS
        if group.raft.is_leader and waited_ms < PATIENCE_MS:
            scheduler.call_later(LOOK_MS, look)
        else:
            done()

    look()


def best_target(group: Group) -> int | None:
    """The other voter that has most of what this leader has; None where there is none, or this node does not lead."""
    leadership, voters = group.raft.leadership, group.raft.membership.voters
    if leadership is None:
        return None
    others = [(progress.match, node) for node, progress in leadership.progress.items() if node in voters]
    return max(others)[1] if others else None
