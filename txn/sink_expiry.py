"""What a sink did last is forgotten when nobody has committed a batch of it for long.

Guarantees: a sink with an undecided batch stays. What is done in one turn of the loop is bounded, and so is a sweep
that finds nothing: an index keeps the sinks in the order of their last commit.

A forgotten sink is as if it had never been: a replay of its last batch would be written again. So the time is far
longer than a query may stand still between a commit in the log and the note of it in its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from urllib.parse import unquote

from storage.clock import Scheduler, Timer
from txn import keys
from txn.metastore import Delete, IndexKey, MetaStore, StoreFailed

SINKS_PER_TURN = 1_000


class SinkExpiry:
    """Sweeps in intervals. Times in milliseconds of the wall clock."""

    def __init__(self, store: MetaStore, scheduler: Scheduler, undecided: Callable[[], Set[str]]) -> None:
        """`undecided`: the sinks with a batch that has no outcome yet."""
        self._store = store
        self._scheduler = scheduler
        self._undecided = undecided
        self._expiration_ms = 0
        self._interval_ms = 0
        self._timer: Timer | None = None

    def configure(self, expiration_ms: int, interval_ms: int) -> None:
        """Sweep from now on, every `interval_ms`."""
        self._expiration_ms = expiration_ms
        self._interval_ms = interval_ms
        self.close()
        self._timer = self._scheduler.call_later(interval_ms, self._sweep, None)

    def close(self) -> None:
        """No more sweeps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self, after: IndexKey | None) -> None:
        """One turn's part of a sweep; the next one follows at once while there is more to look at."""
        before = (self._scheduler.now_ms() - self._expiration_ms,)
        found = list(self._store.scan_index(keys.SINKS_BY_AGE, after, before, SINKS_PER_TURN))
        if found:
            kept = self._undecided()
            gone = [key for _, key in found if unquote(key.removeprefix(keys.SINKS)) not in kept]
            try:
                if gone:
                    self._store.apply([Delete(key) for key in gone])
            except StoreFailed:
                return  # the store has said so to everyone
        if len(found) == SINKS_PER_TURN:
            self._timer = self._scheduler.call_later(0, self._sweep, (*found[-1][0], ""))
        else:
            self._timer = self._scheduler.call_later(self._interval_ms, self._sweep, None)
