"""What a partition remembers of its idempotent producers, and what it therefore accepts.

Guarantees: a batch is appended at most once as long as it is among its producer's last five; sequences of one
epoch have no gap; an older epoch never writes again. Bounded: the states of all partitions of a range share
one budget, producers idle for long make room, and at the hard limit a new producer is refused. A producer whose
transaction is open is never forgotten, or a repeat of its first batch would be taken for a new one.

Source: Kafka's ProducerStateManager and ProducerAppendInfo (KIP-98, KIP-360); KIP-890 for transactions v2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from wire.batch import BatchHeader
from wire.errors import ErrorCode, KafkaError

REMEMBERED_BATCHES: Final = 5
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences run from 0 to 2^31 - 1 and then start again at 0."""
RECLAIM_PAUSE_MS: Final = 1_000
RECLAIM_TO: Final = 0.9


class Duplicate(NamedTuple):
    """The batch is already in the log, here."""

    base_offset: int
    last_offset: int


class SequenceGap(KafkaError):
    """What comes before the batch is not here. It may be on its way, where clients have just turned to this node."""


class SequenceOverlap(KafkaError):
    """The batch comes too late, and is none that is here: its sequences belong to others, the last of which is at
    `last_base_offset`."""

    def __init__(self, code: ErrorCode, message: str, last_base_offset: int) -> None:
        super().__init__(code, message)
        self.last_base_offset = last_base_offset


class ProducerState:
    """One producer in one partition. `batches`: (base sequence, last sequence, base offset, last offset)."""

    __slots__ = ("active_ms", "batches", "epoch")

    def __init__(self, epoch: int, batches: list[tuple[int, int, int, int]], active_ms: int) -> None:
        self.epoch = epoch
        self.batches = batches
        self.active_ms = active_ms


class ProducerBudget:
    """The number of producer states that the partitions of a range may hold together."""

    __slots__ = ("count", "idle_ms", "limit", "members", "next_reclaim_ms")

    def __init__(self, limit: int, idle_ms: int) -> None:
        self.limit = limit
        self.idle_ms = idle_ms
        self.count = 0
        self.members: list[ProducerStates] = []
        self.next_reclaim_ms = 0

    def make_room(self, now_ms: int) -> None:
        """At the limit, forget producers that have been idle for long, the oldest first; at most once a
        second, since it looks at all. Raises KafkaError(THROTTLING_QUOTA_EXCEEDED), which clients retry,
        without room."""
        if now_ms >= self.next_reclaim_ms:
            self.next_reclaim_ms = now_ms + RECLAIM_PAUSE_MS
            latest = now_ms - self.idle_ms
            idle = sorted(
                (member.states[producer_id].active_ms, producer_id, number)
                for number, member in enumerate(self.members)
                for producer_id in member.idle_since(latest)
            )
            surplus = self.count - int(self.limit * RECLAIM_TO)
            for _, producer_id, number in idle[: max(1, surplus)]:
                self.members[number].forget(producer_id)
        if self.count >= self.limit:
            raise KafkaError(
                ErrorCode.throttling_quota_exceeded,
                f"the range remembers {self.limit} active producers already, its limit",
            )


class ProducerStates:
    """The producers of one partition. Pure: times are handed in, milliseconds of the wall clock."""

    __slots__ = ("budget", "open_producers", "states")

    def __init__(self, budget: ProducerBudget) -> None:
        self.states: dict[int, ProducerState] = {}
        self.budget = budget
        self.open_producers: Callable[[], Collection[int]] = tuple
        """Gives the producer ids with a transaction open in this partition; whoever knows transactions sets it."""
        budget.members.append(self)

    def __len__(self) -> int:
        return len(self.states)

    def check(
        self, header: BatchHeader, now_ms: int, *, require_known_producer: bool = False
    ) -> Duplicate | None:
        """Whether the batch may be appended: None when it may, its place when it has been already.

        With `require_known_producer` a producer without state must start at sequence 0 (transactions v2);
        else it may start anywhere, since its state may have expired. Raises KafkaError:
        INVALID_PRODUCER_EPOCH for an epoch below the last seen, OUT_OF_ORDER_SEQUENCE_NUMBER for a gap
        (`SequenceGap`) or an overlap that is no known duplicate, THROTTLING_QUOTA_EXCEEDED at the limit of producers.
        """
        state = self.states.get(header.producer_id)
        sequence = header.base_sequence
        if state is None:
            if require_known_producer and sequence != 0:
                raise _out_of_order(header, "an unknown producer must start at sequence 0")
            if self.budget.count >= self.budget.limit:
                self.budget.make_room(now_ms)
            return None
        if header.producer_epoch == state.epoch:
            last_sequence = state.batches[-1][1]
            ahead = (sequence - last_sequence - 1) & SEQUENCE_MASK
            if not ahead:
                return None
            end = header.last_sequence
            for first, last, base_offset, last_offset in state.batches:
                if first == sequence and last == end:
                    return Duplicate(base_offset, last_offset)
            error = _out_of_order(header, f"the last one seen is {last_sequence}")
            if ahead > SEQUENCE_MASK // 2:
                raise SequenceOverlap(error.code, error.message or "", state.batches[-1][2])
            raise error
        if header.producer_epoch < state.epoch:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {state.epoch}, this batch {header.producer_epoch}",
            )
        if sequence != 0:
            raise _out_of_order(header, "a new producer epoch must start at sequence 0")
        return None

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Remember a batch that was appended at `base_offset`."""
        batch = (
            header.base_sequence,
            header.last_sequence,
            base_offset,
            base_offset + header.last_offset_delta,
        )
        state = self.states.get(header.producer_id)
        if state is None:
            self.states[header.producer_id] = ProducerState(header.producer_epoch, [batch], now_ms)
            self.budget.count += 1
            return
        state.active_ms = now_ms
        if header.producer_epoch != state.epoch:
            state.epoch = header.producer_epoch
            state.batches = [batch]
            return
        batches = state.batches
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        batches.append(batch)

    def forget(self, producer_id: int) -> None:
        if self.states.pop(producer_id, None) is None:
            return
        self.budget.count -= 1

    def clear(self) -> None:
        self.budget.count -= len(self.states)
        self.states.clear()

    def expire(self, now_ms: int, ttl_ms: int) -> int:
        """Forget producers that wrote nothing for `ttl_ms`; how many."""
        expired = self.idle_since(now_ms - ttl_ms)
        for producer_id in expired:
            self.forget(producer_id)
        return len(expired)

    def idle_since(self, time_ms: int) -> list[int]:
        """The producers that wrote nothing after `time_ms`, less those whose transaction is open."""
        idle = [producer_id for producer_id, state in self.states.items() if state.active_ms <= time_ms]
        if not idle:
            return idle
        living = set(self.open_producers())
        return [producer_id for producer_id in idle if producer_id not in living]

    def snapshot(self) -> list[Any]:
        """Plain data for msgpack, from which `restore` makes the same states again."""
        return [
            [producer_id, state.epoch, state.active_ms, [list(batch) for batch in state.batches]]
            for producer_id, state in self.states.items()
        ]

    def restore(self, snapshot: Iterable[Any]) -> None:
        """Replace everything by a snapshot's content, limit or not: what was accepted stays known."""
        self.clear()
        for producer_id, epoch, active_ms, batches in snapshot:
            self.states[producer_id] = ProducerState(
                epoch, [(first, last, base, end) for first, last, base, end in batches], active_ms
            )
        self.budget.count += len(self.states)


class Replaced(NamedTuple):
    """A producer as it was before a batch: `epoch` -1 where it was not known."""

    producer_id: int
    epoch: int
    batches: tuple[tuple[int, int, int, int], ...]
    active_ms: int


class RevocableProducerStates(ProducerStates):
    """Remembers what each update replaced, so that a truncation can put it back; the oldest are forgotten as their
    batches are committed."""

    __slots__ = ("replaced",)

    def __init__(self, budget: ProducerBudget) -> None:
        super().__init__(budget)
        self.replaced: deque[Replaced] = deque()

    def update(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        state = self.states.get(header.producer_id)
        if state is None:
            self.replaced.append(Replaced(header.producer_id, -1, (), 0))
        else:
            before = Replaced(header.producer_id, state.epoch, tuple(state.batches), state.active_ms)
            self.replaced.append(before)
        super().update(header, base_offset, now_ms)

    def committed(self) -> None:
        """The oldest update stands."""
        self.replaced.popleft()

    def revoke(self) -> None:
        """Undo the latest update."""
        before = self.replaced.pop()
        self.forget(before.producer_id)
        if before.epoch >= 0:
            state = ProducerState(before.epoch, list(before.batches), before.active_ms)
            self.states[before.producer_id] = state
            self.budget.count += 1


def _out_of_order(header: BatchHeader, reason: str) -> SequenceGap:
    return SequenceGap(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {header.base_sequence}: {reason}",
    )
