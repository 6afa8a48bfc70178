"""Replaces a replica's log by the leader's sealed segments, when what it needs next is gone there.

    FETCHING -> QUIET -> NAMING -> OVER        OVER from each of them, where something fails or the group goes

    FETCHING    the segments come, aside (`range_fetch`, `storage.replica_takeover`)
    QUIET       what the old log was told to write, and what is being removed of it, ends
    NAMING      the new chain is made the one that a start goes on with
    OVER        the old replica is closed, and the new one opened in its place, in one turn of the loop

Guarantee: until NAMING has ended the old replica stands, and serves what it has; the group hears of the new log when it
is durable and open. A failure of this node's disk ends the replica, as any other does; anything else changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from broker.replication.range_fetch import SegmentFetch
from broker.replication.transfer import FetchFailed, Send
from raftish.host import Done
from raftish.messages import SnapshotRequest
from storage.clock import Scheduler
from storage.disk import Disk
from storage.format import CorruptLog
from storage.replica import RangeReplica
from storage.replica_front import ReplicaFront
from storage.replica_takeover import ChainAside

log = logging.getLogger("sealog")


PAUSE_MS: Final = 1000
"""After a fetch that failed; the leader asks for another one at once."""


class Step(Enum):
    FETCHING = "fetching"
    QUIET = "waiting for the old log to be quiet"
    NAMING = "naming the new chain"
    OVER = "over"


TRANSITIONS: Final = {
    Step.FETCHING: {Step.QUIET, Step.OVER},
    Step.QUIET: {Step.NAMING, Step.OVER},
    Step.NAMING: {Step.OVER},
    Step.OVER: set[Step](),
}


class RangeRestore:
    """One restore. `reopen` opens the replica anew from its folder; `replaced` is given it; then `done(None)`, or
    `done(error)` where nothing has changed. `failed(error)`: this node's disk; the group takes part no more."""

    def __init__(
        self,
        group: int,
        replica: RangeReplica,
        front: ReplicaFront,
        disk: Disk,
        scheduler: Scheduler,
        send: Send,
        request: SnapshotRequest,
        *,
        reopen: Callable[[], RangeReplica],
        replaced: Callable[[RangeReplica], None],
        done: Done,
        failed: Callable[[OSError], None],
    ) -> None:
        """Nothing is told from within this call. Raises OSError."""
        self.step = Step.FETCHING
        self._replica = replica
        self._front = front
        self._scheduler = scheduler
        self._reopen = reopen
        self._replaced = replaced
        self._done = done
        self._failed = failed
        identity = replica.identity
        self._aside = ChainAside(disk, identity.directory, identity.topic_id, identity.first, identity.last)
        self._fetch = SegmentFetch(
            group, self._aside, disk, scheduler, send, request.source, request.index, self._fetched
        )

    def heard(self, peer: int, note: Sequence[Any]) -> None:
        self._fetch.heard(peer, note)

    def close(self) -> None:
        """The replica's life ends, or this one does: nothing is told any more."""
        if self.step is not Step.OVER:
            self._move(Step.OVER)
            self._fetch.close()

    def _move(self, step: Step) -> None:
        if step not in TRANSITIONS[self.step]:
            raise AssertionError(f"a restore that is {self.step.value} is not {step.value} next")
        self.step = step

    def _fetched(self, error: Exception | None) -> None:
        if self.step is not Step.FETCHING:
            return
        if isinstance(error, FetchFailed):
            log.warning("%s: the log is not replaced: %s", self._replica.directory, error)
            self._move(Step.OVER)
            with contextlib.suppress(OSError):
                self._aside.discard()  # it may be what fills the disk
            self._scheduler.call_later(PAUSE_MS, self._done, error)
        elif error is not None:
            self._fail(error)
        else:
            self._move(Step.QUIET)
            self._front.when_idle(self._nothing_is_removed)

    def _nothing_is_removed(self, _: Exception | None) -> None:
        if self.step is not Step.QUIET:
            return
        if not self._front.is_idle:
            self._front.when_idle(self._nothing_is_removed)
            return
        # From here on there is no way back to the old log but a start's.
        self._front.close()
        self._replica.when_all_durable(self._quiet)

    def _quiet(self, error: Exception | None) -> None:
        if self.step is not Step.QUIET:
            return
        if error is not None:
            self._fail(error)
            return
        self._move(Step.NAMING)
        try:
            self._aside.name(self._named)
        except OSError as failure:
            self._fail(failure)

    def _named(self, error: OSError | None) -> None:
        if self.step is not Step.NAMING:
            return
        if error is not None:
            self._fail(error)
            return
        try:
            self._replica.close()
            replica = self._reopen()
        except (OSError, CorruptLog) as failure:
            self._fail(failure)
            return
        self._move(Step.OVER)
        log.warning(
            "%s: replaced by the leader's segments, up to entry %d", replica.directory, replica.last_index
        )
        self._replaced(replica)
        self._done(None)

    def _fail(self, error: Exception) -> None:
        self._move(Step.OVER)
        self._failed(error if isinstance(error, OSError) else OSError(errno.EIO, str(error)))
