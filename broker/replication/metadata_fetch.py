"""Fetches another node's snapshot of the metadata: one file, in parts, each asked for when the one before it is here.

    behind                               leader
    meta-snapshot?                  ->
                                    <-   meta-snapshot  lsn size          as of which entry; 0: there is none
    meta-part?  lsn position        ->
                                    <-   meta-part  lsn position bytes    and so on

The leader keeps the file open as it was when it was named, so that a newer snapshot does not end a fetch. What is lost
on the way is asked for again; when the leader stays silent, or has nothing of use, the fetch fails, and the group
begins another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.replication.patient_question import PatientQuestion
from broker.replication.transfer import PART_BYTES, FetchFailed, Send
from storage.clock import Scheduler, Timer
from storage.disk import File
from txn.metastore import CorruptStore, UnknownFormat
from txn.metastore.loading import Image
from txn.metastore.replicated_snapshots import ReplicatedSnapshots

KEEP_OPEN_MS: Final = 30_000
"""A file that nobody has asked of for so long is closed."""


class _Served:
    """One peer's fetch."""

    __slots__ = ("file", "lsn", "size", "timer")

    def __init__(self, lsn: int, file: File) -> None:
        self.lsn = lsn
        self.file = file
        self.size = file.size()
        self.timer: Timer | None = None


class SnapshotSource:
    """The side that has it. Any node may be asked: what a snapshot holds is committed."""

    def __init__(
        self,
        snapshots: ReplicatedSnapshots,
        scheduler: Scheduler,
        send: Send,
        *,
        part_bytes: int,
        failed: Callable[[OSError], None],
    ) -> None:
        self._snapshots = snapshots
        self._scheduler = scheduler
        self._send = send
        self._part_bytes = part_bytes
        self._failed = failed
        self._served: dict[int, _Served] = {}

    def asked_snapshot(self, peer: int) -> None:
        self._close(peer)
        try:
            found = self._snapshots.open_newest()
            if found is None:
                self._send(peer, ["meta-snapshot", 0, 0])
                return
            served = self._served[peer] = _Served(*found)
        except OSError as error:
            self._failed(error)
            return
        self._keep_open(peer, served)
        self._send(peer, ["meta-snapshot", served.lsn, served.size])

    def asked_part(self, peer: int, lsn: int, position: int) -> None:
        served = self._served.get(peer)
        if served is None or served.lsn != lsn:
            self._send(peer, ["meta-snapshot", 0, 0])
            return
        self._keep_open(peer, served)
        try:
            data = served.file.pread(self._part_bytes, position)
        except OSError as error:
            self._failed(error)
            return
        self._send(peer, ["meta-part", lsn, position, data])

    def close(self) -> None:
        for peer in list(self._served):
            self._close(peer)

    def _keep_open(self, peer: int, served: _Served) -> None:
        if served.timer is not None:
            served.timer.cancel()
        served.timer = self._scheduler.call_later(KEEP_OPEN_MS, self._close, peer)

    def _close(self, peer: int) -> None:
        served = self._served.pop(peer, None)
        if served is not None:
            if served.timer is not None:
                served.timer.cancel()
            served.file.close()


class SnapshotFetch:
    """Asks `source` for a snapshot as of `least_lsn` or later; then, once, `done(image, None)`, the file being durable
    and whole, or `done(None, error)`: `FetchFailed`, or an error of this node's own disk."""

    def __init__(
        self,
        snapshots: ReplicatedSnapshots,
        scheduler: Scheduler,
        send: Send,
        flush: Callable[[File, Callable[[OSError | None], None]], None],
        source: int,
        least_lsn: int,
        done: Callable[[Image | None, Exception | None], None],
    ) -> None:
        self.source = source
        self._snapshots = snapshots
        self._flush = flush
        self._least_lsn = least_lsn
        self._done = done
        self._is_over = False
        self._file: File | None = None
        self._lsn = 0
        self._size = 0
        self._position = 0
        self._question = PatientQuestion(scheduler, send, source, self.give_up)
        self._question.ask(["meta-snapshot?"])

    def close(self) -> None:
        """Nothing is told any more."""
        self._is_over = True
        self._question.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def give_up(self, reason: str) -> None:
        if not self._is_over:
            self._end(FetchFailed(reason))

    # What comes from other nodes.

    def heard_snapshot(self, peer: int, lsn: int, size: int) -> None:
        if self._is_over or peer != self.source or (self._file is not None and lsn):
            return
        if lsn < self._least_lsn:
            self.give_up(f"node {peer} has a snapshot as of {lsn}, {self._least_lsn} is needed")
            return
        try:
            self._file = self._snapshots.create_fetched()
        except OSError as error:
            self._end(error)
            return
        self._lsn = lsn
        self._size = size
        self._question.ask(["meta-part?", lsn, 0])

    def heard_part(self, peer: int, lsn: int, position: int, data: bytes) -> None:
        file = self._file
        if self._is_over or file is None or (peer, lsn, position) != (self.source, self._lsn, self._position):
            return
        if not data or position + len(data) > self._size:
            self.give_up(f"node {peer}'s snapshot ends at {position} of {self._size} bytes")
            return
        try:
            file.pwritev([data], position)
            self._position += len(data)
            if self._position < self._size:
                self._question.ask(["meta-part?", lsn, self._position])
                return
            self._question.answered()
            # Nothing is asked any more: a part that comes twice must not write while the flush runs.
            self._position = -1
            self._flush(file, self._flushed)
        except OSError as error:
            self._end(error)

    def _flushed(self, error: OSError | None) -> None:
        if self._is_over:
            return
        if error is not None:
            self._end(error)
            return
        try:
            image = self._snapshots.read_fetched()
        except (CorruptStore, UnknownFormat) as reason:
            self.give_up(f"what came is no snapshot: {reason}")
            return
        except OSError as reason:
            self._end(reason)
            return
        self.close()
        self._done(image, None)

    def _end(self, error: Exception) -> None:
        self.close()
        self._done(None, error)


DEFAULT_PART_BYTES: Final = PART_BYTES
