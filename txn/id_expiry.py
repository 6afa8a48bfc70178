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

from storage.clock import Scheduler
from txn import keys
from txn.identities import Identities
from txn.metastore import Delete, MetaStore
from txn.sweep import Sweep
from txn.transaction import TransactionalId

IDS_PER_TURN = 1_000


class IdExpiry(Sweep):
    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        identities: Identities,
        undecided: Callable[[], Set[str]],
    ) -> None:
        """`undecided`: the ids that voted in a group transaction which has no outcome yet."""
        super().__init__(scheduler)
        self._store = store
        self._ids = identities
        self._undecided = undecided

    def part(self, before_ms: int) -> bool:
        looked, idle = self._ids.unused_since(before_ms, IDS_PER_TURN)
        if idle:
            kept = self._undecided()
            for held in idle:
                if held.name in kept:
                    self._ids.used(held)
            self._forget([held for held in idle if held.name not in kept])
        return looked == IDS_PER_TURN

    def _forget(self, expired: list[TransactionalId]) -> None:
        if expired:
            self._store.apply([Delete(keys.txid(held.name)) for held in expired])
        for held in expired:
            self._ids.forget(held)
