"""What may be done in a transaction: partitions and groups that join it, records and offsets that are part of it.

Serves both of Kafka's transaction protocols: the first (partitions and offsets are added before they are used) and
transactions v2 (KIP-890: the write itself adds). Guarantee: nothing is written outside a living transaction (design,
section 5), so none can hang. Sans I/O but for the metadata store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from txn import keys
from txn.identities import Identities, Reply, refusals, unavailable
from txn.metastore import MetaStore, Put
from txn.offsets import GroupOffsets
from txn.open_transactions import OpenTransactions
from txn.partition import Partition
from txn.transaction import PendingOffset, TopicPartition, Transaction, TransactionalId, offsets_op
from wire.errors import ErrorCode, KafkaError


class Admission:
    """Methods with a `reply` call it exactly once, now or later."""

    def __init__(
        self,
        store: MetaStore,
        identities: Identities,
        open_transactions: OpenTransactions,
        offsets: GroupOffsets,
        *,
        max_partitions: int,
    ) -> None:
        """`max_partitions`: of one transaction."""
        self._store = store
        self._ids = identities
        self._open = open_transactions
        self._offsets = offsets
        self._max_partitions = max_partitions

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
        if self._open.in_line(name, lambda: self._join(name, producer_id, epoch, reply, change)):
            return
        with refusals(reply):
            held = self._ids.holder(name, producer_id, epoch)
            transaction = self._writable(held) or self._open.begin(held)
            change(transaction)
            self._open.store_header(transaction)
            self._reply_when_safe(transaction, reply, traced=True)

    def _add(self, transaction: Transaction, partitions: Iterable[TopicPartition]) -> None:
        new = set(partitions) - transaction.partitions
        if len(transaction.partitions) + len(new) > self._max_partitions:
            raise self._too_many()
        transaction.partitions.update(new)

    def _too_many(self) -> KafkaError:
        return KafkaError(
            ErrorCode.policy_violation, f"a transaction may write to {self._max_partitions} partitions"
        )

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
        if transaction is None:
            if not implicit:
                raise _not_added(partition, name)
            transaction = self._open.begin(held)
            self._open.store_header(transaction)
        self.admit_further(transaction, partition, implicit=implicit)
        return transaction

    def admit_further(self, transaction: Transaction, partition: TopicPartition, *, implicit: bool) -> None:
        """Another partition of a request that `admit_write` let in, in the same turn. Raises as that one does."""
        if partition in transaction.partitions:
            return
        if not implicit:
            raise _not_added(partition, transaction.transactional_id)
        # In memory alone: after a restart the batch itself tells that its partition belongs to it.
        if len(transaction.partitions) >= self._max_partitions:
            raise self._too_many()
        transaction.partitions.add(partition)

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
        again: Callable[[], None],
    ) -> None:
        """TxnOffsetCommit: offsets that count when the transaction commits.

        `implicit`: this is the first the transaction hears of the group (v5, KIP-890); a conflict with another open
        transaction is refused as abortable there, and waits for the other's end in versions without that error.
        `again`: called in place of `reply` when the request has waited, to be looked at as if it came now: the group
        may have moved on meanwhile (KIP-447).
        """
        if self._open.in_line(name, again):
            return
        with refusals(reply):
            held = self._ids.holder(name, producer_id, epoch)
            transaction = self._writable(held)
            if transaction is None:
                if not implicit:
                    raise KafkaError(ErrorCode.invalid_txn_state, f"{name!r} has no transaction open")
                transaction = self._open.begin(held)
            if not implicit and group_id not in transaction.groups:
                raise KafkaError(
                    ErrorCode.invalid_txn_state,
                    f"group {group_id!r} was not added to a transaction of {name!r}",
                )
            conflict = self._offsets.holder(group_id, offsets, transaction)
            if conflict is not None:
                if implicit:
                    raise KafkaError(
                        ErrorCode.transaction_abortable,
                        f"another open transaction holds the offset of {conflict}",
                    )
                mine = transaction
                self._offsets.when_released(
                    conflict, mine, lambda: self._resume(name, producer_id, epoch, mine, reply, again)
                )
                return
            transaction.groups.add(group_id)
            self._open.store_header(transaction)
            op = Put(keys.txn_op(transaction.key, transaction.op_count), offsets_op(group_id, offsets))
            self._store.apply([op])
            transaction.op_count += 1
            self._offsets.hold(transaction, group_id, offsets)
            self._reply_when_safe(transaction, reply, traced=not (implicit and transaction.untraced))

    def _resume(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        transaction: Transaction,
        reply: Reply,
        again: Callable[[], None],
    ) -> None:
        """Offsets that waited belong to the transaction that sent them, never to the next one of the same epoch."""
        refused: list[KafkaError] = []
        with refusals(refused.append):
            if self._ids.holder(name, producer_id, epoch).open is not transaction:
                raise KafkaError(
                    ErrorCode.invalid_txn_state, f"the transaction of {name!r} ended while its offsets waited"
                )
        if refused:
            reply(refused[0])
        else:
            again()

    def _reply_when_safe(self, transaction: Transaction, reply: Reply, *, traced: bool) -> None:
        """Written, not flushed: a killed process finds it again; after a power cut the transaction aborts (D2).

        With two-phase commit the transaction must outlive the power cut, too: flushed. Not `traced`: at once.
        """
        if not traced:
            reply(None)
            return

        self.when_traced(
            transaction.two_phase, lambda error: reply(unavailable(error) if error is not None else None)
        )

    def when_traced(self, two_phase: bool, done: Callable[[Exception | None], None]) -> None:
        """When what was recorded so far outlives a kill of this process; a power cut as well, where it must."""
        if two_phase:
            self._store.when_durable(self._store.lsn, done)
        else:
            self._store.when_written(done)

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


def _not_added(partition: TopicPartition, name: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_txn_state, f"{partition} was not added to a transaction of {name!r}")
