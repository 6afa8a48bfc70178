"""The write-ahead log: written once at the end of a turn of the loop, flushed for many at once.

Guarantees that batches become durable in the order of their lsns; that one flush is in flight at a time, and
what was appended while it ran is covered by the next (group commit); that nothing stays unflushed for longer
than the linger time, even if nobody waits for it; and that the first failed write or flush ends it all: the
log fails for good, everyone who waits is told, and nothing is ever retried as if it could still succeed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from storage.clock import Scheduler, Timer
from storage.disk import Disk, File
from txn.metastore import frames
from txn.metastore.errors import StoreFailed
from txn.metastore.schema import Options
from txn.metastore.state import Batch
from txn.metastore.waiters import Callback, Waiters


class LogState(Enum):
    OPEN = "open"
    CLOSING = "closing"
    FAILED = "failed"
    CLOSED = "closed"


_TRANSITIONS = {
    LogState.OPEN: {LogState.CLOSING, LogState.FAILED},
    LogState.CLOSING: {LogState.CLOSED, LogState.FAILED},
    LogState.FAILED: {LogState.CLOSED},
    LogState.CLOSED: set[LogState](),
}


@dataclass(slots=True, eq=False)
class LogFile:
    """One file of the log, open for writing."""

    number: int
    file: File
    end: int
    """Where the next frame goes, in bytes."""
    allocated: int
    last_lsn: int
    """Of the last batch written to it or before it."""


class Log:
    """The log's tail. `current` continues at `lsn`, all of which is durable."""

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        options: Options,
        current: LogFile,
        *,
        lsn: int,
        claimed_lsn: int,
    ) -> None:
        self.after_write: Callable[[], None] | None = None
        """Called whenever the log has grown, at the end of a turn."""
        self.before_close: Callable[[], None] | None = None
        """Called whenever it is asked to close."""
        self.written_bytes = 0
        """All that was ever written by this object."""
        self.flushes = 0
        """Flushes that ended well."""
        self._disk = disk
        self._scheduler = scheduler
        self._options = options
        self._current = current
        self._retired: deque[LogFile] = deque()
        """Predecessors of `current` that hold batches not yet durable."""
        self._state = LogState.OPEN
        self._failure: StoreFailed | None = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._appended_lsn = self._written_lsn = self._durable_lsn = self._wanted_lsn = lsn
        self._claimed_lsn = claimed_lsn
        """How far a reader of the frames written so far would know the log to be durable."""
        self._flushing = False
        self._turn_due = False
        self._linger: Timer | None = None
        self._mark: Timer | None = None
        self._durable_waiters = Waiters(scheduler)
        self._written_waiters = Waiters(scheduler)
        self._failure_waiters = Waiters(scheduler)
        self._close_asked: list[Callback] = []
        self._arm_timers()

    @property
    def state(self) -> LogState:
        return self._state

    @property
    def failure(self) -> StoreFailed | None:
        return self._failure

    @property
    def closed(self) -> bool:
        return self._state is LogState.CLOSED

    @property
    def untold(self) -> tuple[Batch, ...]:
        """None: watches are told of a batch as soon as it is applied."""
        return ()

    @property
    def file_number(self) -> int:
        return self._current.number

    @property
    def durable_lsn(self) -> int:
        return self._durable_lsn

    # -- what the store asks for

    def begin(self) -> int:
        """The lsn that the next batch gets. Raises `StoreFailed` when nothing can be appended any more."""
        if self._state is not LogState.OPEN:
            raise self._failure or StoreFailed("the store is closed")
        return self._appended_lsn + 1

    def append(self, batch: Batch, payload: bytes) -> None:
        """Queue a batch; the log must be open."""
        lsn = batch.lsn
        self._append(frames.BATCH, lsn, payload)
        self._appended_lsn = lsn

    def when_written(self, callback: Callback) -> None:
        """Call back when the kernel has everything appended so far."""
        self._written_waiters.add(self._appended_lsn, callback)
        self._wake()

    def when_durable(self, lsn: int, callback: Callback) -> None:
        """Call back when the device has everything up to `lsn`; starts a flush if none covers it."""
        if lsn > self._appended_lsn:
            raise ValueError(f"lsn {lsn} has not been given yet, the last is {self._appended_lsn}")
        self._durable_waiters.add(lsn, callback)
        self._wanted_lsn = max(self._wanted_lsn, lsn)
        if not self._flushing or lsn <= self._durable_lsn:
            self._wake()

    def when_recorded(self, lsn: int, callback: Callback) -> None:
        """As `when_durable`, but always with the error where nothing can be appended any more."""
        try:
            self.begin()
        except StoreFailed as failure:
            self._scheduler.call_soon(callback, failure)
        else:
            self.when_durable(lsn, callback)

    def when_failed(self, callback: Callback) -> None:
        """Call back if the log ever fails."""
        self._failure_waiters.add(0, callback)
        if self._failure is not None:
            self._wake()

    def close(self, done: Callback) -> None:
        """Write and flush everything, now; tell everyone and close the files, now unless a flush is in
        flight.

        That flush has a say in the outcome: of two flushes of one file the kernel tells only one of an error.
        """
        if self.before_close is not None:
            self.before_close()
        if self._state is LogState.CLOSED:
            done(self._failure)
            return
        self._close_asked.append(done)
        if len(self._close_asked) > 1:
            return
        self._cancel_timers()
        if self._state is LogState.OPEN:
            self._move(LogState.CLOSING)
            try:
                self._write()
                for log_file in (*self._retired, self._current):
                    log_file.file.flush()
            except OSError as error:
                self.fail(error)
        if not self._flushing:
            self._finish_close()

    def switch(self, successor: LogFile) -> bool:
        """Go on in another file, which is named and flushed; what is appended already stays in this one."""
        try:
            self._write()
        except OSError as error:
            self.fail(error)
            return False
        if self._current.last_lsn > self._durable_lsn:
            self._retired.append(self._current)
        else:
            self._current.file.close()
        self._current = successor
        successor.last_lsn = self._appended_lsn
        self._wake()
        return True

    def fail(self, error: OSError) -> None:
        """A write or a flush failed, here or of the folder that the log is in."""
        self._failure = StoreFailed(f"the log of the store failed: {error}")
        self._failure.__cause__ = error
        self._move(LogState.FAILED)
        self._pending = []
        self._cancel_timers()
        self._wake()

    # -- the end of a turn

    def _wake(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._scheduler.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._state is LogState.OPEN:
            before = self.written_bytes
            try:
                self._write()
                self._start_flush()
            except OSError as error:
                self.fail(error)
                return
            self._arm_timers()
            if self.after_write is not None and self.written_bytes > before:
                self.after_write()
        if self._state is not LogState.CLOSING:
            self._tell()

    def _append(self, kind: int, lsn: int, payload: bytes) -> None:
        current = self._current
        position = current.end + self._pending_bytes
        header = frames.encode_frame_header(current.number, position, kind, lsn, self._durable_lsn, payload)
        self._claimed_lsn = self._durable_lsn
        self._pending += (header, payload)
        self._pending_bytes += len(header) + len(payload)
        self._wake()

    def _write(self) -> None:
        if not self._pending:
            return
        current = self._current
        size = self._pending_bytes
        if current.end + size > current.allocated:
            step = self._options.allocate_bytes
            target = ((current.end + size) // step + 1) * step
            # Only a reservation: whether there is room, the write will tell.
            with contextlib.suppress(OSError):
                current.file.allocate(current.allocated, target - current.allocated)
            current.allocated = target
        data = b"".join(self._pending)
        self._pending = []
        self._pending_bytes = 0
        current.file.pwritev([data], current.end)
        current.end += size
        current.last_lsn = self._written_lsn = self._appended_lsn
        self.written_bytes += size

    def _tell(self) -> None:
        # One that raises keeps none of the others.
        try:
            self._written_waiters.fire(self._written_lsn)
        finally:
            try:
                self._durable_waiters.fire(self._durable_lsn)
            finally:
                if self._failure is not None:
                    self._tell_failed(self._failure)

    def _tell_failed(self, failure: StoreFailed) -> None:
        with contextlib.ExitStack() as calls:  # last in, first called
            calls.callback(self._failure_waiters.fire_all, failure)
            calls.callback(self._durable_waiters.fire_all, failure)
            calls.callback(self._written_waiters.fire_all, failure)

    # -- flushing

    def _start_flush(self) -> None:
        if self._flushing or self._wanted_lsn <= self._durable_lsn:
            return
        target = self._retired[0] if self._retired else self._current
        covered = target.last_lsn
        self._disk.start_flush(target.file, lambda error: self._flushed(target, covered, error))
        self._flushing = True

    def _flushed(self, target: LogFile, covered_lsn: int, error: OSError | None) -> None:
        self._flushing = False
        if error is not None and self._state is not LogState.FAILED:
            self.fail(error)
        if self._state is LogState.FAILED:
            if self._close_asked:
                self._finish_close()
            return
        self.flushes += 1
        self._durable_lsn = covered_lsn
        if target is not self._current and target.last_lsn == covered_lsn:
            self._retired.popleft().file.close()
        if self._state is LogState.CLOSING:
            self._finish_close()
            return
        if self._wanted_lsn > covered_lsn:
            self._wake()
        self._arm_timers()
        self._durable_waiters.fire(covered_lsn)

    def _arm_timers(self) -> None:
        if self._written_lsn > self._durable_lsn:
            if self._linger is None and not self._flushing:
                self._linger = self._scheduler.call_later(self._options.flush_linger_ms, self._lingered)
        elif self._claimed_lsn < self._durable_lsn and self._mark is None:
            self._mark = self._scheduler.call_later(self._options.mark_idle_ms, self._idled)

    def _lingered(self) -> None:
        self._linger = None
        self._wanted_lsn = max(self._wanted_lsn, self._written_lsn)
        self._wake()

    def _idled(self) -> None:
        """Nothing follows the batches flushed last: leave word that they are durable, without a flush."""
        self._mark = None
        if self._appended_lsn == self._durable_lsn and self._claimed_lsn < self._durable_lsn:
            self._append(frames.MARK, self._durable_lsn, b"")

    def _cancel_timers(self) -> None:
        for timer in (self._linger, self._mark):
            if timer is not None:
                timer.cancel()
        self._linger = self._mark = None

    # -- the end

    def _finish_close(self) -> None:
        if self._state is LogState.CLOSING:
            self._durable_lsn = self._appended_lsn
            try:
                if self._claimed_lsn < self._durable_lsn:
                    self._append(frames.MARK, self._durable_lsn, b"")
                    self._write()
                    self._current.file.flush()
            except OSError as error:
                self.fail(error)
        for log_file in (*self._retired, self._current):
            log_file.file.close()
        self._retired.clear()
        self._move(LogState.CLOSED)
        with contextlib.ExitStack() as calls:
            for done in reversed(self._close_asked):
                calls.callback(done, self._failure)
            calls.callback(self._tell)

    def _move(self, state: LogState) -> None:
        if state not in _TRANSITIONS[self._state]:
            raise AssertionError(f"the log cannot go from {self._state.value} to {state.value}")
        self._state = state
