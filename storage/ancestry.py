"""What came before a replicated range: the sealed segments of the ranges whose partitions it took over.

A range that a split or a merge began has a log of its own, from entry 1 on, and beside it, in its folder, the segments
of its parents and of theirs, as other names of the same files. The file `ancestors` lists them: in the order in which
they are read, each with the partitions of it that count, and where each partition ended in them.

    links, the first file of the own log      durable; a start throws them away
    listed                                    `ancestors` has its name, durably: the folder is whole

Guarantees: a power cut at any place leaves no range or a whole one; what is listed was committed and sealed where it
comes from; no segment of an ancestor is ever written to. A segment that is listed and not there was dropped, as it lies
below the log starts: they go in their order, so none is missing behind one that is there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgpack
from crc32c import crc32c

from storage.cache import SegmentCache
from storage.disk import Disk, File
from storage.files import delete_files, start_dir_chain
from storage.format import (
    ANCESTORS_NAME,
    HEADER_BLOCK_BYTES,
    TEMPORARY_SUFFIX,
    CorruptLog,
    segment_name,
)
from storage.scan import Scanner
from storage.segment import Segment

CHECK_STEP_BYTES: Final = 1 << 20
"""So much of a copy is checked per turn of the loop."""

Span = tuple[int, int]
"""(first, last) partition."""
Done = Callable[[OSError | None], None]


class Ancestor(NamedTuple):
    """One segment. `spans`: its partitions that count."""

    segment_id: int
    generation: int
    spans: tuple[Span, ...]

    @property
    def name(self) -> str:
        return segment_name(self.segment_id, self.generation)


@dataclass(frozen=True, slots=True)
class Ancestry:
    """`ends`: where each partition of the range ended in them, if it had anything. `lasts`: the segments that ended a
    parent, whose footers have the producers."""

    segments: tuple[Ancestor, ...]
    ends: Mapping[int, int]
    lasts: tuple[int, ...]

    def packed(self) -> bytes:
        body: bytes = msgpack.packb([self.segments, dict(self.ends), self.lasts])
        return crc32c(body).to_bytes(4, "big") + body

    @classmethod
    def unpacked(cls, data: bytes, path: str) -> Ancestry:
        """Raises CorruptLog."""
        if len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
            raise CorruptLog(path, 0, "the list of the segments that came before is damaged")
        segments, ends, lasts = msgpack.unpackb(data[4:], strict_map_key=False)
        return cls(
            tuple(
                Ancestor(segment_id, generation, tuple((first, last) for first, last in spans))
                for segment_id, generation, spans in segments
            ),
            ends,
            tuple(lasts),
        )

    @property
    def by_id(self) -> dict[int, Ancestor]:
        return {one.segment_id: one for one in self.segments}


NONE: Final = Ancestry((), {}, ())


class Parent(NamedTuple):
    """A range that has ended: its partitions, its segments in order without the one behind the end, what came before
    it, and the ends of its partitions."""

    span: Span
    segments: Sequence[Segment]
    ancestry: Ancestry
    ends: Mapping[int, int]


def of_child(parents: Iterable[Parent], first: int, last: int) -> tuple[Ancestry, dict[int, str]]:
    """What came before partitions `first`..`last`, of neighbours in their order; and the paths of the files.

    A segment without anything of them is left out, but for the last one of each parent. Ids grow from a segment to what
    continues it, in its range or in others, so their order is that of every partition.
    """
    found: dict[int, Ancestor] = {}
    paths: dict[int, str] = {}
    ends: dict[int, int] = {}
    lasts: list[int] = []
    for parent in parents:
        if parent.span[0] > last or parent.span[1] < first:
            continue
        before = parent.ancestry.by_id
        ends |= {partition: end for partition, end in parent.ends.items() if first <= partition <= last}
        lasts.append(parent.segments[-1].segment_id)
        for segment in parent.segments:
            known = before.get(segment.segment_id)
            spans = _within(known.spans if known is not None else (parent.span,), first, last)
            if not spans or not (segment.segment_id in lasts or _has_any(segment, spans)):
                continue
            # What several parents share may begin earlier in one of them than in another.
            other = found.get(segment.segment_id)
            if other is not None:
                spans = (*other.spans, *spans)
            found[segment.segment_id] = Ancestor(segment.segment_id, segment.header.generation, spans)
            paths[segment.segment_id] = segment.path
    return Ancestry(tuple(found[one] for one in sorted(found)), ends, tuple(lasts)), paths


def _within(spans: Iterable[Span], first: int, last: int) -> tuple[Span, ...]:
    cut = ((max(begin, first), min(end, last)) for begin, end in spans)
    return tuple((begin, end) for begin, end in cut if begin <= end)


def _has_any(segment: Segment, spans: Sequence[Span]) -> bool:
    return any(index.runs and counts(spans, partition) for partition, index in segment.indexes.items())


def counts(spans: Iterable[Span], partition: int) -> bool:
    return any(first <= partition <= last for first, last in spans)


def is_whole(disk: Disk, directory: str) -> bool:
    """Whether a range with ancestors was made here, to its end."""
    return disk.exists(f"{directory}/{ANCESTORS_NAME}")


def read(disk: Disk, directory: str) -> Ancestry:
    """What came before the range in this folder. Raises CorruptLog, OSError."""
    path = f"{directory}/{ANCESTORS_NAME}" if directory else ANCESTORS_NAME
    if not disk.exists(path):
        return NONE
    file = disk.open_readonly(path)
    try:
        return Ancestry.unpacked(file.pread(file.size(), 0), path)
    finally:
        file.close()


def begin(disk: Disk, directory: str) -> None:
    """An empty folder for a range that is to be made. Raises OSError."""
    delete_files(disk, directory)
    disk.make_dir(directory)


def link_all(disk: Disk, directory: str, ancestry: Ancestry, paths: Mapping[int, str]) -> None:
    """Raises OSError."""
    for one in ancestry.segments:
        disk.link(paths[one.segment_id], f"{directory}/{one.name}")


def finish(disk: Disk, directory: str, ancestry: Ancestry, first: Segment, done: Done) -> None:
    """All ancestors have their names here, and are durable themselves; `first` is the one file of the own log. Make
    that a whole range, off the loop. On an error nobody knows what a start would find: it makes it anew."""
    waiting = 1
    failed: OSError | None = None

    def flushed(error: OSError | None) -> None:
        nonlocal waiting, failed
        waiting -= 1
        failed = failed or error
        if not waiting:
            _list(disk, directory, ancestry, done) if failed is None else done(failed)

    disk.start_flush(first.file(), flushed)
    waiting += start_dir_chain(disk, directory, flushed)


def _list(disk: Disk, directory: str, ancestry: Ancestry, done: Done) -> None:
    path = f"{directory}/{ANCESTORS_NAME}"

    def written(error: OSError | None) -> None:
        file.close()
        if error is None:
            try:
                disk.rename(path + TEMPORARY_SUFFIX, path)
                disk.start_flush_dir(directory, done)
                return
            except OSError as failure:
                error = failure
        done(error)

    try:
        file = disk.open(path + TEMPORARY_SUFFIX, create=True)
        file.pwritev((ancestry.packed(),), 0)
        disk.start_flush(file, written)
    except OSError as error:
        done(error)


def keep_what_counts(segment: Segment, spans: Sequence[Span]) -> None:
    """Of an ancestor as it was opened: nothing else of it is known to the range."""
    segment.indexes = {
        partition: index for partition, index in segment.indexes.items() if counts(spans, partition)
    }
    segment.runs = sum(index.runs for index in segment.indexes.values())


class AncestorsAside:
    """The ancestors of a range that is to be made here, as they come from another node. Methods raise OSError; what is
    wrong with a copy is a CorruptLog."""

    last_index = 0

    def __init__(self, disk: Disk, directory: str, topic_id: uuid.UUID) -> None:
        self.ancestry = NONE
        self._disk = disk
        self._directory = directory
        self._topic_id = topic_id
        self.chain: list[tuple[int, int]] = []
        """(segment id, generation) of those that were checked."""
        begin(disk, directory)

    def listed(self, packed: bytes) -> None:
        """Raises CorruptLog."""
        self.ancestry = Ancestry.unpacked(packed, f"{self._directory}/{ANCESTORS_NAME}")

    def path(self, segment_id: int) -> str:
        known = self.ancestry.by_id.get(segment_id)
        if known is None:
            raise CorruptLog(self._directory, 0, f"segment {segment_id} is none of those before the range")
        return f"{self._directory}/{known.name}"

    def create(self, segment_id: int) -> File:
        return self._disk.open(self.path(segment_id), create=True)

    def start_over(self) -> None:
        """One that follows them was dropped where they come from: so were they."""
        for segment_id, _ in self.chain:
            self._disk.remove(self.path(segment_id))
        self.chain.clear()

    def check(self, segment_id: int) -> Iterator[None]:
        """Read the whole copy, a piece per `next`."""
        segment = Segment.open_path(self._disk, self.path(segment_id), SegmentCache())
        try:
            header = segment.header
            if (header.topic_id, header.segment_id) != (self._topic_id, segment_id):
                raise CorruptLog(segment.path, 0, "it is of another topic, or another segment")
            if segment.state != "SEALED":
                raise CorruptLog(segment.path, 0, "it is not sealed")
            scanner = Scanner(segment.file(), header, HEADER_BLOCK_BYTES, segment.end)
            pause_at = CHECK_STEP_BYTES
            for entry in scanner.all():
                if entry.end > pause_at:
                    pause_at = entry.end + CHECK_STEP_BYTES
                    yield
            if scanner.position != segment.end:
                raise CorruptLog(segment.path, scanner.position, "its entries end here")
            for index in segment.indexes.values():
                segment.load(index)
            segment.load_producers()
        finally:
            segment.close()
        self.chain.append((segment_id, segment.header.generation))
