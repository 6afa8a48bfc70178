"""The file that compaction writes in place of others: sealed, settled, and on the device when it is finished.

Of a replicated range it keeps its place in the log: the numbers that it stands for, their terms, the changes of
members, and the roll that ends it. Its other entries have no numbers any more (docs/raft.md, section 7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from crc32c import crc32c

from storage.cache import SegmentCache
from storage.compaction_job import JobSegment
from storage.disk import Disk
from storage.entry_reader import read_entries
from storage.format import (
    BATCH_PREFIX_BYTES,
    ENTRY_HEADER_BYTES,
    ENTRY_MAGIC,
    HEADER_BLOCK_BYTES,
    ROLL_FLAG,
    encode_bare,
    encode_header_block,
    pack_crc,
    pack_entry_body,
    segment_name,
)
from storage.layout import LogConfig
from storage.scan import ScannedEntry, Scanner
from storage.segment import Segment
from storage.settled import Owner, SettledPartition, write_now

WRITE_BYTES: Final = 4 << 20
RUN_BYTES: Final = LogConfig().run_bytes
STEP_BYTES: Final = LogConfig().footer_step_bytes


def open_segment(disk: Disk, directory: str, one: JobSegment) -> Segment:
    return Segment.open(
        disk, directory, one.segment_id, SegmentCache(), readonly=True, generation=one.generation
    )


def entries_of(segment: Segment) -> Iterable[ScannedEntry]:
    return Scanner(segment.file(), segment.header, HEADER_BLOCK_BYTES, segment.end)


def batch_of(segment: Segment, entry: ScannedEntry) -> bytes:
    return segment.file().pread(entry.size, entry.position + ENTRY_HEADER_BYTES)


class CompactedFile:
    """The next generation of the last of these segments, with the entries of all, in their order."""

    def __init__(self, disk: Disk, directory: str, olds: Sequence[Segment]) -> None:
        header = olds[-1].header
        self._generation = header.generation + 1
        self._path = f"{directory}/{segment_name(header.segment_id, self._generation)}"
        block = encode_header_block(
            header.topic_id,
            header.segment_id,
            header.first,
            header.last,
            header.term,
            header.created_ms,
            olds[0].header.parents,
            self._generation,
            olds[0].header.numbered,
        )
        self._disk = disk
        if disk.exists(self._path):
            disk.remove(self._path)  # of a job that was cut short
        file = disk.open(self._path, create=True)
        file.pwritev((block,), 0)
        file.close()
        self.segment = Segment.open(
            disk, directory, header.segment_id, SegmentCache(), generation=self._generation
        )
        self._olds = olds
        self._starts: dict[int, int] = {}
        for old in olds:
            for partition, index in old.indexes.items():
                self._starts.setdefault(partition, index.start_offset)
        self._pending: list[bytes] = []
        self._position = self.segment.end
        self._written = self.segment.end

    def add(self, entry: ScannedEntry, batch: bytes, max_timestamp: int) -> None:
        guarded = (
            pack_entry_body(ENTRY_MAGIC, 0, len(batch), entry.partition, entry.term, entry.txn_seq, 0)
            + batch[:BATCH_PREFIX_BYTES]
        )
        self._pending += (
            pack_crc(crc32c(guarded, self.segment.salt ^ self._position)),
            guarded,
            batch[BATCH_PREFIX_BYTES:],
        )
        size = ENTRY_HEADER_BYTES + len(batch)
        index = self.segment.index_of(entry.partition, self._starts[entry.partition])
        base, end = entry.header.base_offset, entry.header.last_offset + 1
        self.segment.runs += index.add(base, end, self._position, size, entry.term, max_timestamp, RUN_BYTES)
        self._position += size
        if self._position - self._written >= WRITE_BYTES:
            self._write_out()

    def copy(self, old: Segment, up_to: int | None = None) -> None:
        """Everything of an old file, or what is before its entry at `up_to`, as it is."""
        for entry in entries_of(old):
            if entry.position == up_to:
                return
            self.add(entry, batch_of(old, entry), entry.header.max_timestamp)

    def _write_out(self) -> None:
        self.segment.file().pwritev(self._pending, self._written)
        self._pending, self._written = [], self._position

    def finish(self, topic: str, outcomes: Iterable[tuple[int, SettledPartition]]) -> int:
        """Seal it, and write down its outcomes beside it; its size. Raises OSError."""
        segment = self.segment
        if segment.numbering is not None:
            self._keep_numbers()
        self._write_out()
        segment.end = self._position
        for partition, start in self._starts.items():
            index = segment.index_of(partition, start)
            index.epochs = []
            for old in self._olds:
                known = old.indexes.get(partition)
                if known is not None:
                    index.end_offset = known.end_offset
                    last = index.epochs[-1][0] if index.epochs else -1
                    index.epochs += [epoch for epoch in known.epochs if epoch[0] > last]
        segment.change_state("FULL")
        segment.write_end_mark()
        for _ in segment.footer_steps(self._olds[-1].load_producers_packed(), STEP_BYTES):
            pass
        segment.file().flush()
        segment.write_trailer()
        segment.file().flush()
        header = segment.header
        if header.numbered is None:
            owner = Owner(topic, header.topic_id, header.segment_id, header.generation)
            write_now(self._disk, segment.path, segment.salt, owner, outcomes)
        return segment.file_size

    def _keep_numbers(self) -> None:
        """Of the segments in the range's log, and the roll by which the last one ended."""
        numbering = self.segment.numbering
        assert numbering is not None
        for old in self._olds:
            known = old.numbering
            assert known is not None
            numbering.terms += [one for one in known.terms if one[1] != numbering.last_term]
            numbering.members += known.members
            numbering.last_index = known.last_index
        (roll,) = read_entries(self._olds[-1], numbering.last_index, numbering.last_index, 1)
        numbering.places.append(numbering.last_index)
        numbering.positions.append(self._position)
        entry = encode_bare(ROLL_FLAG, roll.payload, roll.term, 0, self.segment.salt, self._position)
        self._pending.append(entry)
        self._position += len(entry)
