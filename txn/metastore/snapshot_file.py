"""One snapshot's file in the making: a frozen view of the state, written a turn's share at a time, then flushed.

Guarantees that service never waits (a turn takes on a bounded number of records and bytes, the flush runs off the
loop), and that the file is whole and durable when that is said. It keeps its unfinished name: publishing it is the
owner's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgpack

from storage.clock import Scheduler
from txn.metastore import frames
from txn.metastore.files import Folder
from txn.metastore.ops import Record, Value
from txn.metastore.schema import Options
from txn.metastore.state import Batch, State

Written = Callable[[OSError | None], None]


class SnapshotFile:
    """Raises OSError where the file cannot be made."""

    def __init__(
        self,
        folder: Folder,
        scheduler: Scheduler,
        options: Options,
        state: State,
        number: int,
        *,
        lsn: int,
        next_sequence: int,
        without: Sequence[Batch] = (),
        note: Value = None,
        all_taken: Callable[[], None],
        done: Written,
    ) -> None:
        """Of the state as it is now, without the effects of the batches in `without` (`State.freeze`).

        `lsn` and `next_sequence` are those before them; `note` is the owner's. `all_taken` when the state has been
        read to its end, `done` when the file is durable, or cannot be.
        """
        self.number = number
        self.lsn = lsn
        self.next_sequence = next_sequence
        self.note = note
        self.end = frames.HEADER_BYTES
        self.records = 0
        self.file = folder.create(folder.snapshot_path(number), frames.SNAPSHOT, number)
        self._folder = folder
        self._scheduler = scheduler
        self._options = options
        self._state = state
        self._view = state.freeze(without)
        self._all_taken = all_taken
        self._done = done
        self._backlog: deque[tuple[str, Record]] = deque()
        self._is_frozen = True
        self._is_over = False
        self._packer = msgpack.Packer()
        scheduler.call_soon(self._write_some)

    def drop(self) -> None:
        """Give it up; nobody is told anything any more."""
        if not self._is_over:
            self._end()
            self.file.close()
            self._folder.give_up(self._folder.snapshot_path(self.number))

    def finish(self) -> None:
        """Give the file its name, after `done`; durable with the folder. Raises OSError."""
        self.file.close()
        self._folder.finish(self._folder.snapshot_path(self.number))

    def _write_some(self) -> None:
        """One turn's share."""
        if self._is_over:
            return
        if not self._backlog:
            taken = self._view.take(self._options.snapshot_turn_records)
            if taken is None:
                self._write_end()
                return
            self._backlog.extend(taken)
        pack = self._packer.pack
        parts: list[bytes] = []
        count = 0
        size = 0
        while self._backlog and size < self._options.snapshot_turn_bytes:
            key, (value, version) = self._backlog.popleft()
            parts += (pack(key), pack(version), pack(value))
            size += len(parts[-1])
            count += 1
        self.records += count
        head = self._packer.pack_array_header(3 * count)
        try:
            self._write_frame(frames.RECORDS, b"".join((head, *parts)))
        except OSError as error:
            self._done(error)
            return
        self._scheduler.call_later(self._options.snapshot_pause_ms, self._write_some)

    def _write_end(self) -> None:
        self._release()
        self._all_taken()
        end = [self.records, self.next_sequence]
        if self.note is not None:
            end.append(self.note)
        try:
            self._write_frame(frames.END, msgpack.packb(end))
            self._folder.disk.start_flush(self.file, self._flushed)
        except OSError as error:
            self._done(error)

    def _write_frame(self, kind: int, payload: bytes) -> None:
        header = frames.encode_frame_header(self.number, self.end, kind, self.lsn, self.lsn, payload)
        self.end += self.file.pwritev([header, payload], self.end)

    def _flushed(self, error: OSError | None) -> None:
        if not self._is_over:
            self._done(error)

    def _release(self) -> None:
        if self._is_frozen:
            self._is_frozen = False
            self._state.release()

    def _end(self) -> None:
        self._is_over = True
        self._release()
