"""Appending to a range: the one place that assigns offsets, for a broker on its own and for a leader.

Guarantee: offsets of a partition run on without a gap, across segments, in the order of appending; a producer's batch
is taken once (`storage.producers`). What a turn of the loop appends is queued, and goes out together at its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import Buffer

from storage.cache import SegmentCache
from storage.clock import Scheduler
from storage.disk import Disk
from storage.entries import Queued
from storage.flusher import Outcome
from storage.format import ENTRY_HEADER_BYTES
from storage.layout import MAX_SEGMENT_BYTES, Appended, LogConfig, RangeHooks, RangeIdentity
from storage.partition import PartitionLog
from storage.range_chain import RangeChain
from storage.segment import Segment
from wire.batch import BatchHeader, assign
from wire.errors import ErrorCode, KafkaError


class SequencedRange(RangeChain):
    """A range that takes appends. `_write_out` is called at the end of a turn that appended something."""

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        identity: RangeIdentity,
        hooks: RangeHooks,
        config: LogConfig,
        cache: SegmentCache,
        segments: list[Segment],
        partitions: list[PartitionLog],
        predecessors: Iterable[RangeChain] = (),
    ) -> None:
        super().__init__(disk, scheduler, identity, hooks, config, cache, segments, partitions, predecessors)
        self._term = identity.term
        """Written into every batch as its leader epoch."""
        self._appended_lsn = 0
        self._queue: dict[PartitionLog, list[Queued]] = {}
        self._queued_bytes = 0
        """Of what was appended and is not in the segment yet."""

    @property
    def term(self) -> int:
        return self._term

    @property
    def appended_lsn(self) -> int:
        """The position after everything appended so far."""
        return self._appended_lsn

    @property
    def durable_lsn(self) -> int:
        """The position up to which everything counts: durable, and in a replicated range committed."""
        raise NotImplementedError

    @property
    def has_queued(self) -> bool:
        return bool(self._queue)

    def append(
        self,
        partition: int,
        header: BatchHeader,
        batch: Buffer,
        *,
        txn_seq: int = 0,
        require_known_producer: bool = False,
    ) -> Appended:
        """Give one checked batch (`wire.batch.validate_produced`) its offsets and queue it for writing.

        `batch` must stay unchanged until it is written, at the end of the loop's turn. `txn_seq` is stored
        with it; 0 outside transactions. Raises KafkaError: KAFKA_STORAGE_ERROR (failed or closed log, disk
        full: nothing was appended), MESSAGE_TOO_LARGE, UNKNOWN_TOPIC_OR_PARTITION, and those of
        `ProducerStates.check`.
        """
        if self._state != "OPEN":
            raise self._refusal()
        log = self.partition(partition)
        size = header.size_bytes
        if size > self.config.max_batch_bytes:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"a batch of {size} bytes is above the limit of {self.config.max_batch_bytes}",
            )
        has_producer = header.producer_id >= 0
        if has_producer:
            now_ms = self._scheduler.now_ms()
            duplicate = log.producers.check(header, now_ms, require_known_producer=require_known_producer)
            if duplicate is not None:
                known = (
                    log.indexes[log.chain_position(duplicate.base_offset)].segment if log.indexes else None
                )
                return Appended(
                    duplicate.base_offset,
                    duplicate.last_offset,
                    known.segment_id if known is not None else self._active.segment_id,
                    self.durable_lsn if duplicate.last_offset < log.high_watermark else self._appended_lsn,
                    True,
                )
        segment = self._active
        entry_size = ENTRY_HEADER_BYTES + size
        if segment.end + self._queued_bytes + entry_size > segment.allocated:
            self._reserve(segment.end + self._queued_bytes + entry_size)
        base_offset = log.end_offset
        end_offset = base_offset + header.last_offset_delta + 1
        prefix, rest = assign(batch, base_offset, self._term)
        if has_producer:
            log.producers.update(header, base_offset, now_ms)
        log.end_offset = end_offset
        self._queued_bytes += entry_size
        self._appended_lsn += entry_size
        entry = (prefix, rest, size, base_offset, end_offset, txn_seq, header.max_timestamp)
        queue = self._queue
        entries = queue.get(log)
        if entries is not None:
            entries.append(entry)
        else:
            if not queue:
                self._scheduler.call_soon(self._write_out)
            queue[log] = [entry]
        return Appended(base_offset, end_offset - 1, segment.segment_id, self._appended_lsn, False)

    def _reserve(self, needed: int) -> None:
        if needed > MAX_SEGMENT_BYTES:
            raise KafkaError(
                ErrorCode.kafka_storage_error, f"{self._active.path} is full and cannot be rolled"
            )
        try:
            self._active.reserve(needed, self.config)
        except OSError as error:
            raise KafkaError(
                ErrorCode.kafka_storage_error, f"{self._active.path} cannot grow: {error}"
            ) from error

    def _write_out(self) -> None:
        """Give away everything queued, at once."""
        raise NotImplementedError

    def write_queued(self) -> None:
        self._write_out()

    # Who waits.

    def when_written(self, callback: Outcome) -> None:
        """Call back when all appended so far has been handed to the kernel (D2)."""
        raise NotImplementedError

    def when_durable(self, lsn: int, callback: Outcome) -> None:
        """Call back when everything up to `lsn` counts, or can never be known to."""
        raise NotImplementedError

    def request_flush(self) -> None:
        """Flush what is appended so far without waiting for the linger, though nobody waits for it."""
        raise NotImplementedError
