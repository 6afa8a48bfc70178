"""What a coordinator leaves to the next one, so that open transactions go on (docs/raft.md, section 8).

    /node    recovered_term     the coordinator that has taken over last
             handed_over        the same, where it has handed over: a clean mark. Its last batch
             untraced_fence     as `txn.identities.Identities` takes it: since which coordinator none was cut off

Guarantee: a mark counts only for the coordinator that took over last, since whoever takes over writes the record anew
before it answers anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.ranges.outcomes import RECOVERED_TERM
from txn import keys
from txn.metastore import MetaStore, Op, Put
from txn.transaction import State, Transaction

HANDED_OVER: Final = "handed_over"
UNTRACED_FENCE: Final = "untraced_fence"
HEADERS_IN_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class Parting:
    """Of the coordinator of `term`. `goes_on`: the one before has handed its transactions over."""

    cluster_id: str
    term: int
    goes_on: bool
    untraced_fence: int

    @classmethod
    def after(cls, before: Mapping[str, Any], term: int, cluster_id: str) -> Parting:
        """`before` is the record as the coordinator before left it."""
        goes_on = HANDED_OVER in before and before[HANDED_OVER] == before.get(RECOVERED_TERM)
        return cls(cluster_id, term, goes_on, before[UNTRACED_FENCE] if goes_on else term)

    def _record(self, **more: int) -> Op:
        return Put(
            keys.NODE,
            {
                "cluster_id": self.cluster_id,
                RECOVERED_TERM: self.term,
                UNTRACED_FENCE: self.untraced_fence,
                **more,
            },
        )

    def begun(self) -> Op:
        """In the first batch of this coordinator."""
        return self._record()

    mark_taken_back = begun

    def ops(self, store: MetaStore, transactions: Iterable[Transaction]) -> list[list[Op]]:
        """Batches that leave these transactions to the next coordinator, in order.

        What the store says of one stands: it is PREPARING or has ended, whatever else was about to be recorded of it.
        Where it says nothing, or that it is open, the transaction is open as it is in memory. An end that waits to be
        recorded is asked for again.
        """
        headers: list[Op] = []
        for transaction in transactions:
            record = store.get(keys.txn(transaction.key))
            if record is None or State(record.value["state"]) is State.OPEN:
                headers.append(Put(keys.txn(transaction.key), transaction.header(State.OPEN)))
        parts = [headers[n : n + HEADERS_IN_BATCH] for n in range(0, len(headers), HEADERS_IN_BATCH)]
        return [*parts, [self._record(**{HANDED_OVER: self.term})]]
