"""Replicas of this node whose logs are being replaced by a leader's segments, and the notes that carry those.

    WAITING -> under way -> over        at most `AT_ONCE` at a time: a node that was away for long has many

Both sides of `broker.replication.range_fetch`, for all ranges.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from broker.replication.range_fetch import SegmentSource
from broker.replication.range_group import RangeGroup
from broker.replication.range_restore import RangeRestore
from broker.replication.transfer import Send
from raftish.host import Done
from raftish.messages import SnapshotRequest
from storage.clock import Scheduler
from storage.disk import Disk
from storage.replica import RangeReplica
from storage.replica_front import ReplicaFront

log = logging.getLogger("sealog")

AT_ONCE: Final = 4


class Restorable(NamedTuple):
    """A range's replica as it is here. `reopen` opens it anew; `opened` is told of it; `failed` when there is none."""

    number: int
    range: RangeGroup
    front: ReplicaFront
    reopen: Callable[[], RangeReplica]
    opened: Callable[[RangeReplica], None]
    failed: Callable[[OSError], None]


class Restores:
    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        replica_of: Callable[[int], RangeReplica | None],
        send: Send,
    ) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._send = send
        self._source = SegmentSource(replica_of, send, scheduler.monotonic_ms)
        self._waiting: deque[tuple[Restorable, SnapshotRequest, Done]] = deque()
        self._running: dict[int, RangeRestore] = {}

    def begin(self, one: Restorable, request: SnapshotRequest, done: Done) -> None:
        """As `raftish.host.LogMachine.restore`."""
        self._waiting.append((one, request, done))
        self._scheduler.call_soon(self._next)

    def is_replacing(self, group: int) -> bool:
        """Whether its log here is about to be replaced."""
        return group in self._running or any(one.number == group for one, _, _ in self._waiting)

    def is_served(self, group: int) -> bool:
        """Whether another node is fetching its segments from here."""
        return self._source.is_asked(group, self._scheduler.monotonic_ms())

    def heard(self, peer: int, note: Sequence[Any]) -> None:
        kind, group, *_ = note
        if kind.endswith("?"):
            self._source.heard(peer, note)
        elif group in self._running:
            self._running[group].heard(peer, note)

    def forget(self, group: int) -> None:
        """It is no part of this node any more, or its storage has failed."""
        self._waiting = deque(one for one in self._waiting if one[0].number != group)
        running = self._running.pop(group, None)
        if running is not None:
            running.close()
            self._scheduler.call_soon(self._next)

    def close(self) -> None:
        self._waiting.clear()
        for running in self._running.values():
            running.close()
        self._running.clear()

    def _next(self) -> None:
        while self._waiting and len(self._running) < AT_ONCE:
            self._start(*self._waiting.popleft())

    def _start(self, one: Restorable, request: SnapshotRequest, done: Done) -> None:
        number = one.number
        log.warning("range group %d needs what its leader has no more: it fetches segments", number)

        def over() -> None:
            self._running.pop(number, None)
            self._scheduler.call_soon(self._next)

        def replaced(replica: RangeReplica) -> None:
            one.range.replaced(replica)
            one.opened(replica)

        def ended(error: Exception | None) -> None:
            over()
            done(error)

        def failed(error: OSError) -> None:
            over()
            one.failed(error)

        try:
            self._running[number] = RangeRestore(
                number,
                one.range.replica,
                one.front,
                self._disk,
                self._scheduler,
                self._send,
                request,
                reopen=one.reopen,
                replaced=replaced,
                done=ended,
                failed=failed,
            )
        except OSError as error:
            failed(error)
