"""The files of a range: its chain of segments, their flushing and sealing, and its life from OPEN to the end.

Guarantees: one round of flushes at a time, which counts only when every file of it is durable; a failed write or flush
is final (T4): the log takes no more and reads go on below the high watermarks. Everything runs on one thread; callbacks
are called from the event loop's turns, never from inside the call that handed them in, and must not raise.

What is written, and when a high watermark moves, is the business of what is built on it: `storage.range_log` of a
broker on its own, `storage.replica` where a group replicates the range.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgpack

from storage import checkpoint
from storage.cache import SegmentCache
from storage.clock import Scheduler
from storage.disk import Disk
from storage.files import delete_files
from storage.flush_round import FlushRound
from storage.flusher import GroupFlusher, Outcome, tell_all
from storage.format import HEADER_BLOCK_BYTES
from storage.layout import LogConfig, RangeHooks, RangeIdentity
from storage.partition import PartitionLog
from storage.range_reader import RangeReader
from storage.roller import Roller
from storage.segment import Segment
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


class RangeChain(RangeReader):
    """The chain of segments of one range. Offsets are records, sizes bytes."""

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
        super().__init__(identity.first, identity.last, config, partitions)
        self.identity = identity
        self._disk = disk
        self._scheduler = scheduler
        self._hooks = hooks
        self._cache = cache
        self._segments = segments
        self._active = segments[-1]
        self._predecessors = [log for log in predecessors if log.state != "CLOSED"]
        self._successors: list[RangeChain] = []
        theirs = set(self._flushed_before())
        self._unsealed: list[Segment] = [
            segment for segment in segments if segment.state != "SEALED" and segment not in theirs
        ]
        self.flush_ms = 0.0
        """How long a flush takes, smoothed over the last ones."""
        self._flush_began_ms = 0.0
        self._state: State = "OPEN"
        self._failure: KafkaError | None = None
        self._on_written: list[Outcome] = []
        self._written_ends: dict[PartitionLog, int] = {}
        """Per partition, the end that the next flush makes durable, where that is what moves the high watermark."""
        self._round: FlushRound | None = None
        self._flusher = GroupFlusher(scheduler, self, config.flush_linger_ms)
        self._roller = Roller(disk, scheduler, self, hooks.publish)
        self._checkpointer = checkpoint.Checkpointer(disk, identity.directory)
        self._checkpointer.follow(self._active)
        self._roll_at = HEADER_BLOCK_BYTES + config.segment_bytes
        for log in self._predecessors:
            log._successors.append(self)

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

    # Of those who build on it.

    @property
    def has_queued(self) -> bool:
        """Whether something was appended that is not written yet."""
        raise NotImplementedError

    def write_queued(self) -> None:
        """Write what this turn has appended so far. Where that fails the log is FAILED."""
        raise NotImplementedError

    def when_all_durable(self, callback: Outcome) -> None:
        """Call back when all that was written so far is on the device, or can never be known to be."""
        raise NotImplementedError

    def create_child(self) -> Segment:
        raise NotImplementedError

    def switch_to(self, child: Segment) -> bytes:
        raise NotImplementedError

    def retry_roll_later(self) -> None:
        raise NotImplementedError

    def roll_ended(self) -> None:
        raise NotImplementedError

    def _drop_queued(self, error: KafkaError) -> None:
        """The log ends: nothing that is queued will be written."""
        raise NotImplementedError

    # Flushing.

    def start_round(self) -> None:
        """For the flusher: flush every file with unflushed bytes, a parent beside its child."""
        if self._checkpoint_is_due() and not self.has_queued:
            self._checkpointer.capture(self._active, self._partitions)
        ends, self._written_ends = self._written_ends, {}
        self._flush_began_ms = self._scheduler.monotonic_ms()
        self._round = FlushRound(self._unsealed, ends, self._flushed)
        self._round.start(self._disk, [log.when_all_durable for log in self._predecessors])

    def _checkpoint_is_due(self) -> bool:
        grown = self._active.end - self._checkpointer.position
        entries = self._active.entries - self._checkpointer.entries
        many = entries >= self.config.checkpoint_entries and entries >= self._active.runs >> 3
        return (
            (grown >= self.config.checkpoint_bytes or many)
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
        if self._checkpointer.state != "IDLE":
            self._write_checkpoint()
        self._roller.proceed()
        self._flusher.proceed()
        try:
            self._tell_progress(round_.ends)
        finally:
            tell_all(self._scheduler, callbacks, None)

    def _write_checkpoint(self) -> None:
        """The flush that covers what was captured is done."""
        self._checkpointer.flushed()

    def _may_checkpoint(self) -> bool:
        """Whether all that was written can stay."""
        return True

    def _tell_progress(self, ends: dict[PartitionLog, int]) -> None:
        if ends and self._hooks.on_progress is not None:
            self._hooks.on_progress([log.partition for log in ends])

    def reconfigure(self, config: LogConfig) -> None:
        """Go on under other limits: the next append meets them, and so does the next roll."""
        self.config = config
        self._roll_at = HEADER_BLOCK_BYTES + config.segment_bytes

    # Sealing.

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

    def segment_sealed(self, segment: Segment) -> None:
        self._unsealed.remove(segment)
        if self._hooks.on_sealed is not None:
            self._hooks.on_sealed(segment.segment_id, segment.end_offsets())

    # Compaction and retention.

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
        self._drop_queued(self._refusal())
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
                self.write_queued()
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
        large = unchecked >= self.config.close_checkpoint_bytes
        if self._state == "OPEN" and large and self._may_checkpoint():
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
