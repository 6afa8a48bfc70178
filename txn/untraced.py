"""In a cluster: transactions v2 that begin without waiting for a flush, and what a new leader makes of their producers.

A transaction's first write is answered before anything of the transaction is durable, as on a broker alone; but there
a killed process leaves what it wrote to the kernel, and here the next leader has only what a majority has. So the end
of a transaction v2 (EndTxn v5, KIP-890) records of its id that the next one may be begun `untraced`, in the same batch.
After a change of leaders by a failure, such an id may have lost a transaction: it can only abort, by the error after
which its client goes on (`Identities.may_have_lost`). Without this, every transaction would take two flushes: one for
the trace and one for the commit.

An id that was not used for a while is recorded as traced again, so that a change of leaders does not disturb it; its
next transaction waits for its trace, as do those of the first protocol, which could not tell that one was lost (T5).
"""

from __future__ import annotations

from storage.clock import Scheduler
from txn.identities import Identities
from txn.metastore import MetaStore, Op
from txn.sweep import Sweep

IDLE_MS = 5_000
INTERVAL_MS = 1_000
IDS_PER_TURN = 1_000


class UntracedSweep(Sweep):
    """Records ids that are idle as traced."""

    def __init__(self, store: MetaStore, scheduler: Scheduler, identities: Identities) -> None:
        super().__init__(scheduler)
        self._store = store
        self._ids = identities

    def part(self, before_ms: int) -> bool:
        untraced = self._ids.untraced
        ops: list[Op] = []
        for _ in range(min(len(untraced), IDS_PER_TURN)):
            name, held = next(iter(untraced.items()))
            if self._ids.get(name) is not held or not held.untraced:
                del untraced[name]
            elif (
                held.used_ms > before_ms
                or held.open is not None
                or held.busy
                or self._ids.may_have_lost(held)
            ):
                untraced.move_to_end(name)
            else:
                del untraced[name]
                held.untraced = False
                ops += self._ids.record_ops(held)
        if ops:
            self._store.apply(ops)
        return len(ops) == IDS_PER_TURN
