"""The log of one range: the one place that assigns offsets, writes batches, and says what is durable.

Guarantees (design, section 2): offsets of a partition run on without a gap, across segments; a high watermark
moves only over completed flushes that cover everything before it in the range's append order; whoever waits
for durability is answered after that; a failed write or flush is final (T4): the log takes no more and reads
go on below the high watermarks. Everything runs on one thread; callbacks are called from the event loop's
turns, never from inside the call that handed them in, and must not raise.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgpack
from typing_extensions import Buffer

from storage import checkpoint
from storage.cache import SegmentCache
from storage.clock import Scheduler
from storage.disk import Disk
from storage.entries import Queued, frame
from storage.files import delete_files
from storage.flush_round import FlushRound
from storage.flusher import GroupFlusher, Outcome, tell_all
from storage.format import ENTRY_HEADER_BYTES, HEADER_BLOCK_BYTES
from storage.layout import MAX_SEGMENT_BYTES, Appended, LogConfig, RangeHooks, RangeIdentity
from storage.partition import PartitionLog
from storage.range_reader import RangeReader
from storage.roller import RETRY_FRACTION, Roller
from storage.segment import Segment
from wire.batch import BatchHeader, assign
from wire.errors import ErrorCode, KafkaError

State = Literal["OPEN", "RETIRED", "FAILED", "CLOSED", "DELETED"]
"""RETIRED: other ranges took its partitions over; it takes no appends, and flushes and seals what it has."""

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "OPEN": frozenset({"RETIRED", "FAILED", "CLOSED", "DELETED"}),
    "RETIRED": frozenset({"FAILED", "CLOSED", "DELETED"}),
    "FAILED": frozenset({"CLOSED", "DELETED"}),
    "CLOSED": frozenset({"DELETED"}),
    "DELETED": frozenset(),
}


class RangeLog(RangeReader):
    """The chain of segments of one range; opened by `storage.recovery`, or by a split or merge (`storage.reshape`).

    Offsets are records, sizes bytes. `predecessors` are the logs of the ranges whose partitions this one takes over.
    """

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
        predecessors: Iterable[RangeLog] = (),
    ) -> None:
        super().__init__(identity.first, identity.last, config, partitions)
        self.identity = identity
        self._disk = disk
        self._scheduler = scheduler
        self._hooks = hooks
        self._cache = cache
        self._segments = segments
        self._active = segments[-1]
        self._predecessors = [log for log in predecessors if log.state != "CLOSED"]
        theirs = set(self._flushed_before())
        self._unsealed: list[Segment] = [
            segment for segment in segments if segment.state != "SEALED" and segment not in theirs
        ]
        self._successors: list[RangeLog] = []
        self.flush_ms = 0.0
        """How long a flush takes, smoothed over the last ones."""
        self._flush_began_ms = 0.0
        self._on_roll_end: list[Outcome] = []
        self._on_rolled: list[Outcome] = []
        self._on_retired: Callable[[], None] | None = None
        self._state: State = "OPEN"
        self._failure: KafkaError | None = None
        self._appended_lsn = 0
        self._queue: dict[PartitionLog, list[Queued]] = {}
        self._queued_bytes = 0
        self._on_written: list[Outcome] = []
        self._written_ends: dict[PartitionLog, int] = {}
        self._round: FlushRound | None = None
        self._flusher = GroupFlusher(scheduler, self, config.flush_linger_ms)
        self._roller = Roller(disk, scheduler, self, hooks.publish)
        self._checkpointer = checkpoint.Checkpointer(disk, identity.directory)
        self._checkpointer.position = self._active.end
        self._roll_at = HEADER_BLOCK_BYTES + config.segment_bytes
        for log in self._predecessors:
            log._successors.append(self)
        if self._predecessors:
            # The hand-over is a position of its own: who repeats a batch of before waits for the predecessors.
            self._appended_lsn = 1
            self._flusher.wrote(1)

    @property
    def unsealed(self) -> Sequence[Segment]:
        """Those that this log flushes: the active one, and what is being sealed."""
        return self._unsealed

    def _flushed_before(self) -> Iterator[Segment]:
        """What predecessors flush, and theirs: where one change quickly follows another, none of it may be durable."""
        for log in self._predecessors:
            yield from log._unsealed
            yield from log._flushed_before()

    # What there is.

    @property
    def state(self) -> State:
        return self._state

    @property
    def directory(self) -> str:
        return self.identity.directory

    @property
    def term(self) -> int:
        return self.identity.term

    @property
    def failure(self) -> KafkaError | None:
        """Why the log is FAILED."""
        return self._failure

    @property
    def active(self) -> Segment:
        return self._active

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In chain order, the active one last."""
        return tuple(self._segments)

    @property
    def appended_lsn(self) -> int:
        """The position after everything appended so far."""
        return self._appended_lsn

    @property
    def durable_lsn(self) -> int:
        return self._flusher.durable_lsn

    # Appending.

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
        prefix, rest = assign(batch, base_offset, self.identity.term)
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
        """Write everything queued with one call."""
        queue = self._queue
        if not queue or self._state != "OPEN":
            return
        self._queue = {}
        self._queued_bytes = 0
        segment = self._active
        framed = frame(segment, queue, self.identity.term, self.config.run_bytes)
        try:
            segment.file().pwritev(framed.buffers, segment.end)
        except OSError as error:
            self.fail(error)
            return
        segment.end = framed.end
        self._written_ends.update(framed.ends)
        callbacks = self._on_written
        if callbacks:
            self._on_written = []
        self._flusher.wrote(self._appended_lsn)
        if callbacks:
            tell_all(self._scheduler, callbacks, None)
        if framed.end >= self._roll_at or segment.runs >= self.config.max_index_entries:
            self._roller.start()

    def write_queued(self) -> None:
        """Write what this turn has appended so far. Where that fails the log is FAILED."""
        self._write_out()

    def when_written(self, callback: Outcome) -> None:
        """Call back when a write() covers all appended so far: a killed process then loses nothing (D2)."""
        if self._queue and self._state == "OPEN":
            self._on_written.append(callback)
        else:
            written = self._state in ("OPEN", "RETIRED", "CLOSED")
            self._scheduler.call_soon(callback, None if written else self._refusal())

    # Flushing.

    def when_durable(self, lsn: int, callback: Outcome) -> None:
        """Call back when everything up to `lsn` is on the device, or can never be known to be."""
        self._flusher.when_durable(lsn, callback)

    def when_all_durable(self, callback: Outcome) -> None:
        """As `when_durable`, of all that was appended."""
        self._flusher.when_durable(self._appended_lsn, callback)

    def request_flush(self) -> None:
        """Flush what is appended so far without waiting for the linger, though nobody waits for it."""
        if self._is_living():
            self._flusher.request(self._appended_lsn)

    def start_round(self) -> None:
        """For the flusher: flush every file with unflushed bytes, a parent beside its child."""
        if not self._queue and self._checkpoint_is_due():
            self._checkpointer.capture(self._active, self._partitions)
        ends, self._written_ends = self._written_ends, {}
        self._flush_began_ms = self._scheduler.monotonic_ms()
        self._round = FlushRound(self._unsealed, ends, self._flushed)
        self._round.start(self._disk, [log.when_all_durable for log in self._predecessors])

    def _checkpoint_is_due(self) -> bool:
        grown = self._active.end - self._checkpointer.position
        return (
            grown >= self.config.checkpoint_bytes
            and self._checkpointer.state == "IDLE"
            and self._state == "OPEN"
        )

    def _flushed(self, error: OSError | None) -> None:
        round_, self._round = self._round, None
        assert round_ is not None
        if error is not None:
            self.fail(error)
            return
        self._predecessors = []
        self.flush_ms += (self._scheduler.monotonic_ms() - self._flush_began_ms - self.flush_ms) / 8
        callbacks = self._flusher.round_done()
        self._checkpointer.flushed()
        self._roller.proceed()
        self._flusher.proceed()
        try:
            self._tell_progress(round_.ends)
        finally:
            tell_all(self._scheduler, callbacks, None)

    def _tell_progress(self, ends: dict[PartitionLog, int]) -> None:
        if ends and self._hooks.on_progress is not None:
            self._hooks.on_progress([log.partition for log in ends])

    def reconfigure(self, config: LogConfig) -> None:
        """Go on under other limits: the next append meets them, and so does the next roll."""
        self.config = config
        self._roll_at = HEADER_BLOCK_BYTES + config.segment_bytes

    # Rolling; the first part is the roller's.

    def roll(self, done: Outcome) -> None:
        """Let a new segment take over from the one that is active now; `done` when it takes the appends."""
        if self._state != "OPEN":
            self._scheduler.call_soon(done, self._refusal())
            return
        self._on_rolled.append(done)
        self._roller.start()

    @property
    def has_queued(self) -> bool:
        """Whether something was appended that is not written yet."""
        return bool(self._queue)

    def create_child(self) -> Segment:
        return Segment.create(
            self._disk,
            self.identity,
            self._hooks.allocate_segment_id(),
            (self._active.segment_id,),
            self._scheduler.now_ms(),
            self.config,
            self._cache,
        )

    def switch_to(self, child: Segment) -> bytes:
        self._write_out()
        if self._state != "OPEN":
            return b""
        packed = self._fill_up()
        self._segments.append(child)
        self._unsealed.append(child)
        self._active = child
        self._roll_at = HEADER_BLOCK_BYTES + self.config.segment_bytes
        self._checkpointer.position = child.end
        self._flush_filled(self._segments[-2])
        self._tell_rolled(None)
        return packed

    def _flush_filled(self, segment: Segment) -> None:
        """Its footer waits for that, whether or not somebody else does."""
        if segment.durable_end == segment.end:
            return
        if self._flusher.durable_lsn == self._appended_lsn:
            # Not an entry, only its header block: a position of its own, so that there is something to flush.
            self._appended_lsn += 1
            self._flusher.wrote(self._appended_lsn)
        self._flusher.request(self._appended_lsn)

    def _tell_rolled(self, error: Exception | None) -> None:
        waiting, self._on_rolled = self._on_rolled, []
        for done in waiting:
            self._scheduler.call_soon(done, error)

    def _fill_up(self) -> bytes:
        """Nothing more is appended to the active segment. The producers' packed snapshot of this moment."""
        parent = self._active
        parent.change_state("FULL")
        for log in self._partitions:
            # A footer names every partition's end, also of those that wrote nothing here.
            if log.end_offset:
                parent.index_of(log.partition, log.end_offset)
        self.expire_producers()
        packed: bytes = msgpack.packb(checkpoint.producers_snapshot(self._partitions))
        return packed

    def retry_roll_later(self) -> None:
        self._roll_at = self._active.end + max(1, self.config.segment_bytes // RETRY_FRACTION)
        self._tell_rolled(OSError(errno.ENOSPC, f"no file for another segment in {self.directory}"))

    def segment_sealed(self, segment: Segment) -> None:
        self._unsealed.remove(segment)
        if self._hooks.on_sealed is not None:
            self._hooks.on_sealed(segment.segment_id, segment.end_offsets())

    def roll_ended(self) -> None:
        if self._state == "RETIRED":
            # Not from within a round's end, which goes on with the flusher that stops here.
            self._scheduler.call_soon(self._end_retirement)
        elif self._on_roll_end:
            waiting, self._on_roll_end = self._on_roll_end, []
            for held in waiting:
                self.hold_rolls(held)
        else:
            self._roll_if_due()

    def _roll_if_due(self) -> None:
        if self._active.end >= self._roll_at or self._on_rolled:
            self._roller.start()

    # Being split or merged.

    def hold_rolls(self, held: Outcome) -> None:
        """Call back in a later turn when no roll is under way; none begins until `release_rolls`.

        The error there says that the log takes no appends.
        """
        if self._state != "OPEN":
            self._scheduler.call_soon(held, self._refusal())
        elif self._roller.hold():
            self._scheduler.call_soon(held, None)
        else:
            self._on_roll_end.append(held)

    def release_rolls(self) -> None:
        self._roller.release()
        self._roll_if_due()

    def retire(self, on_retired: Callable[[], None]) -> list[PartitionLog]:
        """Take no more appends: others take the partitions over in this very turn. Rolls are held, nothing is queued.

        Goes on flushing and answering until all is durable and the last segment has its footer; then `on_retired` is
        called.
        """
        assert not self._queue
        self._change_state("RETIRED")
        self._on_retired = on_retired
        packed = self._fill_up()
        self._flush_filled(self._active)
        # In a later turn: those who take over must be known to this log before it can come to its end.
        self._scheduler.call_soon(self._roller_adopts, packed)
        return self._partitions

    def _roller_adopts(self, packed: bytes) -> None:
        if self._state == "RETIRED":
            self._roller.adopt(self._active, packed)

    def _end_retirement(self) -> None:
        """All is durable; the files live on in the chains of the successors."""
        if self._state != "RETIRED":
            return
        self._change_state("CLOSED")
        callbacks = self._stop(self._refusal())
        assert not callbacks, "a retired log is durable to its end"
        self._successors = []
        if self._on_retired is not None:
            self._on_retired()

    def replace_segment(self, old: Segment, new: Segment) -> None:
        """Compaction has written a sealed segment anew. The caller closes the old one."""
        self._segments[self._segments.index(old)] = new
        for log in self._partitions:
            log.replace_segment(old, new)

    def join_segments(self, olds: Sequence[Segment], new: Segment) -> None:
        """Compaction has made one of several segments that follow each other. The caller closes the old ones."""
        self._segments[self._segments.index(olds[-1])] = new
        for old in olds[:-1]:
            self._segments.remove(old)
        for log in self._partitions:
            log.join_segments(olds, new)

    def drop_segment(self, segment: Segment) -> None:
        """A sealed segment is no part of the log any more. The caller has moved the log starts past it, and closes
        it."""
        self._segments.remove(segment)
        for log in self._partitions:
            log.drop_segment(segment)

    def expire_producers(self) -> int:
        """Forget producers that wrote nothing for `producer_ttl_ms`; how many. Done at every roll as well."""
        now_ms = self._scheduler.now_ms()
        return sum(log.producers.expire(now_ms, self.config.producer_ttl_ms) for log in self._partitions)

    # The end.

    def _change_state(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            raise ValueError(f"a range log that is {self._state} cannot become {state}")
        self._state = state

    def _is_living(self) -> bool:
        return self._state == "OPEN" or self._state == "RETIRED"

    def check_readable(self) -> None:
        if self._state == "CLOSED" or self._state == "DELETED":
            raise self._refusal()

    def _refusal(self) -> KafkaError:
        if self._failure is not None:
            return self._failure
        return KafkaError(
            ErrorCode.kafka_storage_error, f"the log in {self.directory} is {self._state.lower()}"
        )

    def _stop(self, failure: KafkaError | None) -> list[Outcome]:
        if self._round is not None:
            self._round.abandon()
        self._roller.stop()
        self._checkpointer.stop()
        callbacks, self._on_written = self._on_written, []
        self._queue = {}
        waiting, self._on_roll_end = self._on_roll_end, []
        for held in waiting:
            self._scheduler.call_soon(held, self._refusal())
        self._tell_rolled(self._refusal())
        return callbacks + self._flusher.stop(failure)

    def fail(self, error: OSError) -> None:
        """A write or flush failed. Final: what it covered may be lost, and asking again could be told a
        lie."""
        if not self._is_living():
            return
        self._failure = KafkaError(
            ErrorCode.kafka_storage_error, f"the log in {self.directory} failed: {error}"
        )
        self._failure.__cause__ = error
        self._change_state("FAILED")
        callbacks = self._stop(self._failure)
        if self._hooks.on_failed is not None:
            self._hooks.on_failed(self._failure)
        for successor in self._successors:
            successor.fail(error)
        tell_all(self._scheduler, callbacks, self._failure)

    def close(self) -> None:
        """Write and flush everything, waiting for the device, answer who waits, and close the files.

        Raises the OSError of a write or flush that failed; the log is FAILED and its files are closed then.
        """
        if self._state == "CLOSED" or self._state == "DELETED":
            return
        failure: OSError | None = None
        if self._is_living():
            try:
                self._write_out()
                if self._is_living():
                    self._flush_now()
            except OSError as error:
                self.fail(error)
                failure = error
        if self._is_living():
            self._close_cleanly()
        else:
            self._change_state("CLOSED")
            if failure is None and self._failure is not None and isinstance(self._failure.__cause__, OSError):
                failure = self._failure.__cause__
        for segment in self._segments:
            segment.close()
        if failure is not None:
            raise failure

    def _flush_now(self) -> None:
        for segment in self._unsealed:
            if segment.durable_end < segment.end:
                segment.file().flush()
        for segment in self._unsealed:
            segment.durable_end = segment.end

    def _close_cleanly(self) -> None:
        ends = {**(self._round.ends if self._round is not None else {}), **self._written_ends}
        for log, end_offset in ends.items():
            log.high_watermark = end_offset
        unchecked = self._active.end - self._checkpointer.position
        if self._state == "OPEN" and unchecked >= self.config.close_checkpoint_bytes:
            packed = checkpoint.capture(self._active, self._partitions)
            with contextlib.suppress(OSError):
                checkpoint.write_now(self._disk, self.directory, self._active, packed)
        self._change_state("CLOSED")
        closed = KafkaError(ErrorCode.kafka_storage_error, f"the log in {self.directory} is closed")
        callbacks = self._stop(closed)
        self._tell_progress(ends)
        tell_all(self._scheduler, callbacks, None)

    def delete(self) -> None:
        """Remove the folder with the files of all ranges (the topic is deleted).

        Whoever waits gets UNKNOWN_TOPIC_OR_PARTITION. Raises OSError where a file cannot be removed.
        """
        if self._state == "DELETED":
            return
        was = self._state
        self._change_state("DELETED")
        gone = KafkaError(ErrorCode.unknown_topic_or_partition, "the topic is being deleted")
        callbacks = self._stop(gone) if was in ("OPEN", "RETIRED") else []
        for segment in self._segments:
            segment.close()
        delete_files(self._disk, self.directory)
        tell_all(self._scheduler, callbacks, gone)
