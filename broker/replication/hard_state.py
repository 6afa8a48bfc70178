"""What a node promised in its term, in one small file: `raftish.host.HardStates` of a single group.

Two places are written in turn; the one with the higher number counts. Each lies in a sector of its own, which a device
writes whole or not at all, so that a power cut leaves the new promise there or the one before. Guarantee: a place that
was damaged later is refused (`Fatal`), since the other one holds an earlier promise: to go by that could mean a second
vote in a term.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from crc32c import crc32c

from broker.replication.store import Fatal
from raftish.entries import HardState
from storage.clock import Scheduler
from storage.disk import Disk
from storage.flusher import GroupFlusher, tell_all

_PLACE_BYTES: Final = 4096
_STATE: Final = Struct(">QQqI")
NOBODY: Final = -1
_ADVICE: Final = "give this node an empty folder, it fetches the state"


def _packed(number: int, hard_state: HardState) -> bytes:
    vote = NOBODY if hard_state.vote is None else hard_state.vote
    head = _STATE.pack(number, hard_state.term, vote, 0)[:-4]
    return head + crc32c(head).to_bytes(4, "big")


def _create(disk: Disk, path: str) -> None:
    """Whole or not at all, and durable: both places say that nothing was promised."""
    new = path + ".new"
    if disk.exists(new):
        disk.remove(new)
    file = disk.open(new, create=True)
    for number in (0, 1):
        file.pwritev([_packed(number, HardState(0, None))], number * _PLACE_BYTES)
    file.flush()
    file.close()
    disk.rename(new, path)
    disk.flush_dir(path.rpartition("/")[0])


class HardStateFile:
    """Raises OSError, `Fatal`. What is `current` after a start is flushed."""

    def __init__(self, disk: Disk, scheduler: Scheduler, path: str) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self.is_new = not disk.exists(path)
        """Neither this node nor one that had this folder before has begun to take part."""
        if self.is_new:
            _create(disk, path)
        self._file = disk.open(path)
        self._number = 0
        self.current = HardState(0, None)
        empty = 0
        for place in (0, 1):
            data = self._file.pread(_STATE.size, place * _PLACE_BYTES).ljust(_STATE.size, b"\0")
            if not any(data):
                empty += 1
                continue
            number, term, vote, crc = _STATE.unpack(data)
            if crc32c(data[:-4]) != crc or number % 2 != place:
                raise Fatal(f"{path} is damaged: {_ADVICE}")
            if number > self._number:
                self._number = number
                self.current = HardState(term, None if vote == NOBODY else vote)
        # Versions before this one left the second place empty until the second promise.
        if empty and (self._number != 1 or self.current.term == 0):
            raise Fatal(f"{path} lacks what it had: {_ADVICE}")
        self._file.flush()
        self._flusher = GroupFlusher(scheduler, self, 0, self._number)

    def write(self, group: int, hard_state: HardState) -> None:
        self._number += 1
        self.current = hard_state
        self._file.pwritev([_packed(self._number, hard_state)], self._number % 2 * _PLACE_BYTES)
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
