"""Recovery of transactions at start: each undecided one is decided once, before anything is served (design T3).

The range logs are open, and all that was found in them is flushed. A PREPARING transaction is committed if every
position named in it is there (T1), aborted otherwise. An OPEN one goes on if nothing written can be missing (a clean
stop, or the same kernel boot: D2), and aborts otherwise. Batches above `/resolved` whose transaction the store does not
know are aborted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txn import keys
from txn.group_state import GroupState, GroupTransaction
from txn.id_blocks import IdBlocks
from txn.metastore import Delete, MetaStore, Op, Put
from txn.offsets import GroupOffsets
from txn.partition import Partition
from txn.settlement import Settlement
from txn.transaction import (
    State,
    Transaction,
    TransactionalId,
    WritesBySegment,
    extend,
    span,
)


class LostCommit(Exception):
    """A transaction recorded as committed misses data that had been flushed: the disk lost it. Never passed over."""


@dataclass(slots=True)
class Recovered:
    """What recovery found. Counts of transactions; `lsn` must be durable before anything is served."""

    ids: list[TransactionalId] = field(default_factory=list)
    groups: list[GroupTransaction] = field(default_factory=list)
    """Group transactions that are not decided, with their members."""
    committed: int = 0
    aborted: int = 0
    resumed: int = 0
    unknown: int = 0
    lsn: int = 0


_Writes = dict[Partition, WritesBySegment]


class TransactionRecovery:
    """One pass over the store and the logs. `topics` holds every topic's partitions by index."""

    def __init__(
        self,
        store: MetaStore,
        topics: Mapping[str, Sequence[Partition]],
        segment_topics: Mapping[int, str],
        offsets: GroupOffsets,
        settlement: Settlement,
        *,
        now_ms: int,
        nothing_lost: bool,
    ) -> None:
        self._store = store
        self._topics = topics
        self._segment_topics = segment_topics
        self._offsets = offsets
        self._settlement = settlement
        self._now_ms = now_ms
        self._nothing_lost = nothing_lost
        self._result = Recovered()
        self._new_ids = IdBlocks(store, keys.PRODUCER_IDS)
        self._resolved_offsets: dict[Partition, int] = {}
        self._batch: list[Op] = []
        self._groups: dict[tuple[str, int], GroupTransaction] = {}

    def run(self) -> Recovered:
        """Decide, rebuild, record.

        Raises:
            LostCommit: flushed data of a committed transaction is missing.
        """
        self._load_aborted()
        ids = {
            key[len(keys.TXIDS) :]: TransactionalId.from_record(key[len(keys.TXIDS) :], record.value)
            for key, record in self._store.scan(keys.TXIDS)
        }
        self._load_groups()
        ops = self._load_ops()
        found = self._scan_logs()
        for key, record in list(self._store.scan(keys.TXNS)):
            txn_key = keys.parse_txn(key)
            transaction = Transaction.from_record(txn_key, record.value, ops.get(txn_key, ()))
            transaction.writes = found.pop(txn_key, {})
            self._decide(transaction, ops.get(txn_key, ()), ids)
        by_identity = {(held.producer_id, held.epoch): held for held in ids.values()}
        for txn_key, writes in found.items():
            self._unknown(txn_key, writes, by_identity.get(txn_key[:2]))
        self._result.ids = list(ids.values())
        self._collect_groups()
        if self._batch:
            self._result.lsn = self._store.apply(self._batch).lsn
        return self._result

    # -- what is there

    def _partition(self, topic: str, index: int) -> Partition | None:
        partitions = self._topics.get(topic, ())
        return partitions[index] if index < len(partitions) else None

    def _load_aborted(self) -> None:
        for key, record in self._store.scan(keys.ABORTED):
            segment_id, index, first = keys.parse_aborted(key)
            topic = self._segment_topics.get(segment_id)
            partition = self._partition(topic, index) if topic is not None else None
            last, producer_id = record.value
            if partition is not None and last >= partition.log_start_offset:
                partition.transactions.add_aborted(producer_id, first, last)

    def _load_groups(self) -> None:
        for key, record in self._store.scan(keys.TXN_GROUPS):
            group = GroupTransaction.from_record(*keys.parse_txn_group(key), record.value, record.version)
            self._groups[group.sink, group.batch] = group

    def _collect_groups(self) -> None:
        """A decided group's record has done its work: each member's own header says the outcome, in this batch."""
        for group in self._groups.values():
            if group.state is GroupState.OPEN:
                self._result.groups.append(group)
            else:
                self._batch.append(Delete(keys.txn_group(group.sink, group.batch)))

    def _load_ops(self) -> dict[keys.TxnKey, list[dict[str, Any]]]:
        ops: dict[keys.TxnKey, list[dict[str, Any]]] = {}
        for key, record in self._store.scan(keys.TXN_OPS):
            ops.setdefault(keys.parse_txn(key), []).append(record.value)
        return ops

    def _resolved(self) -> dict[Partition, int]:
        offsets: dict[Partition, int] = {}
        for key, record in self._store.scan(keys.RESOLVED):
            topic = self._segment_topics.get(int(key[len(keys.RESOLVED) :]))
            for index, offset in record.value.items():
                partition = self._partition(topic, index) if topic is not None else None
                if partition is not None:
                    offsets[partition] = max(offset, offsets.get(partition, 0))
        return offsets

    def _scan_logs(self) -> dict[keys.TxnKey, _Writes]:
        """Every transactional batch that is not settled yet, by transaction; first offsets in ascending order."""
        resolved = self._resolved_offsets = self._resolved()
        found: dict[keys.TxnKey, _Writes] = {}
        for partitions in self._topics.values():
            for partition in partitions:
                start = max(resolved.get(partition, 0), partition.log_start_offset)
                for batch in partition.log.transactional_batches(partition.index, start):
                    key = (batch.producer_id, batch.producer_epoch, batch.txn_seq)
                    segments = found.setdefault(key, {}).setdefault(partition, {})
                    segment_id = partition.segment_of(batch.base_offset)
                    extend(segments, segment_id, batch.base_offset, batch.last_offset)
                    if key not in partition.transactions:
                        partition.transactions.opened(key, batch.base_offset)
        return found

    # -- verdicts

    def _decide(
        self, transaction: Transaction, ops: Sequence[dict[str, Any]], ids: dict[str, TransactionalId]
    ) -> None:
        held = ids.get(transaction.transactional_id)
        if held is not None and transaction.state is State.OPEN:
            held.used_ms = self._now_ms
        if transaction.membership is not None and transaction.state in (State.OPEN, State.PREPARING):
            if self._decide_member(transaction, ops, held):
                return
        elif transaction.state is State.OPEN:
            if held is not None and self._goes_on(transaction, held):
                return
            self._verdict(transaction, State.ABORTED)
            if held is not None and (held.producer_id, held.epoch) == transaction.key[:2]:
                held.lost = True
                held.note_lost()
                self._batch.append(Put(keys.txid(held.name), held.record()))
        elif transaction.state is State.PREPARING:
            if self._is_whole(transaction, ops):
                self._commit_verdict(transaction)
            else:
                self._verdict(transaction, State.ABORTED)
                self._record_abort(held)
        elif transaction.state is State.COMMITTED and not self._is_whole(transaction, ops):
            raise LostCommit(
                f"transaction {transaction.key} of {transaction.transactional_id!r} was committed, but flushed data "
                "of it is missing from the log: the disk lost it; restore it, or remove what depends on it"
            )
        self._finish(transaction)

    def _decide_member(
        self, transaction: Transaction, ops: Sequence[dict[str, Any]], held: TransactionalId | None
    ) -> bool:
        """A member's outcome is its group's (T10). Whether it stays undecided."""
        assert transaction.membership is not None
        sink, batch, attempt = transaction.membership
        group = self._groups.get((sink, batch))
        current = group is not None and group.state is GroupState.OPEN and group.attempt == attempt
        if transaction.state is State.PREPARING and self._is_whole(transaction, ops):
            if group is not None and group.state is GroupState.COMMITTED and group.is_winner(transaction):
                self._commit_verdict(transaction)
                return False
            if current:
                assert group is not None
                transaction.move(State.PREPARED)
                group.members[transaction.key] = transaction
                for group_id, offsets in list(transaction.offsets.items()):
                    self._offsets.hold(transaction, group_id, offsets)
                self._result.resumed += 1
                return True
        elif (
            transaction.state is State.OPEN
            and current
            and held is not None
            and self._goes_on(transaction, held)
        ):
            assert group is not None
            group.members[transaction.key] = transaction
            return True
        self._verdict(transaction, State.ABORTED)
        if held is not None and held.open is None:
            # Fenced, as the step that the stop interrupted would have done: its producer may still be about.
            held.producer_id, held.epoch = held.next_epoch(1, lambda: self._new_ids.allocate()[0])
            self._batch.append(Put(keys.txid(held.name), held.record()))
        return False

    def _commit_verdict(self, transaction: Transaction) -> None:
        self._verdict(transaction, State.COMMITTED)
        for group_id, offsets in transaction.offsets.items():
            self._batch += self._offsets.put_ops(group_id, offsets, self._now_ms)

    def _goes_on(self, transaction: Transaction, held: TransactionalId) -> bool:
        # A two-phase producer was answered nothing that is not on the disk; a newer one may have kept this (KIP-939).
        if not (self._nothing_lost or held.two_phase):
            return False
        if (held.producer_id, held.epoch) != (
            transaction.producer_id,
            transaction.epoch,
        ) and not held.two_phase:
            return False
        held.open = transaction
        transaction.two_phase = held.two_phase
        for group_id, offsets in list(transaction.offsets.items()):
            self._offsets.hold(transaction, group_id, offsets)
        self._result.resumed += 1
        return True

    def _is_whole(self, transaction: Transaction, ops: Iterable[dict[str, Any]]) -> bool:
        """T1: every position named is there, written by this transaction under the named term or before."""
        for op in ops:
            if op["kind"] != "write":
                continue
            for index, _, last in op["writes"]:
                partition = self._partition(op["topic"], index)
                if partition is None or last < max(
                    partition.log_start_offset, self._resolved_offsets.get(partition, 0)
                ):
                    # The topic was deleted or the records were, or they are settled and compaction may have taken them.
                    continue
                if not self._stands(partition, transaction.key, op["segment"], op["term"], last):
                    return False
        return True

    @staticmethod
    def _stands(partition: Partition, key: keys.TxnKey, segment_id: int, term: int, last: int) -> bool:
        batch = partition.log.batch_at(partition.index, last)
        return (
            batch is not None
            and (batch.producer_id, batch.producer_epoch, batch.txn_seq) == key
            and batch.term <= term
            and batch.last_offset == last
            and partition.segment_of(last) == segment_id
        )

    def _verdict(self, transaction: Transaction, state: State) -> None:
        transaction.move(state)
        transaction.finalized_ms = self._now_ms
        self._batch.append(Put(keys.txn(transaction.key), transaction.header()))

    def _record_abort(self, held: TransactionalId | None) -> None:
        if held is not None and held.last_end is not None:
            # It was the id's last end: no other can begin before it is decided.
            held.commit_refused()
            self._batch.append(Put(keys.txid(held.name), held.record()))

    def _finish(self, transaction: Transaction, *, has_header: bool = True) -> None:
        aborted = transaction.state is State.ABORTED
        for partition, segments in transaction.writes.items():
            if aborted:
                first, last = span(segments)
                partition.transactions.add_aborted(transaction.producer_id, first, last)
            partition.transactions.closed(transaction.key)
        if has_header:
            if aborted:
                self._result.aborted += 1
            else:
                self._result.committed += 1
        self._settlement.finished(transaction, has_header=has_header)

    def _unknown(self, key: keys.TxnKey, writes: _Writes, held: TransactionalId | None) -> None:
        """Batches of a transaction that nobody remembers: its header was never flushed, so it never committed.

        Its producer, if it is still the holder, must abort: these batches would answer for repeats of them. Unless it
        has ended this or a later one since: until such batches are settled each start finds them anew, and what the
        producer's next EndTxn repeats is that end (T5).
        """
        self._result.unknown += 1
        ended_since = held is not None and held.term > keys.term_of(key[2])
        if held is not None and held.open is None and not held.lost and not ended_since:
            held.lost = True
            held.note_lost()
            self._batch.append(Put(keys.txid(held.name), held.record()))
        lost = Transaction("", *key, created_ms=0, deadline_ms=0, state=State.ABORTED, writes=writes)
        self._finish(lost, has_header=False)
