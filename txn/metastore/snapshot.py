"""Snapshots: written beside the running service, so that the log before them can go.

Guarantees that service never waits (a turn takes on a bounded number of records and bytes, every flush runs
off the loop), and that a crash at any point recovers to the same state: the old files go only when the
snapshot has its name, durably, and the log is durable up to where the snapshot was taken. A snapshot that
cannot be written is given up and tried again when the log has grown further; the log goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from storage.clock import Scheduler
from txn.metastore import frames
from txn.metastore.files import Folder
from txn.metastore.log import Log, LogFile, LogState
from txn.metastore.schema import Options
from txn.metastore.snapshot_file import SnapshotFile
from txn.metastore.state import State


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
        self._work: SnapshotFile | None = None
        self._taken_at_bytes = 0
        """`Log.written_bytes` when the snapshot in the making was taken."""

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
                self._name(lambda: self._folder.finish(path), self._switch)

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
        self._move(Phase.WRITING)
        try:
            self._work = SnapshotFile(
                self._folder,
                self._scheduler,
                self._options,
                state,
                successor.number,
                lsn=state.lsn,
                next_sequence=state.next_sequence,
                all_taken=lambda: self._move(Phase.FLUSHING),
                done=self._written,
            )
        except OSError as error:
            self._give_up(error)
            return
        self._taken_at_bytes = self._log.written_bytes

    # -- the snapshot's file

    def _written(self, error: OSError | None) -> None:
        work = self._work
        assert work is not None
        if error is not None:
            self._give_up(error)
            return
        # The log before it may be flushing yet, and is to be closed and removed: not before it is durable.
        self._log.when_durable(work.lsn, lambda failure: self._publish(work, failure))

    def _publish(self, work: SnapshotFile, failure: Exception | None) -> None:
        if work is not self._work or failure is not None:
            return
        self._move(Phase.PUBLISHING)
        self._name(work.finish, lambda: self._published(work))

    def _published(self, work: SnapshotFile) -> None:
        self._work = None
        self.written += 1
        self.last_error = None
        self._counted_from = self._taken_at_bytes
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

    def _name(self, finish: Callable[[], None], done: Callable[[], None]) -> None:
        """Let a finished file have its name, durably. A failed flush of the folder ends the log, like its own."""
        try:
            finish()
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
        if work is not None:
            work.drop()
        if successor is not None:
            successor.file.close()
            self._folder.give_up(self._folder.log_path(successor.number))

    def _move(self, phase: Phase) -> None:
        if phase not in _TRANSITIONS[self._phase]:
            raise AssertionError(f"a snapshot cannot go from {self._phase.value} to {phase.value}")
        self._phase = phase
