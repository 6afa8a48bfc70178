"""Taking over a chain of sealed segments that was copied from another replica, in place of a replica's own files.

    aside      each copy under its segment's name and `.tmp`, checked and durable       a start throws them away
    named      the file `taking-over` names them, durable                               a start goes on with it
    in place   all other files of the log are gone, the copies have their names, the list of those that compaction has
               written (`storage.compacted_names`) is theirs, and the child of the last one is made
    over       `taking-over` is gone, durably

Guarantees: a crash at any place leaves the files as they were or, once `take_over` has ended, the new chain; nothing is
named that was not checked, entry by entry, and is not on the device. What lies in the new chain was committed where it
comes from, as a segment is sealed only then. The child is made from the roll that ends the last segment, so it is the
same file as everywhere (docs/raft.md, section 7).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Final

from storage.cache import SegmentCache
from storage.compacted_names import (
    Compacted,
    name_durably,
    packed,
    read_checked,
    write_aside,
    write_names_now,
)
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
from storage.scan import BareEntry, ScannedEntry, Scanner
from storage.segment import Segment

CHECK_STEP_BYTES: Final = 1 << 20
"""So much of a copy is checked per turn of the loop."""

Done = Callable[[OSError | None], None]


class ChainAside:
    """The copies, while they come. Methods raise OSError; what is wrong with a copy is a CorruptLog."""

    def __init__(self, disk: Disk, directory: str, topic_id: uuid.UUID, first: int, last: int) -> None:
        """What an earlier attempt left is removed."""
        self.chain: list[tuple[int, int]] = []
        """(segment id, generation) of those that were checked, a chain without a gap."""
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
        """What is there is of no use: the chain begins later, or other files have taken the place of these."""
        for segment_id, _ in self.chain:
            self._disk.remove(self.path(segment_id))
        self.chain.clear()
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
            count, pause_at = 0, CHECK_STEP_BYTES
            roll: BareEntry | None = None
            ends: dict[int, int] = {}
            for entry in scanner.all():
                count += 1
                roll = entry if isinstance(entry, BareEntry) and entry.flag == ROLL_FLAG else None
                if isinstance(entry, ScannedEntry):
                    if entry.header.base_offset < ends.get(entry.partition, 0):
                        raise CorruptLog(path, entry.position, f"partition {entry.partition} goes back")
                    ends[entry.partition] = entry.header.last_offset + 1
                if entry.end > pause_at:
                    pause_at = entry.end + CHECK_STEP_BYTES
                    yield
            last = numbering.last_index
            missing = last - numbering.first_index + 1 - count
            if missing < 0 or (missing and not segment.header.generation) or scanner.position != segment.end:
                raise CorruptLog(path, scanner.position, f"its entries end here, after {count}")
            if roll is None:
                raise CorruptLog(path, scanner.position, "no roll ends it")
            for index in segment.indexes.values():
                segment.load(index)
                if index.runs and ends.get(index.partition) != index.end_offset:
                    raise CorruptLog(
                        path, scanner.position, f"the end of partition {index.partition} is missing"
                    )
            segment.load_numbering()
            if read_entries(segment, last, last, 1)[0].payload != roll.payload:
                raise CorruptLog(path, roll.position, f"entry {last} is not in its place")
            segment.load_producers()
        finally:
            segment.close()
        self.chain.append((segment_id, segment.header.generation))
        self._before = numbering

    def _check_header(self, segment: Segment, segment_id: int) -> Numbering:
        header, numbering = segment.header, segment.numbering
        if (header.topic_id, header.first, header.last) != self._wanted or header.segment_id != segment_id:
            raise CorruptLog(segment.path, 0, "it is of another range, or another segment")
        if segment.state != "SEALED" or numbering is None or header.numbered is None:
            raise CorruptLog(segment.path, 0, "it is no sealed segment of a replicated range")
        before = self._before
        if before is not None and (
            header.parents != (self.chain[-1][0],)
            or header.numbered.first_index != before.last_index + 1
            or header.numbered.previous_term != before.last_term
        ):
            raise CorruptLog(segment.path, 0, f"it does not continue segment {self.chain[-1][0]}")
        return numbering

    def name(self, done: Done) -> None:
        """Make it the chain that a start goes on with: `done(None)` when that is durable. Never blocks; on an error
        nobody knows which one a start would find."""
        disk, directory = self._disk, self._directory

        def written(error: OSError | None) -> None:
            if error is None:
                try:
                    name_durably(disk, directory, TAKING_OVER_NAME, done)
                    return
                except OSError as failure:
                    error = failure
            done(error)

        def names_are_durable(error: OSError | None) -> None:
            if error is None:
                try:
                    write_aside(disk, directory, TAKING_OVER_NAME, packed(self.chain), written)
                    return
                except OSError as failure:
                    error = failure
            done(error)

        # The copies' names first: whoever finds the list finds them.
        disk.start_flush_dir(directory, names_are_durable)


def is_taking_over(disk: Disk, directory: str) -> bool:
    """Whether a chain was named here, and the taking over of it has not ended."""
    return disk.exists(f"{directory}/{TAKING_OVER_NAME}")


def named_chain(disk: Disk, directory: str) -> list[tuple[int, int]] | None:
    """(segment id, generation) of those that are being taken over here; None where that has ended, or never began.
    Raises CorruptLog."""
    chain = read_checked(disk, directory, TAKING_OVER_NAME)
    return [(segment_id, generation) for segment_id, generation in chain] if chain is not None else None


def take_over(disk: Disk, directory: str, config: LogConfig) -> bool:
    """Go on with what `ChainAside.name` made durable; whether there was anything. The replica must not be open.

    Blocks for the device. May be cut short anywhere and be called again. Raises CorruptLog, OSError.
    """
    chain = named_chain(disk, directory)
    if chain is None:
        return False
    path = f"{directory}/{TAKING_OVER_NAME}"
    names = {
        segment_name(segment_id) + TEMPORARY_SUFFIX: segment_name(segment_id, generation)
        for segment_id, generation in chain
    }
    kept = {*names, *names.values()}
    for name in disk.list(directory):
        if parse_name(name) is not None and name not in kept:
            disk.remove(f"{directory}/{name}")
    for copy, name in names.items():
        if disk.exists(f"{directory}/{copy}"):
            disk.rename(f"{directory}/{copy}", f"{directory}/{name}")
    # When they were compacted is not known here: they are looked at again, and marks of deletion stay until then.
    compacted = {
        segment_id: Compacted(generation, None, True) for segment_id, generation in chain if generation
    }
    write_names_now(disk, directory, compacted)
    _make_child(disk, directory, *chain[-1], config)
    disk.flush_dir(directory)
    disk.remove(path)
    disk.flush_dir(directory)
    return True


def _make_child(disk: Disk, directory: str, last_id: int, generation: int, config: LogConfig) -> None:
    """The file that goes on after the last copy. Nothing was written to it, as long as `taking-over` is there."""
    cache = SegmentCache()
    segment = Segment.open(disk, directory, last_id, cache, readonly=True, generation=generation)
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
