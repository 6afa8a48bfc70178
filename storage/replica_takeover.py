"""Taking over a chain of sealed segments that was copied from another replica, in place of a replica's own files.

    aside      each copy under its segment's name and `.tmp`, checked and durable       a start throws them away
    named      the file `taking-over` names them, durable                               a start goes on with it
    in place   all other files of the log are gone, the copies have their names, and the child of the last one is made
    over       `taking-over` is gone, durably

Guarantees: a crash at any place leaves the files as they were or, once `take_over` has ended, the new chain; nothing is
named that was not checked, entry by entry, and is not on the device. What lies in the new chain was committed where it
comes from, as a segment is sealed only then. The child is made from the roll that ends the last segment, so it is the
same file as everywhere (docs/raft.md, section 7).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgpack
from crc32c import crc32c

from storage.cache import SegmentCache
from storage.disk import Disk, File
from storage.entry_reader import read_entries
from storage.format import (
    HEADER_BLOCK_BYTES,
    ROLL_FLAG,
    SEGMENT_SUFFIX,
    TAKING_OVER_NAME,
    TEMPORARY_SUFFIX,
    CorruptLog,
    parse_name,
    segment_name,
)
from storage.layout import LogConfig, RangeIdentity
from storage.numbered_chain import make_child
from storage.numbering import Numbering
from storage.payloads import Roll, decode
from storage.scan import BareEntry, Scanner
from storage.segment import Segment

CHECK_STEP_BYTES: Final = 1 << 20
"""So much of a copy is checked per turn of the loop."""

Done = Callable[[OSError | None], None]


class ChainAside:
    """The copies, while they come. Methods raise OSError; what is wrong with a copy is a CorruptLog."""

    def __init__(self, disk: Disk, directory: str, topic_id: uuid.UUID, first: int, last: int) -> None:
        """What an earlier attempt left is removed."""
        self.segment_ids: list[int] = []
        """Those that were checked, a chain without a gap."""
        self._disk = disk
        self._directory = directory
        self._wanted = (topic_id, first, last)
        self._before: Numbering | None = None
        self.discard()

    @property
    def last_index(self) -> int:
        """Of the last entry in it; 0 where there is none."""
        return self._before.last_index if self._before is not None else 0

    def path(self, segment_id: int) -> str:
        return f"{self._directory}/{segment_name(segment_id)}{TEMPORARY_SUFFIX}"

    def create(self, segment_id: int) -> File:
        return self._disk.open(self.path(segment_id), create=True)

    def start_over(self) -> None:
        """What is there is of no use: the chain begins later."""
        for segment_id in self.segment_ids:
            self._disk.remove(self.path(segment_id))
        self.segment_ids.clear()
        self._before = None

    def discard(self) -> None:
        """Nothing of it is wanted, nor what another attempt left."""
        for name in self._disk.list(self._directory):
            parsed = parse_name(name)
            if parsed is not None and parsed.suffix == SEGMENT_SUFFIX + TEMPORARY_SUFFIX:
                self._disk.remove(f"{self._directory}/{name}")

    def check(self, segment_id: int) -> Iterator[None]:
        """Read the whole copy, a piece per `next`; at the end it is the last one of the chain."""
        path = self.path(segment_id)
        segment = Segment.open_path(self._disk, path, SegmentCache())
        try:
            numbering = self._check_header(segment, segment_id)
            scanner = Scanner(segment.file(), segment.header, HEADER_BLOCK_BYTES, segment.end)
            count, pause_at, rolls = 0, CHECK_STEP_BYTES, False
            for entry in scanner.all():
                count += 1
                rolls = isinstance(entry, BareEntry) and entry.flag == ROLL_FLAG
                if entry.end > pause_at:
                    pause_at = entry.end + CHECK_STEP_BYTES
                    yield
            if count != numbering.last_index - numbering.first_index + 1 or scanner.position != segment.end:
                raise CorruptLog(path, scanner.position, f"its entries end here, after {count}")
            if not rolls:
                raise CorruptLog(path, scanner.position, "no roll ends it")
            for index in segment.indexes.values():
                segment.load(index)
            segment.load_numbering()
            segment.load_producers()
        finally:
            segment.close()
        self.segment_ids.append(segment_id)
        self._before = numbering

    def _check_header(self, segment: Segment, segment_id: int) -> Numbering:
        header, numbering = segment.header, segment.numbering
        if (header.topic_id, header.first, header.last) != self._wanted or header.segment_id != segment_id:
            raise CorruptLog(segment.path, 0, "it is of another range, or another segment")
        if segment.state != "SEALED" or numbering is None or header.numbered is None:
            raise CorruptLog(segment.path, 0, "it is no sealed segment of a replicated range")
        before = self._before
        if before is not None and (
            header.parents != (self.segment_ids[-1],)
            or header.numbered.first_index != before.last_index + 1
            or header.numbered.previous_term != before.last_term
        ):
            raise CorruptLog(segment.path, 0, f"it does not continue segment {self.segment_ids[-1]}")
        return numbering

    def name(self, done: Done) -> None:
        """Make it the chain that a start goes on with: `done(None)` when that is durable. Never blocks; on an error
        nobody knows which one a start would find."""
        disk, directory = self._disk, self._directory
        path = f"{directory}/{TAKING_OVER_NAME}"
        if disk.exists(path + TEMPORARY_SUFFIX):
            disk.remove(path + TEMPORARY_SUFFIX)  # of an attempt that was cut short
        file = disk.open(path + TEMPORARY_SUFFIX, create=True)

        def named(error: OSError | None) -> None:
            file.close()
            if error is None:
                try:
                    disk.rename(path + TEMPORARY_SUFFIX, path)
                    disk.start_flush_dir(directory, done)
                    return
                except OSError as failure:
                    error = failure
            done(error)

        def names_are_durable(error: OSError | None) -> None:
            if error is None:
                try:
                    disk.start_flush(file, named)
                    return
                except OSError as failure:
                    error = failure
            file.close()
            done(error)

        try:
            file.pwritev((_packed(self.segment_ids),), 0)
            # The copies' names first: whoever finds the list finds them.
            disk.start_flush_dir(directory, names_are_durable)
        except OSError:
            file.close()
            raise


def is_taking_over(disk: Disk, directory: str) -> bool:
    """Whether a chain was named here, and the taking over of it has not ended."""
    return disk.exists(f"{directory}/{TAKING_OVER_NAME}")


def named_chain(disk: Disk, directory: str) -> list[int] | None:
    """The segments that are being taken over here; None where that has ended, or never began. Raises CorruptLog."""
    path = f"{directory}/{TAKING_OVER_NAME}" if directory else TAKING_OVER_NAME
    if not disk.exists(path):
        return None
    file = disk.open_readonly(path)
    try:
        return _unpacked(file.pread(file.size(), 0), path)
    finally:
        file.close()


def take_over(disk: Disk, directory: str, config: LogConfig) -> bool:
    """Go on with what `ChainAside.name` made durable; whether there was anything. The replica must not be open.

    Blocks for the device. May be cut short anywhere and be called again. Raises CorruptLog, OSError.
    """
    segment_ids = named_chain(disk, directory)
    if segment_ids is None:
        return False
    path = f"{directory}/{TAKING_OVER_NAME}"
    names = [segment_name(segment_id) for segment_id in segment_ids]
    kept = {*names, *(name + TEMPORARY_SUFFIX for name in names)}
    for name in disk.list(directory):
        if parse_name(name) is not None and name not in kept:
            disk.remove(f"{directory}/{name}")
    for name in names:
        if disk.exists(f"{directory}/{name}{TEMPORARY_SUFFIX}"):
            disk.rename(f"{directory}/{name}{TEMPORARY_SUFFIX}", f"{directory}/{name}")
    _make_child(disk, directory, segment_ids[-1], config)
    disk.flush_dir(directory)
    disk.remove(path)
    disk.flush_dir(directory)
    return True


def _make_child(disk: Disk, directory: str, last_id: int, config: LogConfig) -> None:
    """The file that goes on after the last copy. Nothing was written to it, as long as `taking-over` is there."""
    cache = SegmentCache()
    segment = Segment.open(disk, directory, last_id, cache, readonly=True)
    try:
        assert segment.numbering is not None
        last = segment.numbering.last_index
        entry = read_entries(segment, last, last, 1)[0]
        roll = decode(entry.payload, entry.term)
        assert isinstance(roll, Roll)
        header = segment.header
        identity = RangeIdentity(directory, header.topic_id, header.first, header.last, entry.term)
        child = make_child(disk, identity, segment, roll, entry, config, cache)
        try:
            child.file().flush()
        finally:
            child.close()
    finally:
        segment.close()


def _packed(segment_ids: Sequence[int]) -> bytes:
    body: bytes = msgpack.packb(list(segment_ids))
    return crc32c(body).to_bytes(4, "big") + body


def _unpacked(data: bytes, path: str) -> list[int]:
    if len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        raise CorruptLog(path, 0, "the list of the segments that are taken over is damaged")
    segment_ids: list[int] = msgpack.unpackb(data[4:])
    return segment_ids
