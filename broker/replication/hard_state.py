"""What a node promised in its term, in one small file: `raftish.host.HardStates` of a single group.

Two places are written in turn, so that a torn write leaves the state before it; the one with the higher number counts.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from crc32c import crc32c

from raftish.entries import HardState
from storage.clock import Scheduler
from storage.disk import Disk
from storage.flusher import GroupFlusher, tell_all

_PLACE_BYTES: Final = 4096
_STATE: Final = Struct(">QQqI")
NOBODY: Final = -1


class HardStateFile:
    """Raises OSError. What is `current` after a start is flushed."""

    def __init__(self, disk: Disk, scheduler: Scheduler, path: str) -> None:
        self._disk = disk
        self._scheduler = scheduler
        is_new = not disk.exists(path)
        self._file = disk.open(path, create=is_new)
        self._number = 0
        self.current = HardState(0, None)
        for place in (0, 1):
            data = self._file.pread(_STATE.size, place * _PLACE_BYTES)
            if len(data) == _STATE.size and crc32c(data[:-4]) == int.from_bytes(data[-4:], "big"):
                number, term, vote, _ = _STATE.unpack(data)
                if number > self._number:
                    self._number = number
                    self.current = HardState(term, None if vote == NOBODY else vote)
        if is_new:
            disk.flush_dir(path.rpartition("/")[0])
        self._file.flush()
        self._flusher = GroupFlusher(scheduler, self, 0, self._number)

    def write(self, group: int, hard_state: HardState) -> None:
        self._number += 1
        self.current = hard_state
        vote = NOBODY if hard_state.vote is None else hard_state.vote
        head = _STATE.pack(self._number, hard_state.term, vote, 0)[:-4]
        self._file.pwritev([head + crc32c(head).to_bytes(4, "big")], self._number % 2 * _PLACE_BYTES)
        self._flusher.wrote(self._number)

    def write_now(self, hard_state: HardState) -> None:
        """For a file that no group uses; blocks until it is durable."""
        self.write(0, hard_state)
        self._file.flush()

    def when_all_durable(self, callback: Callable[[Exception | None], None]) -> None:
        self._flusher.when_durable(self._number, callback)

    def start_round(self) -> None:
        self._disk.start_flush(self._file, self._flushed)

    def _flushed(self, error: OSError | None) -> None:
        if error is not None:
            tell_all(self._scheduler, self._flusher.stop(error), error)
            return
        callbacks = self._flusher.round_done()
        self._flusher.proceed()
        tell_all(self._scheduler, callbacks, None)

    def close(self) -> None:
        self._file.close()
