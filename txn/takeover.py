"""What a new coordinator makes of its predecessor's transactions, where ranges are led elsewhere (design, section 14).

In one batch, with which its own term begins: an OPEN transaction goes on where the coordinator before has handed it
over (`broker.ranges.parting`). Otherwise it is aborted, and needs no header for that, nor does an ABORTED one: a batch
of an earlier term without a header is aborted. COMMITTED ones go on to their settlement. A PREPARING one is decided by
its positions, however long that takes; whoever asks for its id waits (T3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txn import keys
from txn.group_state import GroupState, GroupTransaction
from txn.metastore import Delete, MetaStore, Op, Put
from txn.offsets import GroupOffsets
from txn.partition import Partition
from txn.transaction import (
    UNKNOWN_RANGE,
    UNKNOWN_TERM,
    SegmentWrite,
    State,
    Transaction,
    TransactionalId,
)

FindPartition = Callable[[str, int], Partition | None]


@dataclass(slots=True)
class TakenOver:
    """`ops` make it so: one batch, before all else that the new coordinator records. Whatever it answers as done is
    durable, so they are by then."""

    ids: dict[str, TransactionalId] = field(default_factory=dict)
    groups: dict[tuple[str, int], GroupTransaction] = field(default_factory=dict)
    """Those that are not decided, without their members."""
    open: list[Transaction] = field(default_factory=list)
    """They go on; members of an undecided group among them."""
    preparing: list[Transaction] = field(default_factory=list)
    """Members of an undecided group among them."""
    committed: list[Transaction] = field(default_factory=list)
    aborted: list[Transaction] = field(default_factory=list)
    """Leaders may still let them write: they are to be closed there before their ids go on."""
    ops: list[Op] = field(default_factory=list)


def take_over(
    store: MetaStore,
    find_partition: FindPartition,
    new_producer_id: Callable[[], int],
    now_ms: int,
    *,
    goes_on: bool = False,
) -> TakenOver:
    """Reads the store, and changes nothing but what `new_producer_id` does. `goes_on`: what it says of open
    transactions is all there was."""
    found = TakenOver()
    decided = {}
    for key, record in store.scan(keys.TXN_GROUPS):
        group = GroupTransaction.from_record(*keys.parse_txn_group(key), record.value, record.version)
        if group.state is GroupState.OPEN:
            found.groups[group.sink, group.batch] = group
        else:
            # It has done its work: of each member the header says the outcome from this batch on, or that it has none.
            decided[group.sink, group.batch] = group
            found.ops.append(Delete(key))
    for key, record in store.scan(keys.TXIDS):
        name = key[len(keys.TXIDS) :]
        found.ids[name] = TransactionalId.from_record(name, record.value)
    ops: dict[keys.TxnKey, list[dict[str, Any]]] = {}
    for key, record in store.scan(keys.TXN_OPS):
        ops.setdefault(keys.parse_txn(key), []).append(record.value)
    ended: dict[str, Transaction] = {}
    for key, record in store.scan(keys.TXNS):
        txn_key = keys.parse_txn(key)
        transaction = _rebuilt(txn_key, record.value, ops.get(txn_key, ()), find_partition)
        held = found.ids.get(transaction.transactional_id)
        if transaction.state is State.PREPARING and transaction.membership is not None:
            sink, batch, attempt = transaction.membership
            group_ended = decided.get((sink, batch))
            if (
                group_ended is not None
                and group_ended.state is GroupState.COMMITTED
                and group_ended.is_winner(transaction)
            ):
                transaction.move(State.COMMITTED)
                transaction.finalized_ms = now_ms
                found.ops.append(Put(key, transaction.header()))
                for group_id, offsets in transaction.offsets.items():
                    found.ops += GroupOffsets.put_ops(group_id, offsets, now_ms)
            elif (sink, batch) not in found.groups or found.groups[sink, batch].attempt != attempt:
                transaction.move(State.ABORTED)
                if held is not None:
                    # Fenced, as the step that was cut off would have done: its producer may still be about.
                    held.producer_id, held.epoch = held.next_epoch(1, new_producer_id)
                    found.ops.append(Put(keys.txid(held.name), held.record()))
        match transaction.state:
            case State.COMMITTED:
                found.committed.append(transaction)
            case State.PREPARING:
                found.preparing.append(transaction)
                if held is not None:
                    held.open = transaction
            case State.OPEN if goes_on and _may_go_on(found, transaction, held):
                assert held is not None
                held.open = transaction
                found.open.append(transaction)
            case _:
                if transaction.state is State.OPEN:
                    _aborted(found, transaction, held)
                elif transaction.terms and held is not None:
                    ended[held.name] = transaction  # in the order of their keys: the last one stays
                found.ops.append(Delete(key))
                found.ops += [Delete(keys.txn_op(txn_key, n)) for n in range(transaction.op_count)]
    found.aborted += _perhaps_not_closed(found, ended)
    return found


def _perhaps_not_closed(found: TakenOver, ended: Mapping[str, Transaction]) -> list[Transaction]:
    """Aborted on record, while some leader may not have heard of that: its producer, if its epoch stands still and it
    has begun nothing since, could write there under what is over."""
    aborted = []
    for name, transaction in ended.items():
        held = found.ids[name]
        if held.open is None and (held.producer_id, held.epoch) == transaction.key[:2]:
            transaction.terms = dict.fromkeys(transaction.terms, UNKNOWN_TERM)
            aborted.append(transaction)
    return aborted


def _may_go_on(found: TakenOver, transaction: Transaction, held: TransactionalId | None) -> bool:
    """Its id is held by the producer that began it, and the group that decides it is undecided."""
    if held is None or (held.producer_id, held.epoch) != transaction.key[:2]:
        return False
    if transaction.membership is None:
        return True
    sink, batch, attempt = transaction.membership
    return (sink, batch) in found.groups and found.groups[sink, batch].attempt == attempt


def _aborted(found: TakenOver, transaction: Transaction, held: TransactionalId | None) -> None:
    transaction.move(State.ABORTED)
    transaction.terms = {(UNKNOWN_RANGE, *at): UNKNOWN_TERM for at in transaction.partitions}
    found.aborted.append(transaction)
    if held is not None and (held.producer_id, held.epoch) == transaction.key[:2]:
        held.lost = True
        held.note_lost()
        found.ops.append(Put(keys.txid(held.name), held.record()))


def _rebuilt(
    key: keys.TxnKey,
    header: Mapping[str, Any],
    ops: Sequence[Mapping[str, Any]],
    find_partition: FindPartition,
) -> Transaction:
    transaction = Transaction.from_record(key, header, ops)
    for op in ops:
        if op["kind"] != "write":
            continue
        for index, first, last in op["writes"]:
            partition = find_partition(op["topic"], index)
            if partition is not None:  # its topic was deleted otherwise
                transaction.writes.setdefault(partition, {})[op["segment"]] = SegmentWrite(first, last)
                transaction.terms[keys.range_of(op["segment"]), op["topic"], index] = op["term"]
    return transaction
