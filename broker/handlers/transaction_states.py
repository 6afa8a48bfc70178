"""What Kafka's administrators call the states of a transactional id (DescribeTransactions, ListTransactions)."""

from __future__ import annotations

from txn.transaction import State, TransactionalId

EMPTY, ONGOING, COMMITTING, ABORTING = "Empty", "Ongoing", "PrepareCommit", "PrepareAbort"
COMMITTED, ABORTED = "CompleteCommit", "CompleteAbort"

_NEVER_HERE = ("Dead", "PrepareEpochFence")
KNOWN = frozenset({EMPTY, ONGOING, COMMITTING, ABORTING, COMMITTED, ABORTED, *_NEVER_HERE})
"""Every name that may be asked for."""

_OPEN = {
    State.OPEN: ONGOING,
    State.PREPARING: COMMITTING,
    State.PREPARED: COMMITTING,
    State.COMMITTED: COMMITTING,
    State.ABORTED: ABORTING,
}


def state_name(held: TransactionalId) -> str:
    """An id without a transaction is shown by how the last one ended."""
    if held.open is not None:
        return _OPEN[held.open.state]
    if held.last_end is None:
        return EMPTY
    return COMMITTED if held.last_end.committed else ABORTED
