"""The members that a group transaction goes on without: aborted, and their producers fenced (design T10).

Sans I/O but for what the parts handed in do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from txn.ending import Ending
from txn.group_state import GroupTransaction
from txn.identities import Identities, Reply, unavailable
from txn.metastore import StoreFailed
from txn.transaction import State, Transaction, TransactionalId
from wire.errors import KafkaError


class GroupLosers:
    """`freed` is called with a group whose losers are all aborted."""

    def __init__(
        self,
        identities: Identities,
        ending: Ending,
        abort_open: Callable[[TransactionalId, Transaction, Reply], None],
        *,
        freed: Callable[[GroupTransaction], None],
    ) -> None:
        self._ids = identities
        self._ending = ending
        self._abort_open = abort_open
        self._freed = freed

    def discard(self, group: GroupTransaction, losers: Sequence[Transaction]) -> None:
        """Abort and fence these members; the group is busy until that is durable."""
        group.busy = True
        left = 1

        def arrived(_: KafkaError | None = None) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._freed(group)

        for transaction in losers:
            left += 1
            group.members.pop(transaction.key, None)
            self._discard_one(transaction, arrived)
        arrived()

    def _discard_one(self, transaction: Transaction, done: Reply) -> None:
        held = self._ids.get(transaction.transactional_id)
        if held is not None and held.busy:
            held.waiting.append(lambda: self._discard_one(transaction, done))
            return
        if transaction.state in (State.COMMITTED, State.ABORTED):
            done(None)
            return
        if held is None:
            self._ending.abort(transaction, (), done)
            return
        if held.open is transaction or held.open is None:
            # Fenced: whatever this producer still sends is refused.
            try:
                self._ids.bump(held)
            except StoreFailed as failure:
                done(unavailable(failure))
                return
        if held.open is transaction:
            self._abort_open(held, transaction, done)
        else:
            self._ending.abort(transaction, self._ids.record_ops(held), done)
