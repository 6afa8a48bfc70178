"""Snapshots: written beside the running service, so that the log before them can go.

Guarantees that service never waits (a turn takes on a bounded number of records and bytes, every flush runs
off the loop), and that a crash at any point recovers to the same state: the old files go only when the
snapshot has its name, durably, and the log is durable up to where the snapshot was taken. A snapshot that
cannot be written is given up and tried again when the log has grown further; the log goes on meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import msgpack

from storage.clock import Scheduler
from storage.disk import File
from txn.metastore import frames
from txn.metastore.files import Folder
from txn.metastore.log import Log, LogFile, LogState
from txn.metastore.ops import Record
from txn.metastore.schema import Options
from txn.metastore.state import State
from txn.metastore.view import FrozenView


class Phase(Enum):
    IDLE = "idle"
    PREPARING = "preparing the next log file"
    WRITING = "writing records"
    FLUSHING = "flushing"
    PUBLISHING = "publishing"
    STOPPED = "stopped"


_TRANSITIONS = {
    Phase.IDLE: {Phase.PREPARING, Phase.STOPPED},
    Phase.PREPARING: {Phase.WRITING, Phase.IDLE, Phase.STOPPED},
    Phase.WRITING: {Phase.FLUSHING, Phase.IDLE, Phase.STOPPED},
    Phase.FLUSHING: {Phase.PUBLISHING, Phase.IDLE, Phase.STOPPED},
    Phase.PUBLISHING: {Phase.IDLE, Phase.STOPPED},
    Phase.STOPPED: set[Phase](),
}


@dataclass(slots=True, eq=False)
class _Work:
    """One snapshot in the making."""

    number: int
    lsn: int
    next_sequence: int
    file: File
    view: FrozenView
    backlog: deque[tuple[str, Record]]
    log_bytes: int
    """`Log.written_bytes` when it was taken."""
    end: int = frames.HEADER_BYTES
    records: int = 0


class Snapshotter:
    """Decides when a snapshot is due, and writes it."""

    def __init__(
        self,
        folder: Folder,
        scheduler: Scheduler,
        options: Options,
        state: State,
        log: Log,
        *,
        log_bytes: int,
        snapshot_bytes: int,
    ) -> None:
        """`log_bytes` and `snapshot_bytes`: the sizes that recovery found."""
        self.written = 0
        """Snapshots published."""
        self.last_error: OSError | None = None
        """Why the last attempt was given up; None after a success."""
        self._folder = folder
        self._scheduler = scheduler
        self._options = options
        self._state = state
        self._log = log
        self._phase = Phase.IDLE
        self._counted_from = -log_bytes
        """The value of `Log.written_bytes` from which the log's growth counts."""
        self._threshold = max(options.snapshot_log_bytes, snapshot_bytes)
        self._next: LogFile | None = None
        """The log file being prepared."""
        self._work: _Work | None = None
        self._packer = msgpack.Packer()

    @property
    def log_bytes(self) -> int:
        """The log's length since the last snapshot."""
        return self._log.written_bytes - self._counted_from

    def consider(self) -> None:
        """The log has grown: start a snapshot if one is due."""
        if self._phase is Phase.IDLE and self.log_bytes >= self._threshold:
            self._prepare()

    def stop(self) -> None:
        """The store closes or has failed: give up what is in the making."""
        if self._phase is not Phase.STOPPED:
            self._drop_work()
            self._move(Phase.STOPPED)

    # -- the next log file: until it is in use it is empty, and an empty one means nothing to recovery

    def _prepare(self) -> None:
        self._move(Phase.PREPARING)
        number = self._log.file_number + 1
        path = self._folder.log_path(number)
        try:
            file = self._folder.create(path, frames.LOG, number)
        except OSError as error:
            self._give_up(error)
            return
        size = frames.HEADER_BYTES + self._options.allocate_bytes
        self._next = LogFile(number, file, frames.HEADER_BYTES, size, 0)

        def flushed(error: OSError | None) -> None:
            if self._phase is not Phase.PREPARING:
                return
            if error is not None:
                self._give_up(error)
            else:
                self._name(path, self._switch)

        try:
            file.allocate(0, size)
            self._folder.disk.start_flush(file, flushed)
        except OSError as error:
            self._give_up(error)

    def _switch(self) -> None:
        successor = self._next
        assert successor is not None
        if self._log.state is not LogState.OPEN or not self._log.switch(successor):
            self.stop()
            return
        self._next = None
        state = self._state
        number = successor.number
        self._move(Phase.WRITING)
        try:
            file = self._folder.create(self._folder.snapshot_path(number), frames.SNAPSHOT, number)
        except OSError as error:
            self._give_up(error)
            return
        self._work = _Work(
            number=number,
            lsn=state.lsn,
            next_sequence=state.next_sequence,
            file=file,
            view=state.freeze(),
            backlog=deque(),
            log_bytes=self._log.written_bytes,
        )
        self._scheduler.call_soon(self._write_some, self._work)

    # -- the snapshot's file

    def _write_some(self, work: _Work) -> None:
        """One turn's share."""
        if work is not self._work:
            return
        if not work.backlog:
            taken = work.view.take(self._options.snapshot_turn_records)
            if taken is None:
                self._write_end(work)
                return
            work.backlog.extend(taken)
        pack = self._packer.pack
        parts: list[bytes] = []
        count = 0
        size = 0
        while work.backlog and size < self._options.snapshot_turn_bytes:
            key, (value, version) = work.backlog.popleft()
            parts += (pack(key), pack(version), pack(value))
            size += len(parts[-1])
            count += 1
        work.records += count
        head = self._packer.pack_array_header(3 * count)
        try:
            self._write_frame(work, frames.RECORDS, b"".join((head, *parts)))
        except OSError as error:
            self._give_up(error)
            return
        self._scheduler.call_later(self._options.snapshot_pause_ms, self._write_some, work)

    def _write_end(self, work: _Work) -> None:
        self._state.release()
        self._move(Phase.FLUSHING)
        try:
            self._write_frame(work, frames.END, msgpack.packb([work.records, work.next_sequence]))
            self._folder.disk.start_flush(work.file, lambda error: self._flushed(work, error))
        except OSError as error:
            self._give_up(error)

    def _write_frame(self, work: _Work, kind: int, payload: bytes) -> None:
        header = frames.encode_frame_header(work.number, work.end, kind, work.lsn, work.lsn, payload)
        work.end += work.file.pwritev([header, payload], work.end)

    def _flushed(self, work: _Work, error: OSError | None) -> None:
        if work is not self._work:
            return
        if error is not None:
            self._give_up(error)
            return
        # The log before it may be flushing yet, and is to be closed and removed: not before it is durable.
        self._log.when_durable(work.lsn, lambda failure: self._publish(work, failure))

    def _publish(self, work: _Work, failure: Exception | None) -> None:
        if work is not self._work or failure is not None:
            return
        self._move(Phase.PUBLISHING)
        work.file.close()
        self._name(self._folder.snapshot_path(work.number), lambda: self._published(work))

    def _published(self, work: _Work) -> None:
        self._work = None
        self.written += 1
        self.last_error = None
        self._counted_from = work.log_bytes
        self._threshold = max(self._options.snapshot_log_bytes, work.end - frames.HEADER_BYTES)
        self._move(Phase.IDLE)
        listing = self._folder.list()
        old = [self._folder.log_path(number) for number in listing.logs if number < work.number]
        old += [self._folder.snapshot_path(number) for number in listing.snapshots if number < work.number]
        try:
            for path in old:
                self._folder.disk.remove(path)
        except OSError as error:
            self.last_error = error  # what stays is removed with the next snapshot, or at the next start

    # -- ends

    def _name(self, path: str, done: Callable[[], None]) -> None:
        """Give a finished file its name, durably. A failed flush of the folder ends the log, like its own."""
        try:
            self._folder.finish(path)
        except OSError as error:
            self._give_up(error)
            return

        def flushed(error: OSError | None) -> None:
            if self._phase is Phase.STOPPED:
                return
            if error is None:
                done()
                return
            self.stop()
            if self._log.state is LogState.OPEN:
                self._log.fail(error)

        try:
            self._folder.disk.start_flush_dir(self._folder.path, flushed)
        except OSError as error:
            flushed(error)

    def _give_up(self, error: OSError) -> None:
        """Not now; again when the log has grown by as much as it takes for a snapshot."""
        self.last_error = error
        self._drop_work()
        self._threshold = self.log_bytes + self._options.snapshot_log_bytes
        self._move(Phase.IDLE)

    def _drop_work(self) -> None:
        work, self._work = self._work, None
        successor, self._next = self._next, None
        self._state.release()
        if work is not None:
            work.file.close()
            self._folder.give_up(self._folder.snapshot_path(work.number))
        if successor is not None:
            successor.file.close()
            self._folder.give_up(self._folder.log_path(successor.number))

    def _move(self, phase: Phase) -> None:
        if phase not in _TRANSITIONS[self._phase]:
            raise AssertionError(f"a snapshot cannot go from {self._phase.value} to {phase.value}")
        self._phase = phase
