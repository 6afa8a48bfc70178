"""Who holds each transactional id: registration, fencing, and the line of requests that wait for a durable step.

InitProducerId lives here (KIP-98, KIP-360). Sans I/O but for the metadata store handed in.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from storage.clock import Scheduler
from txn import keys
from txn.id_blocks import IdBlocks
from txn.metastore import MetaStore, Op, Put, StoreFailed
from txn.patience import apply_patiently
from txn.transaction import Transaction, TransactionalId
from wire.errors import ErrorCode, KafkaError

MAX_NAME_BYTES = 4_000
"""The longest transactional id: it is part of a key in the metadata store."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What InitProducerId and EndTxn answer: the producer id and epoch to go on with."""

    producer_id: int
    epoch: int
    ongoing: tuple[int, int] | None = None
    """(producer id, epoch) of the transaction that InitProducerId kept (KIP-939): the next EndTxn ends it."""


@dataclass(frozen=True, slots=True)
class InitRequest:
    """InitProducerId. Without a `name`: an idempotent producer. -1, -1: the caller names no former identity."""

    name: str | None
    timeout_ms: int
    producer_id: int = -1
    epoch: int = -1
    two_phase: bool = False
    keep_prepared: bool = False


IdentityReply = Callable[[Identity | KafkaError], None]
Reply = Callable[[KafkaError | None], None]
Abort = Callable[[TransactionalId, Transaction, Reply], None]


class Identities:
    """All transactional ids of this node.

    `term` and `fence_term` count node starts: an id whose record is older than `fence_term` may have lost an open
    transaction in a power cut; see `holder`. `untraced_fence_term` is the same for those that `txn.untraced` speaks of;
    None where there are none.
    """

    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        *,
        term: int,
        fence_term: int,
        untraced_fence_term: int | None,
        max_ids: int,
        max_timeout_ms: int,
        two_phase_enabled: bool,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._term = term
        self._fence_term = fence_term
        self._untraced_fence_term = untraced_fence_term
        self._max_ids = max_ids
        self.max_timeout_ms = max_timeout_ms
        self._two_phase_enabled = two_phase_enabled
        self._ids: OrderedDict[str, TransactionalId] = OrderedDict()
        """The one whose last use is longest ago comes first."""
        self._producer_ids = IdBlocks(store, keys.PRODUCER_IDS)
        self.untraced: OrderedDict[str, TransactionalId] = OrderedDict()
        """The one whose last end is longest ago comes first."""

    def __iter__(self) -> Iterator[TransactionalId]:
        return iter(self._ids.values())

    def restore(self, ids: Iterable[TransactionalId]) -> None:
        now_ms = self._scheduler.now_ms()
        found = list(ids)
        for held in found:
            held.used_ms = held.used_ms or now_ms
        found.sort(key=lambda held: held.used_ms)
        self._ids.update((held.name, held) for held in found)
        self.untraced.update((held.name, held) for held in found if held.untraced)

    def get(self, name: str) -> TransactionalId | None:
        return self._ids.get(name)

    # -- last uses

    def used(self, held: TransactionalId) -> None:
        """It is in use now. In memory alone: what ends a transaction, or renews the id, writes its record anyway."""
        held.used_ms = self._scheduler.now_ms()
        self._ids.move_to_end(held.name)

    def unused_since(self, time_ms: int, limit: int) -> tuple[int, list[TransactionalId]]:
        """(how many were looked at, those that were not used after `time_ms`); looks at no more than `limit`.

        To have a transaction open, or a durable step under way, is to be in use.
        """
        idle = []
        looked = 0
        for held in list(islice(self._ids.values(), limit)):
            if held.used_ms > time_ms:
                break
            looked += 1
            if held.open is not None or held.busy:
                self.used(held)
            else:
                idle.append(held)
        return looked, idle

    def forget(self, held: TransactionalId) -> None:
        """It is as if it had never been: the caller deletes its record."""
        del self._ids[held.name]

    # -- holders

    def may_have_lost(self, held: TransactionalId) -> bool:
        """Whether a power cut since this id's last durable step may have taken a transaction without a trace.

        Not with two-phase commit: what such a producer was answered is on the disk.
        """
        fence_term = self._fence_term
        if held.untraced and self._untraced_fence_term is not None:
            fence_term = self._untraced_fence_term
        return held.lost or (held.term < fence_term and not held.two_phase)

    def holder(self, name: str, producer_id: int, epoch: int, *, aborting: bool = False) -> TransactionalId:
        """The id's state if the caller is its present holder.

        After a start on another kernel boot, unflushed transactions may be gone without a trace, so a holder from
        before can only abort or begin anew: the first part of its transaction could be missing (design D2).

        Raises:
            KafkaError: INVALID_REQUEST without a name, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
                TRANSACTION_ABORTABLE.
        """
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "a transactional id has at least one byte")
        held = self._ids.get(name)
        if held is None or (held.producer_id != producer_id and not held.was(producer_id)):
            raise KafkaError(
                ErrorCode.invalid_producer_id_mapping, f"{name!r} does not belong to producer {producer_id}"
            )
        if (held.producer_id, held.epoch) != (producer_id, epoch):
            raise KafkaError(ErrorCode.producer_fenced, f"{name!r} has a newer producer")
        if not aborting and self.may_have_lost(held):
            held.note_lost()
            raise KafkaError(
                ErrorCode.transaction_abortable,
                f"the machine restarted; a transaction of {name!r} that was open then can only abort",
            )
        return held

    # -- steps that must be durable before they are answered

    def bump(self, held: TransactionalId, by: int = 1, *, previous: tuple[int, int] | None = None) -> None:
        """Move to the next epoch (or producer id, where epochs run out); the caller stores the record.

        Raises:
            StoreFailed: a new producer id was needed and the store takes no more records.
        """
        held.producer_id, held.epoch = held.next_epoch(by, lambda: self._producer_ids.allocate()[0])
        held.previous = previous
        self.touch(held)

    def touch(self, held: TransactionalId) -> None:
        """Its record is being written in this term: nothing from before can be missing any more."""
        held.term = self._term
        held.lost = False
        self.used(held)

    def ends(self, held: TransactionalId, *, bump: bool) -> None:
        """Its transaction ends, by a request of transactions v2 if `bump`: the record being written says so."""
        self.touch(held)
        held.untraced = bump and self._untraced_fence_term is not None and not held.two_phase
        if held.untraced:
            self.untraced[held.name] = held
            self.untraced.move_to_end(held.name)
        if bump:
            self.bump(held)

    @staticmethod
    def record_ops(held: TransactionalId) -> list[Op]:
        return [Put(keys.txid(held.name), held.record())]

    def store_and_answer(
        self, held: TransactionalId, reply: IdentityReply, ongoing: tuple[int, int] | None = None
    ) -> None:
        """Write the id's record; answer its identity when that is durable. Others wait in line meanwhile."""
        identity = Identity(held.producer_id, held.epoch, ongoing)
        held.busy = True

        def durable(error: Exception | None) -> None:
            self.release(held)
            reply(unavailable(error) if error else identity)

        apply_patiently(
            self._store,
            self._scheduler,
            self.record_ops(held),
            lambda lsn: self._store.when_durable(lsn, durable),
            durable,
        )

    def answer_again(self, held: TransactionalId, reply: IdentityReply) -> None:
        """A repeat hears what is recorded, when that is durable: the first call may have heard that it never is."""
        identity = Identity(held.producer_id, held.epoch)
        self._store.when_record_durable(
            keys.txid(held.name), lambda error: reply(unavailable(error) if error else identity)
        )

    @staticmethod
    def release(held: TransactionalId) -> None:
        """The durable step is over: whoever waited goes on. Who finds the id busy again gets back in line."""
        held.busy = False
        waiting, held.waiting = held.waiting, []
        for call in waiting:
            call()

    # -- InitProducerId

    def init_producer(self, request: InitRequest, abort: Abort, reply: IdentityReply) -> None:
        """A producer id and epoch (InitProducerId; KIP-98, KIP-360, KIP-939).

        With a transactional id: fences its former holder and aborts what that left open, within the call, or keeps it
        for the next EndTxn where that is asked for. A caller that names its (producer id, epoch) must be the holder,
        or repeat a call whose answer was lost.

        Errors: INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED where two-phase commit is off, POLICY_VIOLATION at the limit of
        transactional ids, COORDINATOR_NOT_AVAILABLE when the store has failed.
        """
        with refusals(reply):
            if (request.producer_id == -1) is not (request.epoch == -1):
                raise KafkaError(ErrorCode.invalid_request, "an identity is a producer id and an epoch")
            if request.name is None:
                self._allocate_idempotent(reply)
                return
            self._check(request)
            held = self._ids.get(request.name)
            if held is None:
                self._first(request.name, request, reply)
                return
            if held.busy:
                held.waiting.append(lambda: self.init_producer(request, abort, reply))
                return
            named = (request.producer_id, request.epoch) if request.producer_id != -1 else None
            if named is not None and named != (held.producer_id, held.epoch):
                if named != held.previous:
                    raise KafkaError(ErrorCode.producer_fenced, f"{request.name!r} has a newer producer")
                self.used(held)
                self.answer_again(held, reply)
                return
            self._again(held, request, named, abort, reply)

    def _check(self, request: InitRequest) -> None:
        if not 0 < len((request.name or "").encode()) <= MAX_NAME_BYTES:
            raise KafkaError(ErrorCode.invalid_request, f"a transactional id has 1 to {MAX_NAME_BYTES} bytes")
        if request.two_phase and not self._two_phase_enabled:
            raise KafkaError(
                ErrorCode.transactional_id_authorization_failed,
                "two-phase commit is not enabled on this broker",
            )
        if request.keep_prepared and not request.two_phase:
            raise KafkaError(
                ErrorCode.invalid_request, "a prepared transaction is kept with two-phase commit only"
            )
        if not request.two_phase and not 0 < request.timeout_ms <= self.max_timeout_ms:
            raise KafkaError(
                ErrorCode.invalid_transaction_timeout,
                f"transaction timeout {request.timeout_ms} ms is not within 1 and {self.max_timeout_ms} ms",
            )

    def _allocate_idempotent(self, reply: IdentityReply) -> None:
        producer_id, lsn = self._producer_ids.allocate()
        self._store.when_durable(
            lsn, lambda error: reply(unavailable(error) if error else Identity(producer_id, 0))
        )

    def _first(self, name: str, request: InitRequest, reply: IdentityReply) -> None:
        if request.producer_id != -1:
            # It may have expired after it was fenced (`txn.id_expiry`); librdkafka repeats on any other code for ever.
            raise KafkaError(ErrorCode.producer_fenced, f"{name!r} is not known here any more")
        if len(self._ids) >= self._max_ids:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"this broker holds its limit of {self._max_ids} transactional ids",
            )
        held = TransactionalId(name, self._producer_ids.allocate()[0], 0, request.timeout_ms, self._term)
        held.two_phase = request.two_phase
        self._ids[name] = held
        self.used(held)
        self.store_and_answer(held, reply)

    def _again(
        self,
        held: TransactionalId,
        request: InitRequest,
        named: tuple[int, int] | None,
        abort: Abort,
        reply: IdentityReply,
    ) -> None:
        transaction = held.open
        kept = transaction if request.keep_prepared and held.two_phase and not held.lost else None
        held.timeout_ms = request.timeout_ms
        held.two_phase = request.two_phase
        held.untraced = False
        # A fenced producer's EndTxn is no repeat: it must not be answered with the identity of its successor.
        held.last_end = None
        # With a transaction to abort the epoch moves by two, as in Kafka: one fences, one is the new producer's. A
        # holder that names itself fences nobody else, and takes the first.
        fences = transaction is not None and kept is None and named is None
        self.bump(held, 2 if fences else 1, previous=named)
        if transaction is None or kept is not None:
            ongoing = (kept.producer_id, kept.epoch) if kept is not None else None
            self.store_and_answer(held, reply, ongoing)
            return
        identity = Identity(held.producer_id, held.epoch)
        abort(held, transaction, lambda error: reply(error or identity))


@contextlib.contextmanager
def refusals(reply: Callable[[KafkaError], None]) -> Iterator[None]:
    """What is raised inside to refuse a request becomes its answer."""
    try:
        yield
    except KafkaError as refused:
        reply(refused)
    except StoreFailed as failure:
        reply(unavailable(failure))


def unavailable(error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.coordinator_not_available, f"the metadata store has failed: {error}")
