"""What a node promised in its terms, of all its groups: `raftish.host.HardStates` in one file, with one flush for all.

    place k    two sectors of 4096 bytes, written in turn; the one with the higher number counts
    sector     number u64 | group u64 | since u64 | term u64 | vote i64 | crc32c; group 0: the place is free
    since      its highest bits: LEFT, the group has moved away from this node; COMING, it comes back

A device writes a sector whole or not at all, so a power cut leaves the new promise there or the one before. Guarantee:
a place that was damaged later is refused (`Fatal`), since its other sector holds an earlier promise: to go by that
could mean a second vote in a term. `since` is the owner's word of when the group came here, or left. What was promised
is kept when a group leaves, until the group is no more: so an older word of when it came does not bring it back, and if
it does come back, its term and vote are what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c

from broker.replication.store import Fatal
from raftish.entries import HardState
from storage.clock import Scheduler
from storage.disk import Disk
from storage.flusher import GroupFlusher, tell_all

SECTOR_BYTES: Final = 4096
PLACE_BYTES: Final = 2 * SECTOR_BYTES
_SECTOR: Final = Struct(">QQQQqI")
_NOBODY: Final = -1
_FREE: Final = 0
_LEFT: Final = 1 << 63
_COMING: Final = 1 << 62
_SINCE: Final = _COMING - 1
_ADVICE: Final = "this node has lost what it promised, and its folder must not be used any more"


@dataclass(slots=True)
class _Place:
    position: int
    number: int
    group: int
    since: int
    hard_state: HardState


def _packed(place: _Place) -> bytes:
    vote = _NOBODY if place.hard_state.vote is None else place.hard_state.vote
    head = _SECTOR.pack(place.number, place.group, place.since, place.hard_state.term, vote, 0)[:-4]
    return head + crc32c(head).to_bytes(4, "big")


class HardStateTable:
    """Raises OSError, `Fatal`. What is `found` after a start is flushed. `is_new`: the file was not there."""

    def __init__(self, disk: Disk, scheduler: Scheduler, path: str) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self.is_new = not disk.exists(path)
        if self.is_new:
            disk.open(path, create=True).close()
            disk.flush_dir(path.rpartition("/")[0])
        self._file = disk.open(path)
        self._places: dict[int, _Place] = {}
        self._free: list[_Place] = []
        count = -(-self._file.size() // PLACE_BYTES)
        for number in range(count):
            self._read(path, number * PLACE_BYTES)
        self._end = count * PLACE_BYTES
        self._file.flush()
        self._lsn = 0
        self._flusher = GroupFlusher(scheduler, self, 0)

    def _read(self, path: str, position: int) -> None:
        sectors: list[_Place] = []
        empty = 0
        for turn in (0, 1):
            data = self._file.pread(_SECTOR.size, position + turn * SECTOR_BYTES).ljust(_SECTOR.size, b"\0")
            if not any(data):
                empty += 1
                continue
            number, group, since, term, vote, crc = _SECTOR.unpack(data)
            if crc32c(data[:-4]) != crc or number % 2 != turn:
                raise Fatal(f"{path} is damaged at byte {position}: {_ADVICE}")
            state = HardState(term, None if vote == _NOBODY else vote)
            sectors.append(_Place(position, number, group, since, state))
        place = max(
            sectors, key=lambda one: one.number, default=_Place(position, 0, 0, 0, HardState(0, None))
        )
        if empty:
            # Both are written before a group takes part: a place that was still being made promised nothing.
            if place.number > 2 or place.hard_state.vote is not None:
                raise Fatal(f"{path} lacks what it had at byte {position}: {_ADVICE}")
            place.group = _FREE
        if place.group == _FREE:
            self._free.append(place)
        elif place.group in self._places:
            raise Fatal(f"{path} names group {place.group} twice: {_ADVICE}")
        else:
            self._places[place.group] = place

    @property
    def groups(self) -> dict[int, int]:
        """Those that have a place, each with its `since`."""
        return {group: place.since & _SINCE for group, place in self._places.items()}

    def since(self, group: int) -> int | None:
        """None: it has no place."""
        place = self._places.get(group)
        return place.since & _SINCE if place is not None else None

    def has_left(self, group: int) -> bool:
        """Whether the group has moved away, and its place is kept for what it promised."""
        return group in self._places and bool(self._places[group].since & _LEFT)

    def is_coming(self, group: int) -> bool:
        """Whether it comes back, and nothing is here of it yet that counts."""
        return bool(self._places[group].since & _COMING)

    def leave(self, group: int, since: int) -> None:
        self._mark(group, since | _LEFT)

    def come_back(self, group: int, since: int) -> None:
        assert self.has_left(group)
        self._mark(group, since | _COMING)

    def came_back(self, group: int) -> None:
        """What is here of it counts from now on."""
        self._mark(group, self._places[group].since & _SINCE)

    def _mark(self, group: int, since: int) -> None:
        place = self._places[group]
        place.since = since
        self._put(place)

    def __contains__(self, group: int) -> bool:
        return group in self._places

    def state(self, group: int) -> HardState:
        return self._places[group].hard_state

    def add(self, group: int, since: int, term: int = 0) -> None:
        """A place for a group that begins here, in a term in which nobody leads. It takes part when that is durable."""
        assert group != _FREE
        assert group not in self._places, f"group {group} has a place already"
        if self._free:
            place = self._free.pop()
        else:
            place = _Place(self._end, 0, 0, 0, HardState(0, None))
            self._end += PLACE_BYTES
        place.group, place.since, place.hard_state = group, since, HardState(term, None)
        self._places[group] = place
        self._put(place)
        self._put(place)

    def write(self, group: int, hard_state: HardState) -> None:
        place = self._places[group]
        place.hard_state = hard_state
        self._put(place)

    def remove(self, group: int) -> None:
        """What it promised is of no use to anybody any more: the group is gone, or this node's part in it."""
        place = self._places.pop(group)
        place.group, place.since, place.hard_state = _FREE, 0, HardState(0, None)
        self._put(place)
        self._put(place)
        self._free.append(place)

    def _put(self, place: _Place) -> None:
        place.number += 1
        self._file.pwritev([_packed(place)], place.position + place.number % 2 * SECTOR_BYTES)
        self._lsn += 1
        self._flusher.wrote(self._lsn)

    def when_all_durable(self, callback: Callable[[Exception | None], None]) -> None:
        self._flusher.when_durable(self._lsn, callback)

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
