"""What a sink did last is forgotten when nobody has committed a batch of it for long.

Guarantees: a sink with an undecided batch stays. What is done in one turn of the loop is bounded, and so is a sweep
that finds nothing: an index keeps the sinks in the order of their last commit.

A forgotten sink is as if it had never been: a replay of its last batch would be written again. So the time is far
longer than a query may stand still between a commit in the log and the note of it in its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from urllib.parse import unquote

from storage.clock import Scheduler
from txn import keys
from txn.metastore import Delete, IndexKey, MetaStore
from txn.sweep import Sweep

SINKS_PER_TURN = 1_000


class SinkExpiry(Sweep):
    def __init__(self, store: MetaStore, scheduler: Scheduler, undecided: Callable[[], Set[str]]) -> None:
        """`undecided`: the sinks with a batch that has no outcome yet."""
        super().__init__(scheduler)
        self._store = store
        self._undecided = undecided
        self._after: IndexKey | None = None
        """How far this sweep has looked: sinks that stay keep their place."""

    def configure(self, expiration_ms: int, interval_ms: int) -> None:
        self._after = None
        super().configure(expiration_ms, interval_ms)

    def part(self, before_ms: int) -> bool:
        found = list(self._store.scan_index(keys.SINKS_BY_AGE, self._after, (before_ms,), SINKS_PER_TURN))
        if found:
            kept = self._undecided()
            gone = [key for _, key in found if unquote(key.removeprefix(keys.SINKS)) not in kept]
            if gone:
                self._store.apply([Delete(key) for key in gone])
        more = len(found) == SINKS_PER_TURN
        self._after = (*found[-1][0], "") if more else None
        return more
