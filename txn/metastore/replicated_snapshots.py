"""The snapshots of one node in a group: one file, replaced as a whole by the next, written here or fetched.

    snapshot-0000000001        the newest one; its lsn and its writer's note are inside
    snapshot-0000000001.new    being written
    fetched                    being fetched from another node

Guarantees: a file with its name is whole and durable, so a crash at any point leaves the old one or the new one; the
owner hears of one (`published`) when that is so, and may drop the group's log up to there. One that cannot be
written is given up, and tried again when the log has grown further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from storage.clock import Scheduler
from storage.disk import File
from txn.metastore import frames
from txn.metastore.files import Folder
from txn.metastore.loading import Image, load_snapshot
from txn.metastore.ops import Value
from txn.metastore.schema import Options
from txn.metastore.snapshot_file import SnapshotFile
from txn.metastore.state import Batch, State
from txn.metastore.waiters import Callback

NUMBER: Final = 1
FETCHED: Final = "fetched"


def load_newest(folder: Folder) -> Image:
    """What was being made is removed; the newest snapshot is durable when this returns, and read."""
    folder.make()
    listing = folder.list()
    for path in listing.unfinished:
        folder.disk.remove(path)
    fetched = _fetched_path(folder)
    if folder.disk.exists(fetched):
        folder.disk.remove(fetched)
    # What a killed process renamed may not be durable yet.
    folder.disk.flush_dir(folder.path)
    image = Image()
    if folder.disk.exists(folder.snapshot_path(NUMBER)):
        image.snapshot_number = NUMBER
        load_snapshot(folder, image)
    return image


def _fetched_path(folder: Folder) -> str:
    return f"{folder.path}/{FETCHED}" if folder.path else FETCHED


def _at_once(callback: Callback) -> None:
    callback(None)


class ReplicatedSnapshots:
    def __init__(
        self, folder: Folder, scheduler: Scheduler, options: Options, state: State, snapshot_bytes: int
    ) -> None:
        self.written = 0
        self.last_error: OSError | None = None
        """Why the last attempt was given up; None after a success."""
        self.published: Callable[[int], None] = lambda lsn: None
        """Called with the lsn of a snapshot that was written here and is durable under its name."""
        self.when_log_durable: Callable[[Callback], None] = _at_once
        """Calls back when the group's log has, durably, all that was committed by now: no snapshot is ahead of it."""
        self.failed: Callable[[OSError], None] = lambda error: None
        """The folder cannot be flushed: nobody knows what is under the names any more."""
        self._folder = folder
        self._scheduler = scheduler
        self._options = options
        self._state = state
        self._grown_bytes = 0
        self._counted_bytes = 0
        """Of `_grown_bytes`, what the snapshot in the making has."""
        self._threshold = max(options.snapshot_log_bytes, snapshot_bytes)
        self._work: SnapshotFile | None = None
        self._is_naming = False
        self._is_stopped = False

    @property
    def log_bytes(self) -> int:
        """Of batches since the last snapshot."""
        return self._grown_bytes

    @property
    def is_due(self) -> bool:
        return self._work is None and not self._is_naming and self._grown_bytes >= self._threshold

    def grew(self, size_bytes: int) -> None:
        self._grown_bytes += size_bytes

    def begin(self, lsn: int, next_sequence: int, uncommitted: Sequence[Batch], note: Value) -> None:
        if self._work is not None or self._is_naming or self._is_stopped:
            return
        try:
            self._work = SnapshotFile(
                self._folder,
                self._scheduler,
                self._options,
                self._state,
                NUMBER,
                lsn=lsn,
                next_sequence=next_sequence,
                without=uncommitted,
                note=note,
                all_taken=lambda: None,
                done=self._written,
            )
        except OSError as error:
            self._give_up(error)
            return
        self._counted_bytes = self._grown_bytes

    def drop(self) -> None:
        """Give up what is in the making."""
        work, self._work = self._work, None
        if work is not None:
            work.drop()

    def stop(self) -> None:
        self.drop()
        self._is_stopped = True

    def _written(self, error: OSError | None) -> None:
        work = self._work
        assert work is not None
        if error is not None:
            self._give_up(error)
            return

        def log_is_durable(failure: Exception | None) -> None:
            if failure is None and work is self._work:
                self._publish(work)

        self.when_log_durable(log_is_durable)

    def _publish(self, work: SnapshotFile) -> None:
        def named(error: OSError | None) -> None:
            self._is_naming = False
            if error is not None:
                self.failed(error)
                return
            self.written += 1
            self.last_error = None
            self.published(work.lsn)

        try:
            work.finish()
        except OSError as error:
            self._give_up(error)
            return
        self._work = None
        self._grown_bytes -= self._counted_bytes
        self._threshold = max(self._options.snapshot_log_bytes, work.end - frames.HEADER_BYTES)
        self._name(named)

    def _name(self, done: Callable[[OSError | None], None]) -> None:
        """The folder's names are durable. One flush of it at a time."""
        self._is_naming = True
        try:
            self._folder.disk.start_flush_dir(self._folder.path, done)
        except OSError as error:
            done(error)

    def _give_up(self, error: OSError) -> None:
        self.last_error = error
        self.drop()
        self._threshold = self._grown_bytes + self._options.snapshot_log_bytes

    # Other nodes' snapshots.

    def open_newest(self) -> tuple[int, File] | None:
        """(lsn, the file), to be read and closed by the caller; a newer one leaves it as it is. None: there is none."""
        path = self._folder.snapshot_path(NUMBER)
        if self._is_naming or not self._folder.disk.exists(path):
            return None
        file = self._folder.disk.open_readonly(path)
        header = file.pread(frames.FRAME_HEADER_BYTES, frames.HEADER_BYTES)
        return frames.lsn_of(header), file

    def create_fetched(self) -> File:
        """An empty file for what another node sends. Raises OSError."""
        path = _fetched_path(self._folder)
        if self._folder.disk.exists(path):
            self._folder.disk.remove(path)
        return self._folder.disk.open(path, create=True)

    def read_fetched(self) -> Image:
        """It is whole and flushed. Blocks. Raises `CorruptStore`, `UnknownFormat`, OSError."""
        image = Image(snapshot_number=NUMBER)
        load_snapshot(self._folder, image, _fetched_path(self._folder))
        return image

    def take_fetched(self, image: Image, done: Callable[[OSError | None], None]) -> None:
        """It becomes the newest one, in place of what is there or in the making; `done` when that is durable."""
        self.drop()

        def named(error: OSError | None) -> None:
            self._is_naming = False
            done(error)

        try:
            self._folder.disk.rename(_fetched_path(self._folder), self._folder.snapshot_path(NUMBER))
        except OSError as error:
            self._scheduler.call_soon(done, error)
            return
        self._grown_bytes = 0
        self._threshold = max(self._options.snapshot_log_bytes, image.snapshot_bytes)
        self._name(named)
