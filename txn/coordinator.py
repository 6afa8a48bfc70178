"""The transaction coordinator: what may be done in a transaction, and how it ends.

Serves both of Kafka's transaction protocols: the first (partitions and offsets are added before they are used; the
epoch stays) and transactions v2 (KIP-890: the write itself adds; every end bumps the epoch). Sans I/O: requests and
timers in, callbacks out; durability comes from the metadata store and the range logs handed in.

Guarantees (design, section 4): nothing is written outside a living transaction; success is answered only when durable
(T2); a repeated end gets the recorded outcome (T5); when an end is answered the next transaction may start (T6); an
InitProducerId fences and aborts within the call (T7); what is past its deadline is aborted (T9).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from storage.clock import Scheduler, Timer
from txn import keys
from txn.ending import Ending
from txn.group_state import GroupLimits, GroupTransaction
from txn.group_transactions import GroupTransactions
from txn.identities import Identities, Identity, IdentityReply, InitRequest, Reply, refusals, unavailable
from txn.metastore import MetaStore, Put, StoreFailed
from txn.offsets import GroupOffsets
from txn.partition import Partition
from txn.transaction import (
    NEVER_MS,
    LastEnd,
    PendingOffset,
    State,
    TopicPartition,
    Transaction,
    TransactionalId,
    offsets_op,
)
from wire.errors import ErrorCode, KafkaError

MAX_TIMER_MS = 60_000


@dataclass(frozen=True, slots=True)
class TxnConfig:
    """Limits of the coordinator. Times in milliseconds, as Kafka's broker configs of the same meaning."""

    max_timeout_ms: int = 900_000
    two_phase_commit: bool = False
    """Whether producers may ask for two-phase commit (KIP-939): transactions that no deadline ends."""
    max_open_transactions: int = 20_000
    max_transactional_ids: int = 1_000_000
    max_partitions_per_transaction: int = 20_000
    groups: GroupLimits = field(default_factory=GroupLimits)


class Coordinator:
    """Every transaction of this node. Methods with a `reply` call it exactly once, now or later."""

    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        offsets: GroupOffsets,
        ending: Ending,
        config: TxnConfig,
        *,
        term: int,
        fence_term: int,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._offsets = offsets
        self._ending = ending
        self._config = config
        self._ids = Identities(
            store,
            term=term,
            fence_term=fence_term,
            max_ids=config.max_transactional_ids,
            max_timeout_ms=config.max_timeout_ms,
            two_phase_enabled=config.two_phase_commit,
        )
        self.group_transactions = GroupTransactions(
            store,
            scheduler,
            self._ids,
            ending,
            limits=config.groups,
            begin=self._begin,
            abort_open=self._abort,
        )
        self.forget_producer: Callable[[int], None] = lambda _: None
        """Called with a producer id whose sequences start anew in every partition."""
        self._open_count = 0
        # The term in the upper half: a number is never used twice, also where a crash took its transaction's header.
        self._next_seq = (term << 32) + 1
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    def restore(self, ids: Iterable[TransactionalId], groups: Iterable[GroupTransaction] = ()) -> None:
        """Take over the transactional ids, some with an open transaction, and the groups that recovery found."""
        self._ids.restore(ids)
        self.group_transactions.restore(groups)
        self._open_count = sum(held.open is not None for held in self._ids)
        self._arm_timer()

    @property
    def open_count(self) -> int:
        """Transactions that are open or ending."""
        return self._open_count

    def get(self, transactional_id: str) -> TransactionalId | None:
        return self._ids.get(transactional_id)

    def limit_timeouts(self, max_timeout_ms: int) -> None:
        """Another limit for the timeouts that producers ask for from now on."""
        self._ids.max_timeout_ms = max_timeout_ms

    def transactional_ids(self) -> Iterator[TransactionalId]:
        """All of them, each with its open transaction if there is one."""
        return iter(self._ids)

    def init_producer(self, request: InitRequest, reply: IdentityReply) -> None:
        """InitProducerId: see `Identities.init_producer`."""
        self._ids.init_producer(request, self._abort, reply)

    # -- writes and offsets

    def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition], reply: Reply
    ) -> None:
        """AddPartitionsToTxn: begin if need be, and let these partitions be written to."""
        self._join(name, producer_id, epoch, reply, lambda transaction: self._add(transaction, partitions))

    def add_offsets(self, name: str, producer_id: int, epoch: int, group_id: str, reply: Reply) -> None:
        """AddOffsetsToTxn: begin if need be, and let this group's offsets be committed."""
        self._join(name, producer_id, epoch, reply, lambda transaction: transaction.groups.add(group_id))

    def _join(
        self, name: str, producer_id: int, epoch: int, reply: Reply, change: Callable[[Transaction], None]
    ) -> None:
        if self._in_line(name, lambda: self._join(name, producer_id, epoch, reply, change)):
            return
        with refusals(reply):
            held = self._ids.holder(name, producer_id, epoch)
            transaction = self._writable(held) or self._begin(held)
            change(transaction)
            self._store_header(transaction)
            self._reply_when_safe(transaction, reply)

    def _add(self, transaction: Transaction, partitions: Iterable[TopicPartition]) -> None:
        wanted = transaction.partitions.union(partitions)
        if len(wanted) > self._config.max_partitions_per_transaction:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"a transaction may write to {self._config.max_partitions_per_transaction} partitions",
            )
        transaction.partitions = wanted

    def verify(
        self, name: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> KafkaError | None:
        """AddPartitionsToTxn's `verify_only`: whether these partitions belong to the open transaction (KIP-890)."""
        try:
            transaction = self._ids.holder(name, producer_id, epoch).open
        except KafkaError as refused:
            return refused
        if transaction is None or not transaction.partitions.issuperset(partitions):
            return KafkaError(ErrorCode.transaction_abortable, f"not all of these were added to {name!r}")
        return None

    def admit_write(
        self, name: str | None, producer_id: int, epoch: int, partition: TopicPartition, *, implicit: bool
    ) -> Transaction:
        """The open transaction that may write a batch to this partition now.

        `implicit`: the write itself adds the partition and begins the transaction (Produce v12, KIP-890).

        Raises:
            KafkaError: INVALID_REQUEST, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE,
                TRANSACTION_ABORTABLE, TRANSACTIONAL_ID_AUTHORIZATION_FAILED without a name,
                POLICY_VIOLATION at a limit.
        """
        if name is None:
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "a transactional batch without a transactional id",
            )
        held = self._ids.holder(name, producer_id, epoch)
        transaction = self._writable(held)
        if held.busy:
            raise KafkaError(ErrorCode.invalid_txn_state, f"the transaction of {name!r} is ending")
        if implicit:
            if transaction is None:
                transaction = self._begin(held)
                self._store_header(transaction)
            if partition not in transaction.partitions:
                # In memory alone: after a restart the batch itself tells that its partition belongs to it.
                self._add(transaction, (partition,))
        elif transaction is None or partition not in transaction.partitions:
            raise KafkaError(
                ErrorCode.invalid_txn_state, f"{partition} was not added to a transaction of {name!r}"
            )
        return transaction

    @staticmethod
    def wrote(
        transaction: Transaction, partition: Partition, segment_id: int, first: int, last: int, lsn: int
    ) -> None:
        """A batch of this transaction was appended: its commit waits for `lsn`, readers stop before `first`."""
        if transaction.record_write(partition, segment_id, first, last):
            partition.transactions.opened(transaction.key, first)
        transaction.lsns[partition.log] = lsn

    def commit_offsets(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        group_id: str,
        offsets: dict[TopicPartition, PendingOffset],
        reply: Reply,
        *,
        implicit: bool,
    ) -> None:
        """TxnOffsetCommit: offsets that count when the transaction commits.

        `implicit`: this is the first the transaction hears of the group (v5, KIP-890); a conflict with another open
        transaction is refused as abortable there, and waits for the other's end in versions without that error.
        """

        def again() -> None:
            self.commit_offsets(name, producer_id, epoch, group_id, offsets, reply, implicit=implicit)

        if self._in_line(name, again):
            return
        with refusals(reply):
            held = self._ids.holder(name, producer_id, epoch)
            transaction = self._writable(held)
            if transaction is None:
                if not implicit:
                    raise KafkaError(ErrorCode.invalid_txn_state, f"{name!r} has no transaction open")
                transaction = self._begin(held)
            conflict = self._offsets.holder(group_id, offsets, transaction)
            if conflict is not None:
                if implicit:
                    raise KafkaError(
                        ErrorCode.transaction_abortable,
                        f"another open transaction holds the offset of {conflict}",
                    )
                self._offsets.when_released(conflict, again)
                return
            transaction.groups.add(group_id)
            self._store_header(transaction)
            op = Put(keys.txn_op(transaction.key, transaction.op_count), offsets_op(group_id, offsets))
            self._store.apply([op])
            transaction.op_count += 1
            self._offsets.hold(transaction, group_id, offsets)
            self._reply_when_safe(transaction, reply)

    def _reply_when_safe(self, transaction: Transaction, reply: Reply) -> None:
        """Written, not flushed: a killed process finds it again; after a power cut the transaction aborts (D2).

        With two-phase commit the transaction must outlive the power cut, too: flushed.
        """

        def safe(error: Exception | None) -> None:
            reply(unavailable(error) if error else None)

        if transaction.two_phase:
            self._store.when_durable(self._store.lsn, safe)
        else:
            self._store.when_written(safe)

    @staticmethod
    def _writable(held: TransactionalId) -> Transaction | None:
        """The open transaction, if there is one.

        Raises:
            KafkaError: INVALID_TXN_STATE where it was kept for a new producer (KIP-939): it can only be ended.
        """
        transaction = held.open
        if transaction is not None and (transaction.producer_id, transaction.epoch) != (
            held.producer_id,
            held.epoch,
        ):
            raise KafkaError(
                ErrorCode.invalid_txn_state, f"the prepared transaction of {held.name!r} must end first"
            )
        return transaction

    # -- ends

    def end(
        self, name: str, producer_id: int, epoch: int, commit: bool, reply: IdentityReply, *, bump: bool
    ) -> None:
        """EndTxn. `bump`: the answer carries the producer's next epoch (v5, KIP-890).

        Errors: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE, TRANSACTION_ABORTABLE,
        KAFKA_STORAGE_ERROR when a flush failed (the transaction is aborted then), COORDINATOR_NOT_AVAILABLE.
        """
        if self._in_line(name, lambda: self.end(name, producer_id, epoch, commit, reply, bump=bump)):
            return
        with refusals(reply):
            held = self._ids.get(name)
            if held is not None and self._is_repeat(held, producer_id, epoch, commit, bump=bump):
                reply(Identity(held.producer_id, held.epoch))
                return
            held = self._ids.holder(name, producer_id, epoch, aborting=not commit)
            if held.open is None:
                self._end_nothing(held, commit, reply, bump=bump)
            else:
                self._end_open(held, held.open, commit, reply, bump=bump)

    def _is_repeat(
        self, held: TransactionalId, producer_id: int, epoch: int, commit: bool, *, bump: bool
    ) -> bool:
        """Whether this EndTxn was answered before and the answer got lost (T5).

        Raises:
            KafkaError: INVALID_TXN_STATE where the transaction ended the other way; PRODUCER_FENCED where nobody can
                tell whether it is a repeat.
        """
        last = held.last_end
        if held.open is not None or last is None or (last.producer_id, last.epoch) != (producer_id, epoch):
            return False
        still = (producer_id, epoch) == (held.producer_id, held.epoch)
        if not (bump or still):
            return (
                False  # a timeout fenced it: only transactions v2 can go on from an answer to its old epoch
            )
        if still and self._ids.may_have_lost(held):
            if last.committed:
                # First protocol, where the epoch stands still: the end whose answer got lost, again, or the next one,
                # whose transaction the power cut took without a trace? A commit's success would be a lie to the second
                # (D2), an abort's to the first. So it is this producer's end; its successor reads what stands.
                raise KafkaError(
                    ErrorCode.producer_fenced,
                    f"the machine restarted; nobody can tell which transaction {held.name!r} is ending",
                )
            return False
        if last.committed is commit:
            return True
        if still:
            return False
        raise KafkaError(ErrorCode.invalid_txn_state, f"the transaction of {held.name!r} ended the other way")

    def _end_nothing(self, held: TransactionalId, commit: bool, reply: IdentityReply, *, bump: bool) -> None:
        """EndTxn where no transaction is open: a record never left the client, or a crash took the transaction."""
        if commit or not (bump or self._ids.may_have_lost(held)):
            raise KafkaError(ErrorCode.invalid_txn_state, f"{held.name!r} has no transaction to end")
        held.last_end = LastEnd(held.producer_id, held.epoch, False)
        if self._ids.may_have_lost(held):
            # Batches of it are missing, so its sequences have a gap; after this abort they may go on from anywhere.
            self.forget_producer(held.producer_id)
        self._ids.touch(held)
        if bump:
            self._ids.bump(held)
        self._ids.store_and_answer(held, reply)

    def _end_open(
        self,
        held: TransactionalId,
        transaction: Transaction,
        commit: bool,
        reply: IdentityReply,
        *,
        bump: bool,
    ) -> None:
        if (
            commit
            and transaction.membership is not None
            and not self.group_transactions.may_vote(transaction)
        ):
            raise KafkaError(
                ErrorCode.transaction_abortable, f"{transaction.membership} was superseded or is decided"
            )
        held.last_end = LastEnd(held.producer_id, held.epoch, commit)
        self._ids.touch(held)
        if bump:
            self._ids.bump(held)
        identity = Identity(held.producer_id, held.epoch)

        def answer(error: KafkaError | None) -> None:
            reply(error or identity)

        if commit and transaction.membership is not None:
            self._vote(held, transaction, answer)
        elif commit:
            self._commit(held, transaction, answer)
        else:
            self._abort(held, transaction, answer)

    def _commit(self, held: TransactionalId, transaction: Transaction, reply: Reply) -> None:
        def done(error: KafkaError | None) -> None:
            if transaction.state is State.ABORTED:
                # The verdict went against the client's wish: what is recorded of the id must say so too.
                if held.last_end is not None:
                    held.last_end = dataclasses.replace(held.last_end, committed=False)
                self._store.apply(self._ids.record_ops(held))
            self._closed(held)
            reply(error)

        held.busy = True
        self._ending.commit(transaction, self._ids.record_ops(held), done)

    def _vote(self, held: TransactionalId, transaction: Transaction, reply: Reply) -> None:
        """A group's member: its EndTxn(commit) is a durable vote; the group decides (T10)."""

        def done(error: KafkaError | None) -> None:
            if transaction.state is not State.PREPARED:
                self.group_transactions.forget_member(transaction)
            self._closed(held)
            reply(error)

        held.busy = True
        self._ending.vote(transaction, self._ids.record_ops(held), done)

    def _abort(self, held: TransactionalId, transaction: Transaction, reply: Reply) -> None:
        def done(error: KafkaError | None) -> None:
            self._closed(held)
            reply(error)

        held.busy = True
        self.group_transactions.forget_member(transaction)
        self._ending.abort(transaction, self._ids.record_ops(held), done)

    def _closed(self, held: TransactionalId) -> None:
        held.open = None
        self._open_count -= 1
        self._ids.release(held)

    # -- deadlines

    def expire(self) -> None:
        """Abort what is past its deadline and bump the epoch, as Kafka does (T9). Deadlines come from the index."""
        self._timer = None
        now_ms = self._scheduler.now_ms()
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
        self._abort(held, transaction, reply)

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
        self.group_transactions.close()

    # -- shared

    def forget_partition(self, partition: Partition) -> None:
        """Its topic is being deleted: open transactions go on without it, and so do their commits."""
        living = [held.open for held in self._ids if held.open is not None]
        for group in self.group_transactions:
            living += group.members.values()
        for transaction in living:
            transaction.partitions.discard((partition.topic, partition.index))
            transaction.writes.pop(partition, None)
            transaction.lsns.pop(partition.log, None)

    def _in_line(self, name: str, call: Callable[[], None]) -> bool:
        """Whether a durable step of this id is under way; the call waits for it then."""
        held = self._ids.get(name)
        if held is None or not held.busy:
            return False
        held.waiting.append(call)
        return True

    def _begin(self, held: TransactionalId) -> Transaction:
        if self._open_count >= self._config.max_open_transactions:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"this broker has its limit of {self._config.max_open_transactions} transactions open",
            )
        now_ms = self._scheduler.now_ms()
        deadline_ms = NEVER_MS if held.two_phase else now_ms + held.timeout_ms
        transaction = Transaction(
            held.name, held.producer_id, held.epoch, self._next_seq, now_ms, deadline_ms
        )
        transaction.two_phase = held.two_phase
        self._next_seq += 1
        held.open = transaction
        self._open_count += 1
        if self._timer is None or deadline_ms < self._timer_at_ms:
            self._store_header(transaction)
            self._arm_timer()
        return transaction

    def _store_header(self, transaction: Transaction) -> None:
        try:
            self._store.apply([Put(keys.txn(transaction.key), transaction.header())])
        except StoreFailed as failure:
            raise unavailable(failure) from failure


def _swept(_: KafkaError | None) -> None:
    """A sweep has nobody to answer; a failed store has said so itself."""
