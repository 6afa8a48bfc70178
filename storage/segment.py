"""One segment file: its bytes, its index, how it is made, filled, sealed and opened.

Guarantees: space is reserved before it is written, so a full disk is met by `reserve`, not by a write;
reserved space reads as zeros; nothing is appended after `seal`; a footer is believed only whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgpack
from crc32c import crc32c

from storage.cache import SegmentCache
from storage.disk import Disk, File
from storage.format import (
    HEADER_BLOCK_BYTES,
    TRAILER_BYTES,
    CorruptLog,
    HeaderBlock,
    Numbered,
    Trailer,
    decode_header_block,
    decode_trailer,
    encode_end_mark,
    encode_header_block,
    encode_trailer,
    segment_name,
    unpack,
)
from storage.index import BYTES_PER_RUN, PartitionIndex
from storage.layout import LogConfig, RangeIdentity
from storage.numbering import BYTES_PER_PLACE, Numbering

State = Literal["WRITABLE", "FULL", "SEALED"]

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "WRITABLE": frozenset({"FULL"}),
    "FULL": frozenset({"WRITABLE", "SEALED"}),
    "SEALED": frozenset(),
}
"""WRITABLE takes entries; FULL takes none and waits for its footer, or (replicated ranges) for the entry that ended it
to be committed or truncated; SEALED has a durable footer."""


class Segment:
    """A segment file and everything in memory about it. Positions are bytes from the start of the file."""

    __slots__ = (
        "_cache",
        "_disk",
        "_file",
        "_trailer",
        "allocated",
        "committed_end",
        "durable_end",
        "end",
        "entries",
        "file_size",
        "guarded_bytes",
        "header",
        "indexes",
        "numbering",
        "path",
        "producers_at",
        "runs",
        "salt",
        "scanned_from",
        "segment_id",
        "state",
    )

    def __init__(
        self, disk: Disk, path: str, header: HeaderBlock, file: File | None, cache: SegmentCache, state: State
    ) -> None:
        self._disk = disk
        self._cache = cache
        self._file = file
        self._trailer: Trailer | None = None
        self.path = path
        self.header = header
        self.segment_id = header.segment_id
        self.salt = header.salt
        self.guarded_bytes = header.guarded_bytes
        self.state: State = state
        self.end = HEADER_BLOCK_BYTES
        """Where the next entry goes: everything below is written."""
        self.durable_end = 0
        """Everything below is known to be on the device. 0 until the parents are, all of them: an entry that
        carries a claim above 0 therefore says that no parent has a gap."""
        self.committed_end = 0
        """Of a replicated range: everything below is known to be committed. What is not may yet be truncated, so it
        is this that entries claim there, as far as it is durable."""
        self.numbering = Numbering(header.numbered.first_index) if header.numbered is not None else None
        self.allocated = HEADER_BLOCK_BYTES
        self.file_size = 0
        """Of a sealed segment, footer included."""
        self.indexes: dict[int, PartitionIndex] = {}
        self.runs = 0
        self.scanned_from = HEADER_BLOCK_BYTES
        """Where the scan of the last start began: behind its checkpoint, if it had one."""
        self.entries = 0
        """How many were scanned and written from there on; replicated ones also where they were truncated since."""
        self.producers_at: tuple[int, int, int] | None = None
        """Of a sealed segment, the producer snapshot's position, size and CRC."""

    # Making and opening.

    @classmethod
    def create(
        cls,
        disk: Disk,
        identity: RangeIdentity,
        segment_id: int,
        parents: tuple[int, ...],
        created_ms: int,
        config: LogConfig,
        cache: SegmentCache,
        numbered: Numbered | None = None,
    ) -> Segment:
        """Make the file and write its header block; the caller flushes the file and the folder before it
        counts.

        Raises OSError; what was made of the file is removed then.
        """
        path = f"{identity.directory}/{segment_name(segment_id)}"
        block = encode_header_block(
            identity.topic_id,
            segment_id,
            identity.first,
            identity.last,
            identity.term,
            created_ms,
            parents,
            numbered=numbered,
        )
        file = disk.open(path, create=True)
        try:
            file.allocate(0, HEADER_BLOCK_BYTES + config.preallocate_first_bytes)
            file.pwritev((block,), 0)
        except OSError:
            file.close()
            disk.remove(path)
            raise
        segment = cls(disk, path, decode_header_block(block, path), file, cache, "WRITABLE")
        segment.allocated = HEADER_BLOCK_BYTES + config.preallocate_first_bytes
        return segment

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        segment_id: int,
        cache: SegmentCache,
        *,
        readonly: bool = False,
        generation: int = 0,
    ) -> Segment:
        """Open a file and read who it is; WRITABLE or, with a whole footer, SEALED. Entries are not looked
        at.

        Raises CorruptLog when the file is absent or not this segment, OSError.
        """
        name = segment_name(segment_id, generation)
        path = f"{directory}/{name}" if directory else name
        try:
            segment = cls.open_path(disk, path, cache, readonly=readonly)
        except FileNotFoundError:
            raise CorruptLog(path, 0, "the layout names this segment, but its file is absent") from None
        header = segment.header
        if (header.segment_id, header.generation) != (segment_id, generation):
            segment.close()
            raise CorruptLog(
                path,
                0,
                f"the header block names segment {header.segment_id}, generation {header.generation}",
            )
        return segment

    @classmethod
    def open_path(cls, disk: Disk, path: str, cache: SegmentCache, *, readonly: bool = True) -> Segment:
        """As `open`, of a file by whatever name. Raises CorruptLog, OSError (FileNotFoundError)."""
        file = disk.open_readonly(path) if readonly else disk.open(path)
        try:
            header = decode_header_block(file.pread(HEADER_BLOCK_BYTES, 0), path)
            segment = cls(disk, path, header, file, cache, "WRITABLE")
            segment.allocated = segment.file_size = file.size()
            segment._open_footer(file)
        except BaseException:
            file.close()
            raise
        return segment

    def _open_footer(self, file: File) -> None:
        size = self.file_size
        if size < HEADER_BLOCK_BYTES + TRAILER_BYTES:
            return
        trailer = decode_trailer(file.pread(TRAILER_BYTES, size - TRAILER_BYTES), self.salt)
        if trailer is None:
            return
        packed = file.pread(trailer.summary_size, trailer.summary_position)
        if len(packed) != trailer.summary_size or crc32c(packed) != trailer.summary_crc:
            raise CorruptLog(
                self.path, trailer.summary_position, "the footer of this sealed segment is damaged"
            )
        partitions, producers_at, *numbers = unpack(packed)
        if self.header.numbered is not None:
            self.numbering = Numbering.from_summary(self.header.numbered, *numbers)
        self.indexes = {summary[0]: PartitionIndex.from_summary(self, summary) for summary in partitions}
        self.runs = sum(index.runs for index in self.indexes.values())
        self.producers_at = tuple(producers_at)
        self.end = self.durable_end = trailer.footer_position
        self.state = "SEALED"
        self._cache.used_file(self)

    # Files.

    def file(self) -> File:
        """The open file; of a sealed segment opened on demand and closed by the cache."""
        file = self._file
        if self.state == "SEALED":
            if file is None:
                file = self._file = self._disk.open_readonly(self.path)
            self._cache.used_file(self)
        if file is None:
            raise ValueError(f"{self.path} is closed")
        return file

    def release_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.state == "SEALED" and self.numbering is not None:
            self.numbering.unload()

    def close(self) -> None:
        self._cache.forget(self)
        self.release_file()

    # Filling.

    def change_state(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"{self.path}: a {self.state} segment cannot become {state}")
        self.state = state

    def index_of(self, partition: int, start_offset: int) -> PartitionIndex:
        """The partition's index, made with this start where there is none yet."""
        index = self.indexes.get(partition)
        if index is None:
            index = self.indexes[partition] = PartitionIndex(self, partition, start_offset)
        return index

    def reserve(self, needed: int, config: LogConfig) -> None:
        """Grow the reserved space to `needed` bytes at least, in doubling steps. Raises OSError (ENOSPC)."""
        step = max(config.preallocate_first_bytes, min(self.allocated, config.preallocate_max_bytes))
        step = max(step, needed - self.allocated)
        self.file().allocate(self.allocated, step)
        self.allocated += step

    def cut(self, position: int, config: LogConfig) -> None:
        """Take away everything from `position` on, and wait until that is durable: only then may anything be written
        over the place, or a power cut could mix old and new sectors. Raises OSError."""
        file = self.file()
        file.truncate(position)
        self.allocated = self.end = position
        self.reserve(position + 1, config)
        file.flush()
        self.durable_end = min(self.durable_end, position)

    # Sealing.

    # Three steps, a flush of the file after each: the end mark says that all entries are durable, the trailer
    # that the rest of the footer is. Whatever order the device writes in, neither ever promises too much.

    def write_end_mark(self) -> None:
        """Begin the footer; every entry is durable. Raises OSError."""
        assert self.state == "FULL"
        self.file().pwritev((encode_end_mark(self.header, self.end),), self.end)

    def footer_steps(self, producers: bytes, step_bytes: int) -> Iterator[None]:
        """Write the footer's body: each `next` about `step_bytes`. Raises OSError from `next`."""
        file = self.file()
        position = self.end + self.guarded_bytes
        pending: list[bytes] = []
        pending_size = 0
        for partition in sorted(self.indexes):
            index = self.indexes[partition]
            blob = index.encode_blob()
            index.blob_position = position + pending_size
            index.blob_crc = crc32c(blob)
            pending.append(blob)
            pending_size += len(blob)
            if pending_size >= step_bytes:
                position += file.pwritev(pending, position)
                pending, pending_size = [], 0
                yield
        self.producers_at = (position + pending_size, len(producers), crc32c(producers))
        pending.append(producers)
        summary_position = position + pending_size + len(producers)
        content = [
            [self.indexes[partition].summary() for partition in sorted(self.indexes)],
            list(self.producers_at),
        ]
        if self.numbering is not None:
            places = self.numbering.encode_places()
            self.numbering.stored = (summary_position, len(self.numbering.places), crc32c(places))
            pending.append(places)
            summary_position += len(places)
            content.append(self.numbering.summary())
        summary = msgpack.packb(content)
        pending.append(summary)
        position += file.pwritev(pending, position)
        file.truncate(position)
        self.allocated = position
        self._trailer = Trailer(self.end, summary_position, len(summary), crc32c(summary))
        yield

    def write_trailer(self) -> None:
        """Write the footer's last bytes. Raises OSError."""
        assert self._trailer is not None
        self.file().pwritev((encode_trailer(self.salt, self._trailer),), self.allocated)
        self.allocated += TRAILER_BYTES
        self.file_size = self.allocated

    def sealed(self) -> None:
        """The footer is durable."""
        self.change_state("SEALED")
        self._cache.used_file(self)
        for index in self.indexes.values():
            self._cache.used_index(index)

    def load(self, index: PartitionIndex) -> None:
        """Make the arrays of an index present, and count their use. Raises CorruptLog, OSError."""
        if self.state != "SEALED":
            return
        if index.runs and not index.bases:
            blob = self.file().pread(index.runs * BYTES_PER_RUN, index.blob_position)
            index.decode_blob(blob, self.path)
        self._cache.used_index(index)

    def load_numbering(self) -> Numbering:
        """With its places. Raises CorruptLog, OSError."""
        numbering = self.numbering
        assert numbering is not None
        if self.state == "SEALED" and not numbering.places and numbering.stored is not None:
            position, count, _ = numbering.stored
            numbering.decode_places(self.file().pread(count * BYTES_PER_PLACE, position), self.path)
        return numbering

    def load_producers(self) -> list[Any]:
        """The producer snapshot in the footer: [partition, states] pairs. Raises CorruptLog, OSError."""
        producers: list[Any] = unpack(self.load_producers_packed())
        return producers

    def load_producers_packed(self) -> bytes:
        """The same as it stands there."""
        assert self.producers_at is not None
        position, size, crc = self.producers_at
        packed = self.file().pread(size, position)
        if len(packed) != size or crc32c(packed) != crc:
            raise CorruptLog(self.path, position, "the producer snapshot of this sealed segment is damaged")
        return packed

    def end_offsets(self) -> dict[int, int]:
        """Per partition with entries here or named in the footer, the offset after the last one."""
        return {partition: index.end_offset for partition, index in self.indexes.items()}
