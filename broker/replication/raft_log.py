"""A group's log in files: `raftish.host.GroupLog`.

    file     first index u64 | term of the entry before it u64 | crc32c u32, then frames, then zeros
    frame    size of the payload + 1 u32 | crc32c u32 of what follows | term u64 | index u64 | kind u8 | payload

Guarantees: `write` then `when_all_durable` means that all of it is on the device; what is cut off never comes back, for
the cut is on the device before anything is written over its place; a file that is not the last one must be whole
(`CorruptRaftLog`), the last one loses what was torn, but nothing that was noted as durable (`durable_mark`). What a
checkpoint covers is dropped by whole files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Final

from crc32c import crc32c
from typing_extensions import Buffer

from broker.replication.durable_mark import DurableMark
from broker.replication.folder import make_dir_durable
from raftish import membership
from raftish.entries import Entry, Kind
from raftish.membership import Membership
from storage.clock import Scheduler
from storage.disk import Disk, File
from storage.flusher import GroupFlusher, tell_all

_HEAD: Final = Struct(">QQI")
_FRAME: Final = Struct(">IIQQB")
_CHECKED: Final = Struct(">QQB")
_READ_BYTES: Final = 4 << 20
SUFFIX: Final = ".raft"
MARK: Final = "durable"


class CorruptRaftLog(Exception):
    """The log lacks what it had: this node must not take part. Give it an empty folder; it fetches the state."""


class _Part:
    """One file. `positions` of its frames; the last one ends at `end`."""

    __slots__ = (
        "allocated",
        "durable_end",
        "end",
        "file",
        "first",
        "path",
        "positions",
        "previous_term",
        "terms",
    )

    def __init__(self, path: str, file: File, first: int, previous_term: int) -> None:
        self.path = path
        self.file = file
        self.first = first
        self.previous_term = previous_term
        self.positions: list[int] = []
        self.terms: list[int] = []
        self.end = self.durable_end = _HEAD.size
        self.allocated = 0

    @property
    def last(self) -> int:
        return self.first + len(self.positions) - 1

    def end_of(self, index: int) -> int:
        at = index + 1 - self.first
        return self.positions[at] if at < len(self.positions) else self.end


class FileLog:
    """Blocks while it reads what is there. Raises OSError, `CorruptRaftLog`."""

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        directory: str,
        *,
        part_bytes: int = 64 << 20,
        step_bytes: int = 16 << 20,
    ) -> None:
        """A file is begun behind `part_bytes`, and allocated by `step_bytes`."""
        self._disk = disk
        self._scheduler = scheduler
        self._directory = directory
        self._part_bytes = part_bytes
        self._step_bytes = min(step_bytes, part_bytes)
        self._written = 0
        self._awaited = 0
        self._parts: list[_Part] = []
        self._members: list[tuple[int, bytes]] = []
        """(index, payload) of the entries that change the group's members."""
        self._flusher = GroupFlusher(scheduler, self, 0)
        make_dir_durable(disk, directory)
        names = [name for name in disk.list(directory) if name.endswith(SUFFIX)]
        for name in names:
            self._open(f"{directory}/{name}", is_last=name == names[-1])
        if not self._parts:
            self._begin(1, 0)
        self._mark = DurableMark(disk, f"{directory}/{MARK}")
        if self._mark.index > self.last_index:
            raise CorruptRaftLog(
                f"{self._parts[-1].path}: its entries {self.last_index + 1} to {self._mark.index} are damaged or gone"
            )

    # Reading: `LogView`.

    @property
    def first_index(self) -> int:
        return self._parts[0].first

    @property
    def last_index(self) -> int:
        return self._parts[-1].last

    @property
    def size_bytes(self) -> int:
        return sum(part.end for part in self._parts)

    def members_after(self, index: int) -> list[tuple[int, Membership]]:
        """(index, members) of the entries behind `index` that change them."""
        return [(at, membership.decode(payload)) for at, payload in self._members if at > index]

    def term_at(self, index: int) -> int | None:
        if index == self.first_index - 1:
            return self._parts[0].previous_term
        if not self.first_index <= index <= self.last_index:
            return None
        part = self._part_of(index)
        return part.terms[index - part.first]

    def entries(self, first: int, last: int, max_bytes: int) -> Sequence[Entry]:
        part = self._part_of(first)
        start = part.positions[first - part.first]
        room = start + max_bytes + _FRAME.size
        # All that end within the room; the first one in any case.
        fitting = len(part.positions) if part.end <= room else bisect_right(part.positions, room) - 1
        upto = max(first, min(last, part.first + fitting - 1))
        data = part.file.pread(part.end_of(upto) - start, start)
        found: list[Entry] = []
        at = 0
        while at < len(data):
            entry, at = self._parse(part, data, at, first + len(found))
            found.append(entry)
        return found

    def _part_of(self, index: int) -> _Part:
        return self._parts[bisect_right(self._parts, index, key=lambda part: part.first) - 1]

    @staticmethod
    def _parse(part: _Part, data: bytes, at: int, index: int) -> tuple[Entry, int]:
        size, crc, term, found, kind = _FRAME.unpack_from(data, at)
        end = at + _FRAME.size + size - 1
        if not size or end > len(data) or found != index:
            raise CorruptRaftLog(f"{part.path}: no entry {index} where it was written")
        if crc32c(memoryview(data)[at + 8 : end]) != crc:
            raise CorruptRaftLog(f"{part.path}: entry {index} is damaged")
        return Entry(term, index, Kind(kind), data[at + _FRAME.size : end]), end

    # Writing.

    def write(self, truncate_from: int | None, entries: Sequence[Entry]) -> None:
        if truncate_from is not None:
            self._cut(truncate_from)
        buffers: list[Buffer] = []
        part = self._parts[-1]
        start = end = part.end
        for entry in entries:
            if end >= self._part_bytes:
                self._put(part, buffers, start, end)
                buffers = []
                # Only the last file may be torn.
                part.file.flush()
                part.durable_end = part.end
                part = self._begin(entry.index, part.terms[-1])
                start = end = part.end
            checked = _CHECKED.pack(entry.term, entry.index, entry.kind)
            crc = crc32c(entry.payload, crc32c(checked))
            buffers += (
                _FRAME.pack(len(entry.payload) + 1, crc, entry.term, entry.index, entry.kind),
                entry.payload,
            )
            part.positions.append(end)
            part.terms.append(entry.term)
            self._note(entry)
            end += _FRAME.size + len(entry.payload)
        self._put(part, buffers, start, end)
        self._flusher.wrote(self._written)

    def _note(self, entry: Entry) -> None:
        if entry.kind is Kind.MEMBERSHIP:
            self._members.append((entry.index, entry.payload))

    def _put(self, part: _Part, buffers: list[Buffer], start: int, end: int) -> None:
        if end > part.allocated:
            size = -(-(end - part.allocated) // self._step_bytes) * self._step_bytes
            part.file.allocate(part.allocated, size)
            part.allocated += size
        if buffers:
            part.file.pwritev(buffers, start)
        part.end = end
        self._written += end - start

    def _cut(self, index: int) -> None:
        self._mark.lower(index - 1)
        self._members = [one for one in self._members if one[0] < index]
        while len(self._parts) > 1 and self._parts[-1].first >= index:
            self._drop(self._parts.pop())
        part = self._parts[-1]
        keep = index - part.first
        if keep < len(part.positions):
            part.end = part.positions[keep]
            del part.positions[keep:], part.terms[keep:]
        part.durable_end = min(part.durable_end, part.end)
        part.file.truncate(part.end)
        part.allocated = part.end
        part.file.flush()
        self._written += 1

    def _drop(self, part: _Part) -> None:
        """One after the other, so that a power cut leaves no gap between files."""
        part.file.close()
        self._disk.remove(part.path)
        self._disk.flush_dir(self._directory)

    def _path(self, first: int) -> str:
        return f"{self._directory}/{first:020d}{SUFFIX}"

    def _begin(self, first: int, previous_term: int) -> _Part:
        path = self._path(first)
        file = self._disk.open(path, create=True)
        head = _HEAD.pack(first, previous_term, 0)[:16]
        file.pwritev([head + crc32c(head).to_bytes(4, "big")], 0)
        file.flush()
        self._disk.flush_dir(self._directory)
        part = _Part(path, file, first, previous_term)
        part.allocated = part.end
        self._parts.append(part)
        return part

    # Flushing.

    def when_all_durable(self, callback: Callable[[Exception | None], None]) -> None:
        self._flusher.when_durable(self._written, callback)

    def flush(self) -> None:
        """For a log that no group uses; blocks until all of it is durable."""
        for part in self._parts:
            part.file.flush()

    def start_round(self) -> None:
        marks = [(part, part.end) for part in self._parts if part.durable_end < part.end]
        self._awaited = len(marks)
        if not marks:
            self._scheduler.call_soon(self._round_done)
        for part, end in marks:
            self._disk.start_flush(part.file, partial(self._flushed, part, end))

    def _flushed(self, part: _Part, end: int, error: OSError | None) -> None:
        if self._awaited <= 0:
            return
        if error is not None:
            self._awaited = 0
            tell_all(self._scheduler, self._flusher.stop(error), error)
            return
        part.durable_end = max(part.durable_end, min(end, part.end))
        self._awaited -= 1
        if not self._awaited:
            self._round_done()

    def _round_done(self) -> None:
        last = self._parts[-1]
        if last.durable_end == last.end:
            self._mark.durable(last.last, self._scheduler.monotonic_ms())
        callbacks = self._flusher.round_done()
        self._flusher.proceed()
        tell_all(self._scheduler, callbacks, None)

    # What is not needed any more, and beginning anew.

    def trim(self, index: int, keep_bytes: int) -> None:
        """Drop files whose entries are all up to `index`, while more than `keep_bytes` stay."""
        while len(self._parts) > 1 and self._parts[0].last <= index:
            if self.size_bytes - self._parts[0].end < keep_bytes:
                return
            self._drop(self._parts.pop(0))
            self._members = [one for one in self._members if one[0] >= self.first_index]

    def restart_at(self, index: int, term: int) -> None:
        """An empty log that goes on behind this entry. Blocks until that is durable."""
        self._mark.lower(0)
        for part in self._parts[::-1]:
            self._drop(part)
        self._parts.clear()
        self._members.clear()
        self._begin(index + 1, term)

    def close(self) -> None:
        self._mark.close()
        for part in self._parts:
            part.file.close()

    # Starting.

    def _open(self, path: str, *, is_last: bool) -> None:
        file = self._disk.open(path)
        size = file.size()
        head = file.pread(_HEAD.size, 0)
        if len(head) < _HEAD.size or crc32c(head[:16]) != int.from_bytes(head[16:], "big"):
            if not is_last or size > _HEAD.size:
                raise CorruptRaftLog(f"{path}: its head is damaged")
            # It was being made: nothing was in it yet, or the head would have been flushed.
            file.close()
            self._disk.remove(path)
            return
        first, previous_term, _ = _HEAD.unpack(head)
        if path != self._path(first):
            raise CorruptRaftLog(f"{path} is the file of entries from {first} on")
        if self._parts and first != self._parts[-1].last + 1:
            raise CorruptRaftLog(f"{path} begins with entry {first}, after {self._parts[-1].last}")
        part = _Part(path, file, first, previous_term)
        self._scan(part, size)
        if not is_last and part.end + _FRAME.size <= size and any(file.pread(_FRAME.size, part.end)):
            raise CorruptRaftLog(f"{path}: damaged at {part.end}")
        if is_last:
            file.truncate(part.end)
            size = part.end
        file.flush()
        part.durable_end = part.end
        part.allocated = max(size, part.end)
        self._parts.append(part)

    def _scan(self, part: _Part, size: int) -> None:
        """Find the frames, up to the first place that is not one."""
        data, base = b"", part.end
        while True:
            at = part.end - base
            need = _FRAME.size
            if len(data) - at >= need:
                need += max(_FRAME.unpack_from(data, at)[0] - 1, 0)
            if len(data) - at < need:
                if part.end + need > size:
                    return
                base, data, at = part.end, part.file.pread(max(need, _READ_BYTES), part.end), 0
                if len(data) < need:
                    return
                continue
            try:
                entry, end = self._parse(part, data, at, part.last + 1)
            except (CorruptRaftLog, ValueError):
                return
            part.positions.append(part.end)
            part.terms.append(entry.term)
            self._note(entry)
            part.end = base + end
