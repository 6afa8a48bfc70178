"""The transactions that are open: how they begin, who waits for them, and what aborts them from outside.

Guarantees: what is past its deadline is aborted and its producer fenced (T9); deadlines come from an index of the
metadata store; a request that comes while a durable step of its id is under way waits for it (T6). Sans I/O: timers and
the store are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from storage.clock import Scheduler, Timer
from txn import keys
from txn.ending import Ending
from txn.identities import Identities, Reply, unavailable
from txn.metastore import MetaStore, Put, StoreFailed
from txn.patience import AGAIN_MS
from txn.transaction import NEVER_MS, LastEnd, Transaction, TransactionalId
from wire.errors import ErrorCode, KafkaError

MAX_TIMER_MS = 60_000


class OpenTransactions:
    """Methods with a `reply` call it exactly once, now or later."""

    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        identities: Identities,
        ending: Ending,
        *,
        term: int,
        max_open: int,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._ids = identities
        self._ending = ending
        self._max_open = max_open
        self.forget_member: Callable[[Transaction], None] = lambda _: None
        """Called with a transaction that is aborted by itself, should it be a member of a group."""
        self._count = 0
        self._next_seq = keys.first_seq(term)
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    def restore(self) -> None:
        """Take over what is open of the ids that were restored."""
        self._count = sum(held.open is not None for held in self._ids)
        self._arm_timer()

    @property
    def count(self) -> int:
        """Transactions that are open or ending."""
        return self._count

    def __iter__(self) -> Iterator[Transaction]:
        """Those that are open, by deadline. Found by the index, not among all the ids."""
        for _, key in self._store.scan_index(keys.OPEN_BY_DEADLINE):
            record = self._store.get(key)
            held = self._ids.get(record.value["txid"]) if record is not None else None
            if held is not None and held.open is not None:
                yield held.open

    def in_line(self, name: str, call: Callable[[], None]) -> bool:
        """Whether a durable step of this id is under way; the call waits for it then."""
        held = self._ids.get(name)
        if held is None or not held.busy:
            return False
        held.waiting.append(call)
        return True

    def begin(self, held: TransactionalId) -> Transaction:
        """A new one for the id, which must have none open. Raises KafkaError: POLICY_VIOLATION at the limit."""
        if self._count >= self._max_open:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"this broker has its limit of {self._max_open} transactions open",
            )
        now_ms = self._scheduler.now_ms()
        deadline_ms = NEVER_MS if held.two_phase else now_ms + held.timeout_ms
        transaction = Transaction(
            held.name, held.producer_id, held.epoch, self._next_seq, now_ms, deadline_ms
        )
        transaction.two_phase = held.two_phase
        transaction.untraced = held.untraced
        self._next_seq += 1
        held.open = transaction
        self._ids.used(held)
        self._count += 1
        if self._timer is None or deadline_ms < self._timer_at_ms:
            self.store_header(transaction)
            self._arm_timer()
        return transaction

    def store_header(self, transaction: Transaction) -> None:
        """Record what it is now. Raises KafkaError: COORDINATOR_NOT_AVAILABLE."""
        try:
            self._store.apply([Put(keys.txn(transaction.key), transaction.header())])
        except StoreFailed as failure:
            raise unavailable(failure) from failure

    def abort(self, held: TransactionalId, transaction: Transaction, reply: Reply) -> None:
        """Abort it, with the id's record as it is now; others wait in line until that is durable."""

        def done(error: KafkaError | None) -> None:
            self.closed(held)
            reply(error)

        held.busy = True
        self.forget_member(transaction)
        self._ending.abort(transaction, self._ids.record_ops(held), done)

    def closed(self, held: TransactionalId) -> None:
        """The id's transaction came to its end: whoever waited goes on."""
        held.open = None
        self._count -= 1
        self._ids.release(held)

    # -- deadlines, and who else ends it

    def expire(self) -> None:
        """Abort what is past its deadline and bump the epoch, as Kafka does (T9). Deadlines come from the index."""
        self._timer = None
        now_ms = self._scheduler.now_ms()
        if not self._store.takes():
            self._timer_at_ms = now_ms + AGAIN_MS
            self._timer = self._scheduler.call_later(AGAIN_MS, self.expire)
            return
        due = [key for _, key in self._store.scan_index(keys.OPEN_BY_DEADLINE, high=(now_ms + 1,))]
        for key in due:
            record = self._store.get(key)
            held = self._ids.get(record.value["txid"]) if record else None
            if held is None or held.busy or held.open is None or held.open.key != keys.parse_txn(key):
                continue  # it is ending already
            try:
                self._fence(held, held.open, _swept)
            except StoreFailed:
                return  # nothing can be recorded any more; the store has said so
        self._arm_timer()

    def _fence(self, held: TransactionalId, transaction: Transaction, reply: Reply) -> None:
        """Abort what is open, and let its producer hear that it is fenced. Raises StoreFailed."""
        held.last_end = LastEnd(transaction.producer_id, transaction.epoch, False)
        self._ids.bump(held)
        self.abort(held, transaction, reply)

    def abort_by_administrator(self, producer_id: int, reply: Reply) -> None:
        """End this producer's open transaction as its timeout would (WriteTxnMarkers; KIP-664).

        Errors: INVALID_TXN_STATE where it is not the producer's to end any more, COORDINATOR_NOT_AVAILABLE.
        """
        for held in self._ids:
            transaction = held.open
            if transaction is None or transaction.producer_id != producer_id:
                continue
            if held.busy:
                held.waiting.append(lambda: self.abort_by_administrator(producer_id, reply))
                return
            try:
                self._fence(held, transaction, reply)
            except StoreFailed as failure:
                reply(unavailable(failure))
            return
        reply(KafkaError(ErrorCode.invalid_txn_state, f"producer {producer_id} has no transaction open"))

    def _arm_timer(self) -> None:
        """One timer for the earliest deadline; at the latest in a minute, should the clock be set back."""
        first = next(iter(self._store.scan_index(keys.OPEN_BY_DEADLINE, high=(NEVER_MS,), limit=1)), None)
        if first is None:
            return
        now_ms = self._scheduler.now_ms()
        delay_ms = min(max(first[0][0] - now_ms, 0) + 1, MAX_TIMER_MS)
        if self._timer is not None:
            if self._timer_at_ms <= now_ms + delay_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = now_ms + delay_ms
        self._timer = self._scheduler.call_later(delay_ms, self.expire)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _swept(_: KafkaError | None) -> None:
    """A sweep has nobody to answer; a failed store has said so itself."""
