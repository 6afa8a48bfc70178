"""How a transaction ends: the parallel commit step and the abort (design, section 4).

Commit: the PREPARING record with all positions is appended and flushed while every participant range flushes up to
its position; when all are durable the transaction IS committed (T1). One flush delay, however many partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from storage.clock import Scheduler
from txn import keys
from txn.identities import unavailable
from txn.metastore import MetaStore, Op, Put, StoreFailed
from txn.offsets import GroupOffsets
from txn.patience import apply_patiently
from txn.transaction import State, Transaction, span
from wire.errors import ErrorCode, KafkaError

Done = Callable[[KafkaError | None], None]
"""Called once, when the outcome is durable and exposed; with the error that the client gets otherwise."""
RefusedOps = Callable[[], Sequence[Op]]
"""What is recorded of the transactional id when its commit turned out to be an abort."""


class Collector(Protocol):
    """`txn.settlement.Settlement`, or who does its work."""

    def finished(self, transaction: Transaction) -> None: ...


class Participants(Protocol):
    """The ranges that a transaction wrote to, wherever they are led."""

    def close(self, transaction: Transaction, done: Done, *, commit: bool) -> None:
        """No further write of it is taken; `done`, perhaps at once, when `transaction.writes` says where all of it is,
        or with the error that says why it cannot commit."""
        ...

    def when_standing(self, transaction: Transaction, done: Callable[[Exception | None], None]) -> None:
        """`done(None)` when all that it wrote is durable; with an error when some of it never will be."""
        ...

    def decided(self, transaction: Transaction) -> None:
        """Show its outcome to readers."""
        ...


class LocalRanges:
    """`Participants` of a broker that leads all ranges itself: its transactions know where they wrote."""

    def close(self, transaction: Transaction, done: Done, *, commit: bool) -> None:
        done(None)

    def when_standing(self, transaction: Transaction, done: Callable[[Exception | None], None]) -> None:
        waiting = len(transaction.lsns)
        failure: Exception | None = None
        if not waiting:
            done(None)
            return

        def durable(error: Exception | None) -> None:
            nonlocal waiting, failure
            # A topic deleted meanwhile is no participant any more: nothing of it can be missed.
            if not (isinstance(error, KafkaError) and error.code is ErrorCode.unknown_topic_or_partition):
                failure = failure or error
            waiting -= 1
            if not waiting:
                done(failure)

        for log, position in transaction.lsns.items():
            log.when_durable(position, durable)

    def decided(self, transaction: Transaction) -> None:
        """The last stable offset moves on, aborted batches are left out from now on."""
        aborted = transaction.state is State.ABORTED
        for partition, segments in transaction.writes.items():
            if aborted:
                first, last = span(segments)
                partition.transactions.add_aborted(transaction.producer_id, first, last)
            partition.transactions.closed(transaction.key)
            partition.wake()


class Ending:
    """Runs transactions to their end and exposes the outcome. Holds no transaction itself."""

    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        offsets: GroupOffsets,
        settlement: Collector,
        participants: Participants,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._offsets = offsets
        self._settlement = settlement
        self._participants = participants

    def commit(
        self, transaction: Transaction, with_ops: Sequence[Op], done: Done, *, refused_ops: RefusedOps
    ) -> None:
        """Prepare, and expose. `with_ops` (the producer's next epoch) joins the PREPARING batch.

        Where the verdict goes against it, `refused_ops` join the ABORTED record: what `with_ops` foretold of the end
        must not outlive it, or a crash would leave a commit that a repeated EndTxn hears of and no reader ever sees.
        """

        def prepared(error: KafkaError | None) -> None:
            if error is None:
                self.finish_commit(transaction)
            done(error)

        self._prepare(transaction, with_ops, prepared, refused_ops)

    def vote(
        self, transaction: Transaction, with_ops: Sequence[Op], done: Done, *, refused_ops: RefusedOps
    ) -> None:
        """Prepare and stop there: a durable vote, nothing visible. The group's outcome ends it (T10)."""

        def prepared(error: KafkaError | None) -> None:
            if error is None:
                transaction.move(State.PREPARED)
            done(error)

        self._prepare(transaction, with_ops, prepared, refused_ops)

    def _prepare(
        self, transaction: Transaction, with_ops: Sequence[Op], done: Done, refused_ops: RefusedOps
    ) -> None:
        """The parallel step; `done` when T1 holds, or with the error that says why it never will."""

        def closed(error: KafkaError | None) -> None:
            if error is not None:
                self._record_abort(transaction, refused_ops(), lambda failure: done(failure or error))
            else:
                self._prepare_closed(transaction, with_ops, done, refused_ops)

        self._participants.close(transaction, closed, commit=True)

    def _prepare_closed(
        self, transaction: Transaction, with_ops: Sequence[Op], done: Done, refused_ops: RefusedOps
    ) -> None:
        transaction.move(State.PREPARING)
        batch: list[Op] = [Put(keys.txn(transaction.key), transaction.header())]
        for op in transaction.write_ops():
            batch.append(Put(keys.txn_op(transaction.key, transaction.op_count), op))
            transaction.op_count += 1
        waiting = 2
        store_error: Exception | None = None
        log_error: Exception | None = None

        def arrived() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting:
                return
            if store_error is not None:
                # Nothing can be recorded any more: whether it is committed is what a restart will find out (T3).
                done(unavailable(store_error))
            elif log_error is not None:
                self._refused(transaction, log_error, done, refused_ops)
            else:
                done(None)

        def store_durable(error: Exception | None) -> None:
            nonlocal store_error
            store_error = error
            arrived()

        def standing(error: Exception | None) -> None:
            nonlocal log_error
            log_error = error
            arrived()

        def applied(lsn: int) -> None:
            # Both kinds of flush start in this turn and run beside each other; neither waits for the other.
            self._store.when_durable(lsn, store_durable)
            self._participants.when_standing(transaction, standing)

        self._apply([*batch, *with_ops], applied, lambda failure: done(unavailable(failure)))

    def settle_prepared(self, transaction: Transaction, done: Done, *, refused_ops: RefusedOps) -> None:
        """Decide one that a coordinator before this left PREPARING, by its positions (T1). A member of an undecided
        group has voted then."""

        def standing(error: Exception | None) -> None:
            if error is not None:
                self._refused(transaction, error, done, refused_ops)
                return
            if transaction.membership is None:
                self.finish_commit(transaction)
            else:
                transaction.move(State.PREPARED)
            done(None)

        self._participants.when_standing(transaction, standing)

    def abort(self, transaction: Transaction, with_ops: Sequence[Op], done: Done) -> None:
        """Record ABORTED; expose and answer when that is durable, and no further write of it is taken."""
        waiting = 2
        failure: KafkaError | None = None

        def arrived(error: KafkaError | None) -> None:
            nonlocal waiting, failure
            failure = failure or error
            waiting -= 1
            if not waiting:
                if failure is None:
                    self.expose(transaction)
                done(failure)

        self._record(transaction, with_ops, arrived)
        self._participants.close(transaction, arrived, commit=False)

    def _record_abort(self, transaction: Transaction, with_ops: Sequence[Op], done: Done) -> None:
        """`abort`, of one that takes no writes any more."""

        def recorded(failure: KafkaError | None) -> None:
            if failure is None:
                self.expose(transaction)
            done(failure)

        self._record(transaction, with_ops, recorded)

    def _record(self, transaction: Transaction, with_ops: Sequence[Op], done: Done) -> None:
        """ABORTED; `done` when that is durable."""
        transaction.move(State.ABORTED)
        transaction.finalized_ms = self._scheduler.now_ms()

        def applied(lsn: int) -> None:
            self._store.when_durable(
                lsn, lambda error: done(unavailable(error) if error is not None else None)
            )

        self._apply(
            [Put(keys.txn(transaction.key), transaction.header()), *with_ops],
            applied,
            lambda failure: done(unavailable(failure)),
        )

    def _apply(
        self, ops: Sequence[Op], applied: Callable[[int], None], failed: Callable[[StoreFailed], None]
    ) -> None:
        apply_patiently(self._store, self._scheduler, ops, applied, failed)

    def finish_abort(self, transaction: Transaction) -> None:
        """It is decided elsewhere, and durable, that this one aborts: record it and let its readers go on."""
        transaction.move(State.ABORTED)
        transaction.finalized_ms = self._scheduler.now_ms()
        self._apply_and_expose(transaction, [Put(keys.txn(transaction.key), transaction.header())])

    def _refused(
        self, transaction: Transaction, error: Exception, done: Done, refused_ops: RefusedOps
    ) -> None:
        """A participant's flush failed, so T1 does not hold and never will: the verdict is ABORTED."""

        def recorded(failure: KafkaError | None) -> None:
            done(
                failure
                or KafkaError(ErrorCode.kafka_storage_error, f"commit refused, its data is lost: {error}")
            )

        self._record_abort(transaction, refused_ops(), recorded)

    def finish_commit(self, transaction: Transaction) -> None:
        """It is decided and durable: record COMMITTED, commit its offsets, show its records."""
        transaction.move(State.COMMITTED)
        now_ms = transaction.finalized_ms = self._scheduler.now_ms()
        batch: list[Op] = [Put(keys.txn(transaction.key), transaction.header())]
        for group_id, offsets in transaction.offsets.items():
            batch += self._offsets.put_ops(group_id, offsets, now_ms)
        # Nobody waits, and a failed store changes nothing: recovery comes to the same verdict from PREPARING (T1).
        self._apply_and_expose(transaction, batch)

    def _apply_and_expose(self, transaction: Transaction, ops: Sequence[Op]) -> None:
        def applied(_: object) -> None:
            self.expose(transaction)

        self._apply(ops, applied, applied)

    def expose(self, transaction: Transaction) -> None:
        """Let readers see the outcome."""
        self._participants.decided(transaction)
        self._offsets.release(transaction)
        self._settlement.finished(transaction)
