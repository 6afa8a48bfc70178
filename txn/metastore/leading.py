"""The journal of one leadership in a group of nodes: what is appended is proposed, what is committed is durable.

    LEADING -> CLOSING -> ENDED          LEADING -> ENDED

Guarantees: it never serves a second leadership, so an lsn that was given under one is never taken for another
batch's; nobody hears that a batch failed for certain unless the group says that it can never be committed
(`BatchLost`): whoever still waits at the end hears `OutcomeUnknown`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, Protocol

from storage.clock import Scheduler
from txn.metastore.errors import BatchLost, NotLeading, OutcomeUnknown, StoreFailed
from txn.metastore.state import Batch
from txn.metastore.waiters import Callback, Waiters


class Proposer(Protocol):
    """What takes a leader's batches to the other nodes, in one leadership."""

    def next_lsn(self) -> int:
        """Of what is proposed next. Raises `NotLeading`, `TryAgain`."""
        ...

    def propose(self, payload: bytes, lost: Callable[[], None]) -> int:
        """Its lsn. `lost()`, later: it will never be committed. Raises `NotLeading`, `TryAgain`."""
        ...


class JournalState(Enum):
    LEADING = "leading"
    CLOSING = "closing"
    ENDED = "ended"


_TRANSITIONS: Final = {
    JournalState.LEADING: {JournalState.CLOSING, JournalState.ENDED},
    JournalState.CLOSING: {JournalState.ENDED},
    JournalState.ENDED: set[JournalState](),
}
NEVER: Final = 1 << 63


class LeaderJournal:
    """A `Journal`. `lsn` is the last one before it; all up to there is committed."""

    def __init__(self, scheduler: Scheduler, proposer: Proposer, lsn: int) -> None:
        self.flushes = 0
        self.uncommitted: deque[Batch] = deque()
        """Proposed and applied; the owner takes them back at the end, or from here as they are committed."""
        self._scheduler = scheduler
        self._proposer = proposer
        self._state = JournalState.LEADING
        self._failure: StoreFailed | None = None
        self._durable_lsn = self._given_lsn = lsn
        self._lost_from = NEVER
        self._turn_due = False
        self._durable_waiters = Waiters(scheduler)
        self._failure_waiters = Waiters(scheduler)
        self._close_asked: list[Callback] = []

    @property
    def state(self) -> JournalState:
        return self._state

    @property
    def failure(self) -> StoreFailed | None:
        return self._failure

    @property
    def closed(self) -> bool:
        return self._state is JournalState.ENDED

    @property
    def durable_lsn(self) -> int:
        return self._durable_lsn

    @property
    def untold(self) -> deque[Batch]:
        return self.uncommitted

    # What the store asks for.

    def begin(self) -> int:
        if self._state is not JournalState.LEADING:
            raise self._failure or StoreFailed("the store is closed")
        return self._proposer.next_lsn()

    def append(self, batch: Batch, payload: bytes) -> None:
        lsn = self._proposer.propose(payload, partial(self._lost, batch.lsn))
        if lsn != batch.lsn:
            raise AssertionError(f"batch {batch.lsn} was proposed as {lsn}")
        self._given_lsn = lsn
        self.uncommitted.append(batch)

    def when_written(self, callback: Callback) -> None:
        """A kill of this process can take back whatever is not committed."""
        self.when_durable(self._given_lsn, callback)

    def when_durable(self, lsn: int, callback: Callback) -> None:
        """Raises ValueError for an lsn that this leadership has not given."""
        if lsn > self._given_lsn:
            raise ValueError(f"lsn {lsn} has not been given yet, the last is {self._given_lsn}")
        self._durable_waiters.add(lsn, callback)
        if lsn <= self._durable_lsn or self.closed:
            self._wake()

    def when_recorded(self, lsn: int, callback: Callback) -> None:
        if self._state is JournalState.LEADING:
            self.when_durable(min(lsn, self._given_lsn), callback)
        else:
            self._scheduler.call_soon(callback, self._failure or StoreFailed("the store is closed"))

    def when_failed(self, callback: Callback) -> None:
        self._failure_waiters.add(0, callback)
        if self._failure is not None:
            self._wake()

    def close(self, done: Callback) -> None:
        """Nothing more is taken; `done` when all that was is committed, or cannot be known to be."""
        self._close_asked.append(done)
        if self._state is JournalState.LEADING:
            self._move(JournalState.CLOSING)
        self._wake()

    # What the group says.

    def committed(self, lsn: int) -> None:
        """Everything up to `lsn` is."""
        self._durable_lsn = lsn
        self._wake()

    def end(self, failure: StoreFailed) -> None:
        """The leadership is over. Whoever waits hears of it in a turn to come, so that the owner's end is first."""
        if self._state is not JournalState.ENDED:
            self._failure = failure
            self._move(JournalState.ENDED)
            self._wake()

    def _lost(self, lsn: int) -> None:
        self._lost_from = min(lsn, self._lost_from)

    def _wake(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._scheduler.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._state is JournalState.CLOSING and not self.uncommitted:
            self._move(JournalState.ENDED)
        with (
            contextlib.ExitStack() as calls
        ):  # last in, first called; one that raises keeps none of the others
            if self._state is JournalState.ENDED:
                asked, self._close_asked = self._close_asked, []
                for done in reversed(asked):
                    calls.callback(done, self._failure)
                if self._failure is not None:
                    calls.callback(self._tell_end, self._failure)
            calls.callback(self._durable_waiters.fire, self._durable_lsn)

    def _tell_end(self, failure: StoreFailed) -> None:
        with contextlib.ExitStack() as calls:
            calls.callback(self._failure_waiters.fire_all, failure)
            calls.callback(self._durable_waiters.fire_all, BatchLost("another stands in its place"))
            unknown = OutcomeUnknown(f"it may have been committed or not: {failure}")
            unknown.__cause__ = failure
            calls.callback(self._durable_waiters.fire, self._lost_from - 1, unknown)

    def _move(self, state: JournalState) -> None:
        if state not in _TRANSITIONS[self._state]:
            raise AssertionError(f"the journal cannot go from {self._state.value} to {state.value}")
        self._state = state


class FollowerJournal:
    """A `Journal` of a node that only follows: nothing is appended, and what is applied is committed."""

    failure: StoreFailed | None = None
    closed = False
    flushes = 0

    def __init__(self, scheduler: Scheduler, lsn: int, untold: Callable[[], deque[Batch]]) -> None:
        self.leader: int | None = None
        self.durable_lsn = lsn
        """Applied here, of what is committed."""
        self._untold = untold
        self._waiters = Waiters(scheduler)
        self._failure_waiters = Waiters(scheduler)
        self._scheduler = scheduler

    @property
    def untold(self) -> deque[Batch]:
        """Those of a leadership of this same node."""
        return self._untold()

    def begin(self) -> int:
        raise self.failure or NotLeading(self.leader)

    def append(self, batch: Batch, payload: bytes) -> None:
        raise self.failure or NotLeading(self.leader)

    def when_written(self, callback: Callback) -> None:
        self.when_durable(self.durable_lsn, callback)

    def when_durable(self, lsn: int, callback: Callback) -> None:
        """When all up to `lsn` is committed and applied here, whoever leads. Of an lsn heard from another node, too."""
        if self.failure is not None and lsn > self.durable_lsn:
            self._scheduler.call_soon(callback, self.failure)
            return
        self._waiters.add(lsn, callback)
        if lsn <= self.durable_lsn:
            self._scheduler.call_soon(self._waiters.fire, self.durable_lsn)

    def when_recorded(self, lsn: int, callback: Callback) -> None:
        self.when_durable(lsn, callback)

    def when_failed(self, callback: Callback) -> None:
        self._failure_waiters.add(0, callback)
        if self.failure is not None:
            self._scheduler.call_soon(self._failure_waiters.fire_all, self.failure)

    def applied(self, lsn: int) -> None:
        self.durable_lsn = lsn
        if self._waiters:
            self._scheduler.call_soon(self._waiters.fire, lsn)

    def end(self, failure: StoreFailed) -> None:
        """This node takes no part any more."""
        if self.failure is None:
            self.failure = failure
            self.closed = True
            self._scheduler.call_soon(self._waiters.fire_all, failure)
            self._scheduler.call_soon(self._failure_waiters.fire_all, failure)

    def close(self, done: Callback) -> None:
        self.end(StoreFailed("the store is closed"))
        self._scheduler.call_soon(done, None)
