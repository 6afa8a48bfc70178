"""One partition as readers and transactions see it: the log below, the outcomes above.

Joins a range log's partition with its `PartitionTransactions`, gives the last stable offset, and answers a fetch
of either isolation level without markers (kafka-clients: section 1 of docs/design.md says how).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from typing_extensions import Buffer

from storage.producers import ProducerStates
from storage.sequencing import SequencedRange
from txn.buffer import PartitionTransactions
from wire.batch import control_batch

Waiter = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Slice:
    """The answer to one partition of a fetch. Offsets; `records` is empty, never None.

    `next_offset` is where the next fetch of this partition begins, -1 where nothing was found.
    """

    records: list[Buffer]
    size_bytes: int
    next_offset: int = -1


_NOTHING = Slice([], 0)


class Partition:
    """A partition's log and its transactions. Offsets throughout; `topic` is the topic's name."""

    __slots__ = ("_state", "_waiters", "index", "log", "topic", "topic_id", "transactions")

    def __init__(self, topic: str, topic_id: UUID, index: int, log: SequencedRange) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.transactions = PartitionTransactions()
        self._state = log.partition(index)
        self._state.producers.open_producers = self.transactions.open_producers
        self._waiters: dict[Waiter, None] = {}

    def serve_from(self, log: SequencedRange) -> None:
        """The same partition in another log: a replica was opened, or fetched anew. The caller wakes who waits."""
        self.log = log
        self._state = log.partition(self.index)
        self._state.producers.open_producers = self.transactions.open_producers

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def log_start_offset(self) -> int:
        return self._state.log_start_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be given out; not all below it need be durable yet."""
        return self._state.end_offset

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """min(first offset of the open transactions, high watermark): design D4. Never below the log start."""
        first_open = self.transactions.first_open_offset
        state = self._state
        if first_open is None or first_open >= state.high_watermark:
            return state.high_watermark
        return max(first_open, state.log_start_offset)

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, first offset written under it), in order; of epochs that wrote nothing, nothing."""
        return self._state.epochs

    def epoch_at(self, offset: int) -> int:
        """The leader epoch under which an offset was written; the present one for what is yet to be written."""
        if offset >= self.end_offset:
            return self.log.term
        return max((term for term, first in self._state.epochs if first <= offset), default=self.log.term)

    @property
    def producers(self) -> ProducerStates:
        """The idempotent producers that are remembered here."""
        return self._state.producers

    @property
    def size_bytes(self) -> int:
        """What its entries take in the segments that are there."""
        return self._state.size_bytes

    def readable_end(self, *, read_committed: bool) -> int:
        return self.last_stable_offset if read_committed else self._state.high_watermark

    def fetch(self, offset: int, *, read_committed: bool, max_bytes: int, at_least_one: bool) -> Slice:
        """Batches from the one that holds `offset` on.

        Under read_committed, aborted batches are left out; where nothing visible follows them, one synthesized
        control batch stands in their place, so that a client's position reaches the last stable offset.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE below the log start or above the end; KAFKA_STORAGE_ERROR.
        """
        limit = self.readable_end(read_committed=read_committed)
        if offset == limit:
            return _NOTHING
        skip = self.transactions.is_aborted if read_committed and self.transactions.aborted_count else None
        found = self.log.read(
            self.index, offset, limit_offset=limit, max_bytes=max_bytes, at_least_one=at_least_one, skip=skip
        )
        records: list[Buffer] = [batch.data for batch in found.batches]
        size = found.bytes
        next_offset = found.batches[-1].last_offset + 1 if records else -1
        skipped = found.last_skipped
        if skipped is not None:
            control = control_batch(
                skipped.last_offset,
                skipped.term,
                skipped.producer_id,
                skipped.producer_epoch,
                skipped.max_timestamp,
            )
            records.append(control)
            size += len(control)
            next_offset = skipped.last_offset + 1
        return Slice(records, size, next_offset)

    def expect(self, offset: int, *, read_committed: bool, size_bytes: int) -> None:
        """`fetch` will be asked for this much from `offset` on: the device may begin to read.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR.
        """
        limit = self.readable_end(read_committed=read_committed)
        self.log.expect(self.index, offset, limit_offset=limit, size_bytes=size_bytes)

    def offset_for_timestamp(self, timestamp_ms: int, *, read_committed: bool) -> tuple[int, int] | None:
        """(offset, timestamp) of the first visible record at or after a time; None when there is none."""
        limit = self.readable_end(read_committed=read_committed)
        skip = self.transactions.is_aborted if self.transactions.aborted_count else None
        return self.log.offset_for_timestamp(self.index, timestamp_ms, limit, skip)

    def segment_of(self, offset: int) -> int:
        """The id of the segment that holds an offset of this partition."""
        return self._state.indexes[self._state.chain_position(offset)].segment.segment_id

    def segments(self) -> list[int]:
        """The ids of the segments that hold offsets of this partition, in their order."""
        return [index.segment.segment_id for index in self._state.indexes]

    def segments_within(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """(id, first offset, next one's first offset) of the segments that hold offsets from `first` to `last`."""
        indexes = self._state.indexes
        ends = [index.start_offset for index in indexes[1:]] + [self._state.end_offset][: len(indexes)]
        return [
            (index.segment.segment_id, index.start_offset, end)
            for index, end in zip(indexes, ends, strict=True)
            if index.start_offset <= last and end > first
        ]

    def segments_below(self, offset: int) -> list[int]:
        """The ids of the segments that hold, or may have held, offsets of this partition below `offset`."""
        return [index.segment.segment_id for index in self._state.indexes if index.start_offset < offset]

    def advance_log_start(self, offset: int) -> None:
        """Nothing below `offset` is there any more; the caller has made that durable. Lower than now: no change.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE above the high watermark.
        """
        self._state.advance_log_start(offset)
        self.transactions.drop_aborted_below(self._state.log_start_offset)
        self.wake()

    def max_timestamp(self, *, read_committed: bool) -> tuple[int, int] | None:
        """(offset, timestamp) of the visible record with the largest timestamp; None when there is none."""
        limit = self.readable_end(read_committed=read_committed)
        skip = self.transactions.is_aborted if self.transactions.aborted_count else None
        return self.log.max_timestamp(self.index, limit, skip)

    def add_waiter(self, waiter: Waiter) -> None:
        """Call `waiter` whenever the high watermark or the last stable offset moved."""
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def wake(self) -> None:
        for waiter in list(self._waiters):
            waiter()
