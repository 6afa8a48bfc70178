"""Transactional ids that nobody used for long are forgotten (Kafka's transactional.id.expiration.ms).

Guarantees: an id whose transaction is open, ending, or waits for its group's outcome stays, however long that takes.
What is done in one turn of the loop is bounded, and so is a sweep that finds nothing: ids are kept in the order of
their last use, so only those that are due are looked at. Producers without a transactional id are no matter of this:
what a partition remembers of them has a time of its own (producer.id.expiration.ms).

A use is what begins, ends or renews something: InitProducerId, the begin of a transaction, its end by whomever. Each of
them but the begin writes the id's record anyway, and an id with a transaction open does not expire, so the time of the
last use survives a start without a write of its own.

An expired id is as if it had never been. A producer that still holds it hears INVALID_PRODUCER_ID_MAPPING, and
PRODUCER_FENCED where it asks for another epoch by its identity: nobody knows any more whether it was, and it would do
again what its successor did (apache/kafka pull 17822). One that starts anew, without an identity, gets the id.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from storage.clock import Scheduler, Timer
from txn import keys
from txn.identities import Identities
from txn.metastore import Delete, MetaStore, StoreFailed
from txn.transaction import TransactionalId

IDS_PER_TURN = 1_000


class IdExpiry:
    """Sweeps in intervals. Times in milliseconds of the wall clock."""

    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        identities: Identities,
        undecided: Callable[[], Set[str]],
    ) -> None:
        """`undecided`: the ids that voted in a group transaction which has no outcome yet."""
        self._store = store
        self._scheduler = scheduler
        self._ids = identities
        self._undecided = undecided
        self._expiration_ms = 0
        self._interval_ms = 0
        self._timer: Timer | None = None

    def configure(self, expiration_ms: int, interval_ms: int) -> None:
        """Sweep from now on, every `interval_ms`."""
        self._expiration_ms = expiration_ms
        self._interval_ms = interval_ms
        self.close()
        self._timer = self._scheduler.call_later(interval_ms, self._sweep)

    def close(self) -> None:
        """No more sweeps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        """One turn's part of a sweep; the next one follows at once while there is more to look at."""
        looked, idle = self._ids.unused_since(self._scheduler.now_ms() - self._expiration_ms, IDS_PER_TURN)
        if idle:
            kept = self._undecided()
            for held in idle:
                if held.name in kept:
                    self._ids.used(held)
            try:
                self._forget([held for held in idle if held.name not in kept])
            except StoreFailed:
                return  # the store has said so to everyone
        more = looked == IDS_PER_TURN
        self._timer = self._scheduler.call_later(0 if more else self._interval_ms, self._sweep)

    def _forget(self, expired: list[TransactionalId]) -> None:
        if expired:
            self._store.apply([Delete(keys.txid(held.name)) for held in expired])
        for held in expired:
            self._ids.forget(held)
