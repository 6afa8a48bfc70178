"""Dropping the begin of a replicated range: whole sealed segments that lie below the log starts.

    IDLE -> REMOVING -> FLUSHING -> IDLE        one file after the other; a removal is durable before the next begins
    IDLE -> HELD -> IDLE                        compaction works on the files; nothing is dropped meanwhile

Guarantees: what is dropped was committed, since only that is sealed and only that is below a log start; the newest
sealed segment stays, as a start learns from it where every partition ends and which producers there are (where other
ranges came before, the last one of each, until the first one of the own log is sealed); a power cut leaves a chain
without a gap, though perhaps one that begins earlier than it did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from storage.clock import Scheduler
from storage.disk import Disk
from storage.flusher import Outcome, tell_all
from storage.replica import RangeReplica
from storage.segment import Segment

State = Literal["IDLE", "REMOVING", "FLUSHING", "HELD", "CLOSED"]
TRANSITIONS: Final = {
    "IDLE": {"REMOVING", "HELD", "CLOSED"},
    "REMOVING": {"FLUSHING", "IDLE", "CLOSED"},
    "FLUSHING": {"REMOVING", "IDLE", "CLOSED"},
    "HELD": {"IDLE", "CLOSED"},
    "CLOSED": set[str](),
}


def droppable(replica: RangeReplica) -> list[Segment]:
    """Oldest first, a run from the begin on: of all of them nothing is there for readers."""
    sealed: list[Segment] = []
    for segment in replica.segments:
        if segment.state != "SEALED":
            break
        sealed.append(segment)
    found: list[Segment] = []
    has_own = any(one.state == "SEALED" for one in replica.own_segments)
    for segment in sealed[:-1]:
        is_needed = not has_own and segment.segment_id in replica.ancestry.lasts
        if is_needed or not is_hidden(replica, segment):
            break
        found.append(segment)
    return found


def is_hidden(replica: RangeReplica, segment: Segment) -> bool:
    """Whether all records in it are below the log starts."""
    return all(
        not index.runs or index.end_offset <= replica.partition(partition).log_start_offset
        for partition, index in segment.indexes.items()
    )


class ReplicaFront:
    """Of one replica. A file that cannot be removed stays, with all after it, until the next start or the next drop."""

    def __init__(self, disk: Disk, scheduler: Scheduler, replica: RangeReplica) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._replica = replica
        self._state: State = "IDLE"
        self._paths: deque[str] = deque()
        self._waiting: list[Outcome] = []

    def _move(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            raise ValueError(f"a removal that is {self._state} cannot become {state}")
        self._state = state

    def drop(self) -> Sequence[int]:
        """Take what may go out of the log, and begin to remove the files; their segments' ids. Never blocks."""
        replica = self._replica
        if self._state == "CLOSED" or self._state == "HELD" or replica.state != "OPEN":
            return ()
        dropped = droppable(replica)
        for segment in dropped:
            replica.drop_segment(segment)
            segment.close()
            self._paths.append(segment.path)
        if self.is_idle:
            self._next()
        return [segment.segment_id for segment in dropped]

    @property
    def is_idle(self) -> bool:
        return self._state == "IDLE"

    def when_idle(self, callback: Outcome) -> None:
        """When no file is being removed; never from within this call. Not called any more after `close`."""
        if self.is_idle:
            self._scheduler.call_soon(callback, None)
        else:
            self._waiting.append(callback)

    def hold(self) -> None:
        """Nothing is dropped until `release`. It must be idle."""
        self._move("HELD")

    def release(self) -> None:
        if self._state == "HELD":
            self._move("IDLE")
            self._tell_idle()

    def close(self) -> None:
        """What is not removed yet is removed after the next start, or by whoever removes all."""
        if self._state != "CLOSED":
            self._move("CLOSED")
        self._paths.clear()

    def _next(self) -> None:
        if not self._paths:
            if self._state != "IDLE":
                self._move("IDLE")
            self._tell_idle()
            return
        self._move("REMOVING")
        self._disk.start_remove(self._paths[0], self._removed)

    def _removed(self, error: OSError | None) -> None:
        if self._state != "REMOVING":
            return
        if error is not None and not isinstance(error, FileNotFoundError):
            self._give_up()
            return
        self._move("FLUSHING")
        self._disk.start_flush_dir(self._replica.directory, self._flushed)

    def _flushed(self, error: OSError | None) -> None:
        if self._state != "FLUSHING":
            return
        if error is not None:
            self._give_up()
            return
        self._paths.popleft()
        self._next()

    def _give_up(self) -> None:
        """To remove a later one now would leave a gap."""
        self._move("IDLE")
        self._tell_idle()

    def _tell_idle(self) -> None:
        waiting, self._waiting = self._waiting, []
        tell_all(self._scheduler, waiting, None)
