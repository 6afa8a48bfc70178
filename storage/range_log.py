"""The log of one range of a broker on its own: its flush is its commit.

Guarantees (design, section 2): offsets of a partition run on without a gap, across segments; a high watermark
moves only over completed flushes that cover everything before it in the range's append order; whoever waits
for durability is answered after that; a failed write or flush is final (T4): the log takes no more and reads
go on below the high watermarks. Everything runs on one thread; callbacks are called from the event loop's
turns, never from inside the call that handed them in, and must not raise.

`storage.sequencing` assigns the offsets, `storage.range_chain` has the files.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from storage.cache import SegmentCache
from storage.clock import Scheduler
from storage.disk import Disk
from storage.entries import frame
from storage.flusher import Outcome, tell_all
from storage.format import HEADER_BLOCK_BYTES
from storage.layout import LogConfig, RangeHooks, RangeIdentity
from storage.partition import PartitionLog
from storage.roller import RETRY_FRACTION
from storage.segment import Segment
from storage.sequencing import SequencedRange
from wire.errors import KafkaError


class RangeLog(SequencedRange):
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
        super().__init__(disk, scheduler, identity, hooks, config, cache, segments, partitions, predecessors)
        self._on_roll_end: list[Outcome] = []
        self._on_rolled: list[Outcome] = []
        self._on_retired: Callable[[], None] | None = None
        if self._predecessors:
            # The hand-over is a position of its own: who repeats a batch of before waits for the predecessors.
            self._appended_lsn = 1
            self._flusher.wrote(1)

    @property
    def durable_lsn(self) -> int:
        return self._flusher.durable_lsn

    # Writing.

    def _write_out(self) -> None:
        """Write everything queued with one call."""
        queue = self._queue
        if not queue or self._state != "OPEN":
            return
        self._queue = {}
        self._queued_bytes = 0
        segment = self._active
        framed = frame(segment, queue, self._term, self.config.run_bytes)
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

    # Rolling; the first part is the roller's.

    def roll(self, done: Outcome) -> None:
        """Let a new segment take over from the one that is active now; `done` when it takes the appends."""
        if self._state != "OPEN":
            self._scheduler.call_soon(done, self._refusal())
            return
        self._on_rolled.append(done)
        self._roller.start()

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
        self._checkpointer.follow(child)
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

    def retry_roll_later(self) -> None:
        self._roll_at = self._active.end + max(1, self.config.segment_bytes // RETRY_FRACTION)
        self._tell_rolled(OSError(errno.ENOSPC, f"no file for another segment in {self.directory}"))

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

    def _drop_queued(self, error: KafkaError) -> None:
        self._queue = {}
        waiting, self._on_roll_end = self._on_roll_end, []
        for held in waiting:
            self._scheduler.call_soon(held, error)
        self._tell_rolled(error)
