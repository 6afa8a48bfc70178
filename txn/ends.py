"""EndTxn: what it ends, what it repeats, and who hears an error (design, section 5).

Serves both of Kafka's transaction protocols: the first, where the epoch stays, and transactions v2 (KIP-890), where
every end bumps it. Guarantees: success is answered only when durable (T2); a repeated end gets the recorded outcome
(T5); when an end is answered the next transaction may start (T6). Sans I/O but for the metadata store.
"""

from __future__ import annotations

from collections.abc import Callable

from txn.ending import Ending
from txn.group_transactions import GroupTransactions
from txn.identities import Identities, Identity, IdentityReply, Reply, refusals
from txn.metastore import Op
from txn.open_transactions import OpenTransactions
from txn.transaction import LastEnd, State, Transaction, TransactionalId
from wire.errors import ErrorCode, KafkaError


class Ends:
    """Methods with a `reply` call it exactly once, now or later."""

    def __init__(
        self,
        identities: Identities,
        open_transactions: OpenTransactions,
        ending: Ending,
        groups: GroupTransactions,
    ) -> None:
        self._ids = identities
        self._open = open_transactions
        self._ending = ending
        self._groups = groups
        self.forget_producer: Callable[[int], None] = lambda _: None
        """Called with a producer id whose sequences start anew in every partition."""

    def end(
        self, name: str, producer_id: int, epoch: int, commit: bool, reply: IdentityReply, *, bump: bool
    ) -> None:
        """EndTxn. `bump`: the answer carries the producer's next epoch (v5, KIP-890).

        Errors: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE, TRANSACTION_ABORTABLE,
        KAFKA_STORAGE_ERROR when a flush failed (the transaction is aborted then), COORDINATOR_NOT_AVAILABLE;
        COORDINATOR_LOAD_IN_PROGRESS for a commit that may have overtaken its records.
        """
        if self._open.in_line(name, lambda: self.end(name, producer_id, epoch, commit, reply, bump=bump)):
            return
        with refusals(reply):
            held = self._ids.get(name)
            if held is not None and self._is_repeat(held, producer_id, epoch, commit, bump=bump):
                self._ids.used(held)
                self._ids.answer_again(held, reply)
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
            KafkaError: INVALID_TXN_STATE or PRODUCER_FENCED where the transaction ended the other way; PRODUCER_FENCED
                where nobody can tell whether it is a repeat.
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
        # A client repeats what it asked for, so a commit comes here only after an abort that was the broker's own, by a
        # deadline or an administrator: fenced, which Kafka Streams survives (KAFKA-20785).
        code = ErrorCode.producer_fenced if commit else ErrorCode.invalid_txn_state
        raise KafkaError(code, f"the transaction of {held.name!r} ended the other way")

    def _end_nothing(self, held: TransactionalId, commit: bool, reply: IdentityReply, *, bump: bool) -> None:
        """EndTxn where no transaction is open: a record never left the client, or a crash took the transaction.

        Under transactions v2 the first such commit of an epoch is asked to come again: the Java client's sender looks
        whether records are under way before it takes the next request from its queue, so that a commit that is queued
        in between leaves first, and its records only when it is answered. Any other error would end that producer.
        """
        if commit and bump and held.early_commit_epoch != held.epoch:
            held.early_commit_epoch = held.epoch
            raise KafkaError(
                ErrorCode.coordinator_load_in_progress, f"nothing of a transaction of {held.name!r} came yet"
            )
        if commit or not (bump or self._ids.may_have_lost(held)):
            raise KafkaError(ErrorCode.invalid_txn_state, f"{held.name!r} has no transaction to end")
        held.last_end = LastEnd(held.producer_id, held.epoch, False)
        if self._ids.may_have_lost(held):
            # Batches of it are missing, so its sequences have a gap; after this abort they may go on from anywhere.
            self.forget_producer(held.producer_id)
        self._ids.ends(held, bump=bump)
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
        if commit and transaction.membership is not None and not self._groups.may_vote(transaction):
            raise KafkaError(
                ErrorCode.transaction_abortable, f"{transaction.membership} was superseded or is decided"
            )
        held.last_end = LastEnd(held.producer_id, held.epoch, commit)
        self._ids.ends(held, bump=bump)
        identity = Identity(held.producer_id, held.epoch)

        def answer(error: KafkaError | None) -> None:
            reply(error or identity)

        if commit and transaction.membership is not None:
            self._vote(held, transaction, answer)
        elif commit:
            self._commit(held, transaction, answer)
        else:
            self._open.abort(held, transaction, answer)

    def _commit(self, held: TransactionalId, transaction: Transaction, reply: Reply) -> None:
        def done(error: KafkaError | None) -> None:
            self._open.closed(held)
            reply(error)

        held.busy = True
        self._ending.commit(
            transaction, self._ids.record_ops(held), done, refused_ops=lambda: self._aborted_after_all(held)
        )

    def _aborted_after_all(self, held: TransactionalId) -> list[Op]:
        """The verdict went against the client's wish: what is recorded of the id must say so too."""
        held.commit_refused()
        return self._ids.record_ops(held)

    def _vote(self, held: TransactionalId, transaction: Transaction, reply: Reply) -> None:
        """A group's member: its EndTxn(commit) is a durable vote; the group decides (T10)."""

        def done(error: KafkaError | None) -> None:
            if transaction.state is not State.PREPARED:
                self._groups.forget_member(transaction)
            self._open.closed(held)
            reply(error)

        held.busy = True
        self._ending.vote(
            transaction, self._ids.record_ops(held), done, refused_ops=lambda: self._aborted_after_all(held)
        )
