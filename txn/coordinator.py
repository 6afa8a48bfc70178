"""The transaction coordinator: its parts, wired together.

Serves both of Kafka's transaction protocols: the first (partitions and offsets are added before they are used; the
epoch stays) and transactions v2 (KIP-890: the write itself adds; every end bumps the epoch). Sans I/O: requests and
timers in, callbacks out; durability comes from the metadata store and the range logs handed in.

    admission            what may be done in a transaction         open                 begins, deadlines
    ends                 EndTxn                                    group_transactions   many that end as one
    init_producer        InitProducerId (`txn.identities`)         id_expiry            ids that nobody uses
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from storage.clock import Scheduler
from txn.admission import Admission
from txn.ending import Ending
from txn.ends import Ends
from txn.group_state import GroupLimits, GroupTransaction
from txn.group_transactions import GroupTransactions
from txn.id_expiry import IdExpiry
from txn.identities import Identities, IdentityReply, InitRequest
from txn.metastore import MetaStore
from txn.offsets import GroupOffsets
from txn.open_transactions import OpenTransactions
from txn.partition import Partition
from txn.sink_expiry import SinkExpiry
from txn.transaction import Transaction, TransactionalId
from txn.untraced import IDLE_MS, INTERVAL_MS, UntracedSweep


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
    """Every transaction of this node."""

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
        untraced_fence_term: int | None = None,
    ) -> None:
        self._ids = Identities(
            store,
            scheduler,
            term=term,
            fence_term=fence_term,
            untraced_fence_term=untraced_fence_term,
            max_ids=config.max_transactional_ids,
            max_timeout_ms=config.max_timeout_ms,
            two_phase_enabled=config.two_phase_commit,
        )
        self.open = OpenTransactions(
            store, scheduler, self._ids, ending, term=term, max_open=config.max_open_transactions
        )
        self.group_transactions = GroupTransactions(
            store,
            scheduler,
            self._ids,
            ending,
            limits=config.groups,
            begin=self.open.begin,
            abort_open=self.open.abort,
        )
        self.open.forget_member = self.group_transactions.forget_member
        self.admission = Admission(
            store, self._ids, self.open, offsets, max_partitions=config.max_partitions_per_transaction
        )
        self.ends = Ends(self._ids, self.open, ending, self.group_transactions)
        self.id_expiry = IdExpiry(store, scheduler, self._ids, self.group_transactions.undecided)
        self._untraced = UntracedSweep(store, scheduler, self._ids)
        if untraced_fence_term is not None:
            self._untraced.configure(IDLE_MS, INTERVAL_MS)
        self.sink_expiry = SinkExpiry(store, scheduler, self.group_transactions.undecided_sinks)

    def restore(self, ids: Iterable[TransactionalId], groups: Iterable[GroupTransaction] = ()) -> None:
        """Take over the transactional ids, some with an open transaction, and the groups that recovery found."""
        self._ids.restore(ids)
        self.group_transactions.restore(groups)
        self.open.restore()

    def get(self, transactional_id: str) -> TransactionalId | None:
        return self._ids.get(transactional_id)

    def release(self, held: TransactionalId) -> None:
        """The step that was under way for the id is over: whoever waited goes on."""
        self._ids.release(held)

    def limit_timeouts(self, max_timeout_ms: int) -> None:
        """Another limit for the timeouts that producers ask for from now on."""
        self._ids.max_timeout_ms = max_timeout_ms

    def transactional_ids(self) -> Iterator[TransactionalId]:
        """All of them, each with its open transaction if there is one."""
        return iter(self._ids)

    def open_transactions(self) -> Iterator[Transaction]:
        """Those that have no outcome yet, members of undecided groups included."""
        yield from self.open
        for group in self.group_transactions:
            yield from group.members.values()

    def init_producer(self, request: InitRequest, reply: IdentityReply) -> None:
        """InitProducerId: see `Identities.init_producer`."""
        self._ids.init_producer(request, self.open.abort, reply)

    def forget_partition(self, partition: Partition) -> None:
        """Its topic is being deleted: open transactions go on without it, and so do their commits."""
        living = [held.open for held in self._ids if held.open is not None]
        for group in self.group_transactions:
            living += group.members.values()
        for transaction in living:
            transaction.partitions.discard((partition.topic, partition.index))
            transaction.writes.pop(partition, None)
            # All its ranges go, also those that were split or merged since the transaction wrote to them.
            for log in [log for log in transaction.lsns if log.directory == partition.log.directory]:
                del transaction.lsns[log]
            at = partition.topic, partition.index
            for place in [one for one in transaction.terms if one[1:] == at]:
                del transaction.terms[place]

    def close(self) -> None:
        """No more timers."""
        self.open.close()
        self.id_expiry.close()
        self.sink_expiry.close()
        self._untraced.close()
        self.group_transactions.close()
