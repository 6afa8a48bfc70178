"""Reading what a store's folder holds, changing nothing.

Guarantees that the result is the state after some batch, with everything in it that was ever acknowledged as
durable: an end that was being written at a crash is left out and reported, anything else that is damaged or
missing raises `CorruptStore` with the file and the position, a file of another format version
`UnknownFormat`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import msgpack

from txn.metastore import frames
from txn.metastore.errors import CorruptStore
from txn.metastore.files import Folder
from txn.metastore.frames import Frame, FrameReader, Tail
from txn.metastore.ops import Record, Value

_new = tuple.__new__
_RECORDS = repeat(Record)
READ_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TornTail:
    """The unfinished end of the log: from `position` of `file` on, and all of the log files after it."""

    file: str
    position: int
    dropped_bytes: int
    reason: str


@dataclass(slots=True)
class Image:
    """What a folder holds."""

    records: dict[str, Record] = field(default_factory=dict)
    lsn: int = 0
    next_sequence: int = 1
    claimed_lsn: int = 0
    """How far the frames read call the log durable."""
    known_lsn: int = 0
    """The same, or what the caller knows."""
    known_end: tuple[int, int] = (0, 0)
    """File number and position up to which that is."""
    unclaimed: deque[tuple[int, int, int]] = field(default_factory=deque)
    """(lsn, file number, end) of the batches above it."""
    snapshot_number: int = 0
    """0: there is none."""
    snapshot_lsn: int = 0
    snapshot_bytes: int = 0
    note: Value = None
    """What the snapshot's writer left in it (`SnapshotFile`)."""
    log_ends: dict[int, int] = field(default_factory=dict)
    """The log files after the snapshot, in order, and where the good frames of each end."""
    batches: int = 0
    """How many batches were read from the log."""
    torn: TornTail | None = None
    cut: list[int] = field(default_factory=list)
    """The log files behind a torn end, in order: nothing in them counts."""

    @property
    def log_bytes(self) -> int:
        return sum(end - frames.HEADER_BYTES for end in self.log_ends.values())


def load(folder: Folder, durable_lsn: int = 0) -> Image | None:
    """Read the folder; None when no store was ever made in it.

    `durable_lsn`: what is known from elsewhere to have been durable. A file that is cut short loses what it said of
    itself, too.
    """
    listing = folder.list()
    if not listing.logs and not listing.snapshots:
        if durable_lsn:
            raise CorruptStore(
                folder.path, 0, f"no file is left of it, and it was durable up to batch {durable_lsn}"
            )
        return None
    image = Image(known_lsn=durable_lsn)
    if listing.snapshots:
        image.snapshot_number = listing.snapshots[-1]
        load_snapshot(folder, image)
    first = image.snapshot_number or 1
    numbers = [number for number in listing.logs if number >= first]
    expected = range(first, first + max(1, len(numbers)))
    if numbers != list(expected):
        missing = next(number for number in expected if number not in numbers)
        raise CorruptStore(folder.log_path(missing), 0, "this file of the log is missing")
    _load_logs(folder, numbers, image)
    if image.lsn < durable_lsn:
        last = max(image.log_ends)
        raise CorruptStore(
            folder.log_path(last),
            image.log_ends[last],
            f"it ends with batch {image.lsn}, and was durable up to batch {durable_lsn}",
        )
    return image


def load_snapshot(folder: Folder, image: Image, path: str | None = None) -> None:
    """Read the snapshot of `image.snapshot_number` into it; `path`: where it is, if it hasn't got its name yet.

    It was whole and flushed before it got its name, so nothing excuses damage in it: raises `CorruptStore`.
    """
    path = path or folder.snapshot_path(image.snapshot_number)
    records = image.records
    end: Frame | None = None
    count = 0
    reading = _Reading(folder, path, frames.SNAPSHOT, image.snapshot_number)
    for frame in reading:
        if end is not None:
            raise CorruptStore(path, frame.position, "something follows the snapshot's end")
        try:
            if frame.kind == frames.RECORDS:
                flat = _unpack(frame)
                made = map(_new, _RECORDS, zip(flat[2::3], flat[1::3], strict=True))
                records.update(zip(flat[::3], made, strict=True))
            elif frame.kind == frames.END:
                end = frame
                count, image.next_sequence, *note = _unpack(frame)
                image.note = note[0] if note else None
            else:
                raise CorruptStore(path, frame.position, f"a frame of kind {frame.kind} in a snapshot")
        except (ValueError, TypeError) as error:
            raise _undecodable(path, frame, error) from error
    tail = reading.tail
    if tail.dropped_bytes or end is None:
        raise CorruptStore(path, tail.position, tail.reason or "the snapshot's end is missing")
    if count != len(records):
        raise CorruptStore(path, end.position, f"the snapshot has {len(records)} records instead of {count}")
    image.lsn = image.snapshot_lsn = end.lsn
    image.snapshot_bytes = tail.position - frames.HEADER_BYTES


def _load_logs(folder: Folder, numbers: list[int], image: Image) -> None:
    """Replay the batches up to the first that is missing, then see whether it may be missing."""
    tails: dict[int, Tail] = {}
    suspect = 0
    """The file at whose end a batch may be missing; 0 while there is none."""
    broken = False
    """A batch is missing there: what follows only tells how far the log was durable."""
    claimed_lsn = 0
    for number in numbers:
        path = folder.log_path(number)
        reading = _Reading(folder, path, frames.LOG, number)
        first = True
        for frame in reading:
            expected = image.lsn + 1 if frame.kind == frames.BATCH else image.lsn
            if not broken and frame.lsn != expected:
                if not first or number == numbers[0] or frame.lsn < expected:
                    raise CorruptStore(path, frame.position, f"batch {frame.lsn} follows batch {image.lsn}")
                broken = True
                suspect = suspect or number - 1
            if broken:
                claimed_lsn = max(claimed_lsn, frame.durable_lsn)
            else:
                # The end of the file before was whole after all: what it had behind it were no batches.
                suspect = 0
                claimed_lsn = 0
                try:
                    _replay(path, number, frame, image)
                except (ValueError, TypeError) as error:
                    raise _undecodable(path, frame, error) from error
            first = False
        tails[number] = reading.tail
        claimed_lsn = max(claimed_lsn, reading.tail.claimed_lsn)
        if reading.tail.dropped_bytes:
            suspect = suspect or number
    end = suspect or numbers[-1]
    image.log_ends = {number: tails[number].position for number in numbers if number <= end}
    if suspect:
        tail = tails[suspect]
        path = folder.log_path(suspect)
        reason = tail.reason or f"batch {image.lsn + 1} is missing"
        if claimed_lsn > image.lsn:
            raise CorruptStore(
                path, tail.position, f"{reason}, and it was durable: up to batch {claimed_lsn} all was"
            )
        image.cut = [number for number in numbers if number > suspect]
        image.torn = TornTail(path, tail.position, tail.dropped_bytes, reason)


def _replay(path: str, number: int, frame: Frame, image: Image) -> None:
    image.claimed_lsn = max(image.claimed_lsn, frame.durable_lsn)
    if frame.durable_lsn > image.known_lsn:
        image.known_lsn = frame.durable_lsn
        while image.unclaimed and image.unclaimed[0][0] <= frame.durable_lsn:
            image.known_end = image.unclaimed.popleft()[1:]
    if frame.kind == frames.MARK:
        return
    if frame.kind != frames.BATCH:
        raise CorruptStore(path, frame.position, f"a frame of kind {frame.kind} in a log")
    lsn = frame.lsn
    records = image.records
    image.next_sequence, puts, deletes = _unpack(frame)
    items = iter(puts)
    for key, value in zip(items, items, strict=True):
        records[key] = _new(Record, (value, lsn))
    for key in deletes:
        if records.pop(key, None) is None:
            raise CorruptStore(path, frame.position, f"batch {lsn} deletes {key}, which is not there")
    image.lsn = lsn
    image.batches += 1
    end = frame.position + frames.FRAME_HEADER_BYTES + len(frame.payload)
    if lsn > image.known_lsn:
        image.unclaimed.append((lsn, number, end))
    else:
        image.known_end = number, end


def _unpack(frame: Frame) -> Any:
    return msgpack.unpackb(frame.payload, strict_map_key=False)


def _undecodable(path: str, frame: Frame, error: Exception) -> CorruptStore:
    return CorruptStore(path, frame.position, f"its content cannot be decoded: {error}")


class _Reading:
    """One pass over a file: its good frames, then its tail."""

    def __init__(self, folder: Folder, path: str, kind: int, number: int) -> None:
        self._folder = folder
        self._path = path
        self._kind = kind
        self._number = number
        self.tail = Tail(frames.HEADER_BYTES, 0, 0, "")

    def __iter__(self) -> Iterator[Frame]:
        file = self._folder.disk.open_readonly(self._path)
        try:
            header = file.pread(frames.HEADER_BYTES, 0)
            frames.check_file_header(self._path, header, self._kind, self._number)
            reader = FrameReader(self._number)
            position = frames.HEADER_BYTES
            while data := file.pread(READ_BYTES, position):
                yield from reader.feed(data)
                position += len(data)
            self.tail = reader.finish()
        finally:
            file.close()
