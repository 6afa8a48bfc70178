"""Group transactions: many producers' transactions that end as one (design T10).

A group is one batch of one sink: (sink, batch). Members enlist their own transactions in an *attempt* at it; a member's
EndTxn(commit) is a durable vote and shows nothing. ONE conditional write on the group's record names the winners: they
are committed in that instant, every other member of every attempt is aborted and fenced, and the outcome stays under
`/sink/<sink>`, so that a replay, a late abort or a second committer hears it and changes nothing.

    OPEN -> COMMITTED        OPEN -> ABORTED        (both ends terminal; an aborted attempt leaves its group OPEN)

A newer attempt supersedes the present one, whose members are aborted and fenced; a superseded attempt never comes back.
Members hang on no connection: a deadline, which can be extended, aborts a group that nobody commits. Sans I/O; the
metadata store makes it durable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from storage.clock import Scheduler, Timer
from txn import keys
from txn.ending import Ending
from txn.group_losers import GroupLosers
from txn.group_state import GroupLimits, GroupOutcome, GroupState, GroupTransaction, OutcomeReply, Winner
from txn.identities import Identities, Reply, refusals, unavailable
from txn.metastore import Delete, MetaStore, Op, Put, StoreFailed
from txn.offsets import GroupOffsets
from txn.patience import AGAIN_MS
from txn.transaction import (
    Membership,
    PendingOffset,
    State,
    TopicPartition,
    Transaction,
    TransactionalId,
)
from wire.errors import ErrorCode, KafkaError

MAX_TIMER_MS = 60_000


class GroupTransactions:
    """All group transactions of this node. Methods with a `reply` call it exactly once, now or later."""

    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        identities: Identities,
        ending: Ending,
        *,
        limits: GroupLimits,
        begin: Callable[[TransactionalId], Transaction],
        abort_open: Callable[[TransactionalId, Transaction, Reply], None],
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._ids = identities
        self._ending = ending
        self._limits = limits
        self._begin = begin
        self._losers = GroupLosers(identities, ending, abort_open, freed=self._free)
        self._groups: dict[tuple[str, int], GroupTransaction] = {}
        self._timer: Timer | None = None

    def restore(self, groups: Iterable[GroupTransaction]) -> None:
        """Take over the groups, with their members, that recovery found undecided."""
        self._groups.update(((group.sink, group.batch), group) for group in groups)
        self._arm_timer()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- looking

    def last_done(self, sink: str) -> GroupOutcome | None:
        """The outcome of the highest batch of a sink that was committed."""
        record = self._store.get(keys.sink(sink))
        if record is None:
            return None
        value = record.value
        return GroupOutcome(value["batch"], value["attempt"], value["members"], True)

    def forget_member(self, transaction: Transaction) -> None:
        """A member was aborted by itself: by its producer, a newer one, or its own deadline."""
        if transaction.membership is not None:
            group = self._groups.get(transaction.membership[:2])
            if group is not None:
                group.members.pop(transaction.key, None)

    def may_vote(self, transaction: Transaction) -> bool:
        """Whether the member's attempt is still the one that can win."""
        assert transaction.membership is not None
        group = self._groups.get(transaction.membership[:2])
        return (
            group is not None
            and group.state is GroupState.OPEN
            and group.attempt == transaction.membership.attempt
            and transaction.key in group.members
        )

    def undecided(self) -> set[str]:
        """The transactional ids of all members of groups that have no outcome yet."""
        members = (group.members.values() for group in self._groups.values())
        return {one.transactional_id for of_group in members for one in of_group}

    def undecided_sinks(self) -> set[str]:
        """The sinks with a batch that has no outcome yet."""
        return {sink for sink, _ in self._groups}

    def get(self, sink: str, batch: int) -> GroupTransaction | None:
        return self._groups.get((sink, batch))

    def __iter__(self) -> Iterator[GroupTransaction]:
        return iter(self._groups.values())

    # -- members

    def enlist(
        self,
        sink: str,
        batch: int,
        attempt: str,
        generation: int,
        timeout_ms: int,
        member: Winner,
        reply: OutcomeReply,
    ) -> None:
        """Make the member's transaction, begun here if need be, part of this attempt.

        Answers the recorded outcome where the batch is done already: the member need not write then. An attempt of a
        higher generation, or another one of the same generation that was not superseded before, supersedes the present.

        Errors: those of a holder check, PRODUCER_FENCED for a superseded attempt, INVALID_TXN_STATE,
        INVALID_TRANSACTION_TIMEOUT, POLICY_VIOLATION at a limit.
        """
        if self._is_done(sink, batch, reply):
            return
        group = self._groups.get((sink, batch))
        again = partial(self.enlist, sink, batch, attempt, generation, timeout_ms, member, reply)
        if group is not None and group.busy:
            group.waiting.append(again)
            return
        with refusals(reply):
            held = self._ids.holder(*member)
            if held.busy:
                held.waiting.append(again)
                return
            self._check_time(timeout_ms)
            self._store.check()
            if group is not None and group.attempt != attempt:
                group.check_supersedes(attempt, generation)
                self._supersede(group, attempt, generation, timeout_ms, again)
                return
            if group is None:
                group = self._open(sink, batch, attempt, generation, timeout_ms)
            self._join(group, held)
            outcome = GroupOutcome(batch, attempt, len(group.members), False)
            self._store.when_written(lambda error: reply(unavailable(error) if error else outcome))

    def _is_done(self, sink: str, batch: int, reply: OutcomeReply) -> bool:
        """Whether the batch is done; its recorded outcome is answered then, when it is durable."""
        last = self.last_done(sink)
        if last is None or batch > last.batch:
            return False
        self._answer_recorded(keys.sink(sink), last, reply)
        return True

    def _answer_recorded(self, key: str, outcome: GroupOutcome, reply: OutcomeReply) -> None:
        self._store.when_record_durable(key, lambda error: reply(unavailable(error) if error else outcome))

    def _check_time(self, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= self._limits.timeout_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout, f"a group's time is 1 to {self._limits.timeout_ms} ms"
            )

    def _open(
        self, sink: str, batch: int, attempt: str, generation: int, timeout_ms: int
    ) -> GroupTransaction:
        if len(self._groups) >= self._limits.groups:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"this broker has its limit of {self._limits.groups} group transactions",
            )
        deadline_ms = self._scheduler.now_ms() + timeout_ms
        group = GroupTransaction(sink, batch, attempt, generation, deadline_ms)
        self._put(group)
        self._groups[sink, batch] = group
        self._arm_timer()
        return group

    def _join(self, group: GroupTransaction, held: TransactionalId) -> None:
        transaction = held.open
        wanted = Membership(group.sink, group.batch, group.attempt)
        if transaction is None:
            if (held.producer_id, held.epoch) in {(key[0], key[1]) for key in group.members}:
                # The first protocol's epoch stands still: a second vote could not be told from the first.
                raise KafkaError(
                    ErrorCode.invalid_txn_state,
                    f"{held.name!r} has voted in attempt {group.attempt!r} already",
                )
            transaction = self._begin(held)
        elif transaction.membership not in (None, wanted):
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"the transaction of {held.name!r} is enlisted elsewhere: {transaction.membership}",
            )
        if len(group.members) >= self._limits.members and transaction.key not in group.members:
            raise KafkaError(
                ErrorCode.policy_violation, f"a group transaction has at most {self._limits.members} members"
            )
        transaction.membership = wanted
        transaction.deadline_ms = max(transaction.deadline_ms, group.deadline_ms)
        group.members[transaction.key] = transaction
        self._store.apply([Put(keys.txn(transaction.key), transaction.header())])

    def _supersede(
        self,
        group: GroupTransaction,
        attempt: str,
        generation: int,
        timeout_ms: int,
        then: Callable[[], None],
    ) -> None:
        """The newer attempt takes the group over; `then` when the older one's members are aborted and fenced."""
        losers = list(group.members.values())
        group.superseded.add(group.attempt)
        group.attempt, group.generation = attempt, generation
        group.deadline_ms = max(group.deadline_ms, self._scheduler.now_ms() + timeout_ms)
        self._put(group)
        group.waiting.append(then)
        self._losers.discard(group, losers)

    # -- the end

    def commit(
        self,
        sink: str,
        batch: int,
        attempt: str,
        winners: Sequence[Winner],
        offsets: dict[str, dict[TopicPartition, PendingOffset]],
        reply: OutcomeReply,
    ) -> None:
        """Commit exactly these members, with offsets of consumer groups, in one conditional write.

        Errors: PRODUCER_FENCED for a superseded attempt, INVALID_TXN_STATE where a winner has not voted or there is no
        such group, INVALID_REQUEST where one is named twice.
        """
        if self._is_done(sink, batch, reply):
            return
        group = self._groups.get((sink, batch))
        if group is not None and group.busy:
            group.waiting.append(partial(self.commit, sink, batch, attempt, winners, offsets, reply))
            return
        with refusals(reply):
            if group is None and not winners:
                group = self._open(sink, batch, attempt, 0, self._limits.timeout_ms)
            elif group is not None and not winners and not group.attempt and attempt not in group.superseded:
                # Nobody enlists for a batch without records, so nothing else names the attempt behind an aborted one.
                group.attempt = attempt
            group = self._current(group, sink, batch, attempt)
            chosen = group.voted(winners)
            self._store.check()
            group.winners = list(winners)
            group.move(GroupState.COMMITTED)
            lsn = self._apply_commit(group, len(chosen), offsets)
            self._finish_commit(group, chosen, lsn, reply)

    def _finish_commit(
        self, group: GroupTransaction, chosen: Sequence[Transaction], lsn: int, reply: OutcomeReply
    ) -> None:
        """When the one write is durable: show the winners, answer, discard the others."""
        outcome = GroupOutcome(group.batch, group.attempt, len(chosen), False)

        def durable(error: Exception | None) -> None:
            if error is not None:
                reply(unavailable(error))
                group.go_on()
                return
            # All in one turn of the loop: a reader sees none of the batch, or all of it.
            for transaction in chosen:
                self._ending.finish_commit(transaction)
                del group.members[transaction.key]
            reply(outcome)
            self._losers.discard(group, list(group.members.values()))

        group.busy = True
        self._store.when_durable(lsn, durable)

    @staticmethod
    def _current(group: GroupTransaction | None, sink: str, batch: int, attempt: str) -> GroupTransaction:
        if group is None:
            raise KafkaError(ErrorCode.invalid_txn_state, f"{sink!r} has no open batch {batch}")
        if group.attempt != attempt:
            raise KafkaError(
                ErrorCode.producer_fenced,
                f"attempt {attempt!r} at batch {batch} of {sink!r} was superseded by {group.attempt!r}",
            )
        return group

    def _apply_commit(
        self, group: GroupTransaction, members: int, offsets: dict[str, dict[TopicPartition, PendingOffset]]
    ) -> int:
        now_ms = self._scheduler.now_ms()
        done = {"batch": group.batch, "attempt": group.attempt, "members": members, "done_ms": now_ms}
        batch: list[Op] = [Put(keys.sink(group.sink), done)]
        for group_id, of_group in offsets.items():
            batch += GroupOffsets.put_ops(group_id, of_group, now_ms)
        return self._put(group, batch)

    def abort(self, sink: str, batch: int, attempt: str, reply: OutcomeReply) -> None:
        """Abort this attempt's members; another attempt may follow. Of a done batch: the outcome, nothing changed."""
        if self._is_done(sink, batch, reply):
            return
        group = self._groups.get((sink, batch))
        if group is None:
            reply(GroupOutcome(batch, attempt, 0, True))
            return
        if group.busy:
            group.waiting.append(partial(self.abort, sink, batch, attempt, reply))
            return
        if attempt in group.superseded:
            self._answer_recorded(group.key, GroupOutcome(batch, attempt, 0, True), reply)
            return
        with refusals(reply):
            group = self._current(group, sink, batch, attempt)
            self._store.check()
            losers = list(group.members.values())
            group.superseded.add(attempt)
            group.attempt = ""
            self._put(group)
            outcome = GroupOutcome(batch, attempt, 0, False)
            group.waiting.append(partial(self._answer_recorded, group.key, outcome, reply))
            self._losers.discard(group, losers)

    def extend(self, sink: str, batch: int, attempt: str, timeout_ms: int, reply: OutcomeReply) -> None:
        """Give an undecided attempt, and its members, this much time from now on."""
        if self._is_done(sink, batch, reply):
            return
        with refusals(reply):
            group = self._current(self._groups.get((sink, batch)), sink, batch, attempt)
            self._check_time(timeout_ms)
            self._store.check()
            group.deadline_ms = self._scheduler.now_ms() + timeout_ms
            changes: list[Op] = []
            for transaction in group.members.values():
                if transaction.state is State.OPEN:
                    transaction.deadline_ms = max(transaction.deadline_ms, group.deadline_ms)
                    changes.append(Put(keys.txn(transaction.key), transaction.header()))
            lsn = self._put(group, changes)
            outcome = GroupOutcome(batch, attempt, len(group.members), False)
            self._store.when_durable(lsn, lambda error: reply(unavailable(error) if error else outcome))

    # -- the end of the end

    def _free(self, group: GroupTransaction) -> None:
        """Its losers are gone: whoever waits for the group goes on."""
        if group.state is not GroupState.OPEN:
            self._groups.pop((group.sink, group.batch), None)
            # Every member's own header says its outcome by now, and stands before this in the store's log.
            with contextlib.suppress(StoreFailed):
                self._store.apply([Delete(group.key)])
        group.go_on()

    # -- deadlines

    def expire(self) -> None:
        """Abort the groups that nobody committed in time. The record goes with them; the sink's outcome stays."""
        self._timer = None
        if not self._store.takes():
            self._timer = self._scheduler.call_later(AGAIN_MS, self.expire)
            return
        now_ms = self._scheduler.now_ms()
        for group in [group for group in self._groups.values() if group.deadline_ms <= now_ms]:
            if group.busy:
                continue
            losers = list(group.members.values())
            group.move(GroupState.ABORTED)
            try:
                self._put(group)
            except StoreFailed:
                return  # nothing can be recorded any more; the store has said so
            self._losers.discard(group, losers)
        self._arm_timer()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._groups:
            first = min(group.deadline_ms for group in self._groups.values())
            delay_ms = min(max(first - self._scheduler.now_ms(), 0) + 1, MAX_TIMER_MS)
            self._timer = self._scheduler.call_later(delay_ms, self.expire)

    # -- the record

    def _put(self, group: GroupTransaction, more: Sequence[Op] = ()) -> int:
        """One conditional write of the group's record; the position that must be durable."""
        lsn = self._store.apply([Put(group.key, group.record(), group.version), *more]).lsn
        record = self._store.get(group.key)
        assert record is not None
        group.version = record.version
        return lsn
