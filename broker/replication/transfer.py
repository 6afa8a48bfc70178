"""Fetches the leader's state, for a node that is farther behind than the leader's log goes back.

    behind                            leader
    NAMES                       ->
                                <-    names, as of an index (`Store.capture`)
    PART number position        ->
                                <-    bytes, or that the file is gone      and so on, file by file

The leader goes on meanwhile, so files are copied as of later moments: what came between is in the log, which is applied
to them once more (`ops`). Until all is there and durable the files are of no use, and the file `fetching` says so: the
node takes no part in the group then, and a start fetches again. When the leader falls silent it is begun anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgpack

from broker.replication.raft_log import FileLog
from broker.replication.store import Store
from storage.clock import Scheduler, Timer
from storage.disk import File

PART_BYTES: Final = 1 << 20
PATIENCE_MS: Final = 3000
RETRY_MS: Final = 200

Send = Callable[[int, list[Any]], None]
"""(peer, note): sends it, or loses it."""


class FetchFailed(Exception):
    """Nothing was changed here."""


class Source:
    """The leader's side: answers from its store."""

    def __init__(self, store: Store, send: Send) -> None:
        self._store = store
        self._send = send

    def asked_names(self, peer: int) -> None:
        self._send(peer, ["names", self._store.capture().packed])

    def asked_part(self, peer: int, number: int, position: int) -> None:
        path = Store.path(number)
        disk = self._store.disk
        if not disk.exists(path):
            self._send(peer, ["part", number, position, None, 0])
            return
        file = disk.open_readonly(path)
        try:
            self._send(peer, ["part", number, position, file.pread(PART_BYTES, position), file.size()])
        finally:
            file.close()


class Fetch:
    """Asks `leader()` until it has all; then `done`, once. `failed` hears of an error of this node's own disk."""

    def __init__(
        self,
        store: Store,
        log: FileLog,
        scheduler: Scheduler,
        send: Send,
        *,
        leader: Callable[[], int | None],
        done: Callable[[], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._store = store
        self._log = log
        self._scheduler = scheduler
        self._send = send
        self._leader = leader
        self._done = done
        self._failed = failed
        self._source: int | None = None
        self._numbers: list[int] = []
        self._file: File | None = None
        self._position = 0
        self._packed = b""
        self._timer: Timer | None = None
        self._is_closed = False

    def start(self) -> None:
        self._close_file()
        self._packed = b""
        self._source = self._leader()
        if self._source is None:
            self._arm(RETRY_MS)
        else:
            self._ask(["names?"])

    def close(self) -> None:
        self._is_closed = True
        self._disarm()
        self._close_file()

    def _ask(self, note: list[Any]) -> None:
        assert self._source is not None
        self._arm(PATIENCE_MS)
        self._send(self._source, note)

    def _arm(self, delay_ms: int) -> None:
        self._disarm()
        self._timer = self._scheduler.call_later(delay_ms, self.start)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def names(self, peer: int, packed: bytes) -> None:
        if self._is_closed or peer != self._source or self._packed:
            return
        self._packed = packed
        self._numbers = sorted(msgpack.unpackb(packed, strict_map_key=False)[3].values())
        self._next_file()

    def _next_file(self) -> None:
        self._close_file()
        if not self._numbers:
            self._install()
            return
        try:
            self._file = self._store.replace(self._numbers[-1])
        except OSError as error:
            self.close()
            self._failed(error)
            return
        self._position = 0
        self._ask(["part?", self._numbers[-1], 0])

    def part(self, peer: int, number: int, position: int, data: bytes | None, size: int) -> None:
        if self._is_closed or self._file is None or not self._numbers:
            return
        if (peer, number, position) != (self._source, self._numbers[-1], self._position):
            return
        if data:
            try:
                self._file.pwritev([data], position)
            except OSError as error:
                self.close()
                self._failed(error)
                return
            self._position += len(data)
            if self._position < size:
                self._ask(["part?", number, self._position])
                return
        self._numbers.pop()
        self._next_file()

    def _install(self) -> None:
        self.close()

        def durable(error: OSError | None) -> None:
            try:
                if error is not None:
                    raise error
                if self._log.term_at(self._store.index) != self._store.term:
                    # All up to there is in the state; what the log has beyond, if anything, is of another history.
                    self._log.restart_at(self._store.index, self._store.term)
                self._store.is_whole_again()
            except OSError as failure:
                self._failed(failure)
                return
            self._done()

        self._store.take(self._packed)
        self._store.checkpoint(self._store.capture(), durable)
