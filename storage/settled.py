"""What is known of the outcomes in a sealed segment, in a file beside it: `<segment>[.<generation>].settled`.

With it a sealed segment carries all that a reader needs. Guarantees: it is written only when every outcome in the
segment is known for good, so it never changes; it has its name only when it is whole and on the device; it decodes only
if its CRC holds, and belongs to one file alone, by the CRC of that file's header block. Losing it loses nothing: it is
written anew.

    header    64 bytes: magic, version, the segment's salt, body size and CRC, CRC in the last 4
    body      msgpack, one object after another:
              [topic, topic id, segment id, generation]
              then, per partition and at most so many ranges, [partition, first, end, [producer id, first, last, ...]]

Storage knows no outcomes: the owner of the segment says what they are.
"""

from __future__ import annotations

import contextlib
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgpack
from crc32c import crc32c

from storage.clock import Scheduler
from storage.disk import Disk, File
from storage.format import TEMPORARY_SUFFIX, CorruptLog, UnknownFormat, settled_path

SETTLED_VERSION: Final = 1
SETTLED_HEADER_BYTES: Final = 64
RANGES_PER_STEP: Final = 2_000
"""So many aborted ranges are packed and written per turn of the loop."""

_MAGIC: Final = b"SEALOGST"
# magic, version, salt, body size, body CRC
_HEADER: Final = struct.Struct(">8sH2xIQI")
_CRC: Final = struct.Struct(">I")


class Aborted(NamedTuple):
    """Every transactional batch of this producer id with a base offset within first..last is aborted."""

    producer_id: int
    first: int
    last: int


class SettledPartition(NamedTuple):
    """The outcomes of the offsets `first` up to, and without, `end`: what is not aborted is committed.

    What was deleted before the file was written lies below `first`: of that nothing is known any more.
    """

    first: int
    end: int
    aborted: list[Aborted]


class Owner(NamedTuple):
    """Whose outcomes these are."""

    topic: str
    topic_id: uuid.UUID
    segment_id: int
    generation: int


class Settled(NamedTuple):
    """A whole sidecar."""

    owner: Owner
    partitions: dict[int, SettledPartition]


Partitions = Iterable[tuple[int, SettledPartition]]


def _pieces(owner: Owner, partitions: Partitions) -> Iterator[bytes]:
    """The body, in pieces of a bounded size."""
    yield msgpack.packb([owner.topic, owner.topic_id.bytes, owner.segment_id, owner.generation])
    for partition, found in partitions:
        for at in range(0, max(1, len(found.aborted)), RANGES_PER_STEP):
            flat = [value for one in found.aborted[at : at + RANGES_PER_STEP] for value in one]
            yield msgpack.packb([partition, found.first, found.end, flat])


def write_steps(
    disk: Disk, segment_path: str, salt: int, owner: Owner, partitions: Partitions
) -> Iterator[File]:
    """Write the file under a temporary name; each `next` a bounded piece, giving the open file. Raises OSError."""
    path = settled_path(segment_path) + TEMPORARY_SUFFIX
    if disk.exists(path):
        disk.remove(path)  # of a writer that was cut short
    file = disk.open(path, create=True)
    try:
        position = SETTLED_HEADER_BYTES
        crc = 0
        for piece in _pieces(owner, partitions):
            crc = crc32c(piece, crc)
            position += file.pwritev((piece,), position)
            yield file
        header = _HEADER.pack(_MAGIC, SETTLED_VERSION, salt, position - SETTLED_HEADER_BYTES, crc)
        header += bytes(SETTLED_HEADER_BYTES - _CRC.size - len(header))
        file.pwritev((header + _CRC.pack(crc32c(header)),), 0)
    except BaseException:
        file.close()
        raise
    yield file


def write_now(disk: Disk, segment_path: str, salt: int, owner: Owner, partitions: Partitions) -> None:
    """Write it whole; durable when the folder is flushed. Blocks. Raises OSError."""
    for file in write_steps(disk, segment_path, salt, owner, partitions):
        written = file
    try:
        written.flush()
    finally:
        written.close()
    path = settled_path(segment_path)
    disk.rename(path + TEMPORARY_SUFFIX, path)


class SettledWriter:
    """Writes one sidecar beside the work: a bounded piece per turn, every flush off the loop.

    `done` with an OSError where it could not be written (what is left of it a start removes), else None. Before it gets
    its name `wanted` is asked whether the segment is still that one; if not, nothing stays.
    """

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        segment_path: str,
        steps: Iterator[File],
        wanted: Callable[[], bool],
        done: Callable[[OSError | None], None],
    ) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._path = settled_path(segment_path)
        self._steps = steps
        self._wanted = wanted
        self._done = done
        self._file: File | None = None
        self._stopped = False
        scheduler.call_soon(self._step)

    def stop(self) -> None:
        """The node stops: nothing more happens."""
        self._stopped = True
        if self._file is not None:
            self._file.close()

    def _step(self) -> None:
        if self._stopped:
            return
        try:
            self._file = next(self._steps)
        except StopIteration:
            assert self._file is not None
            self._disk.start_flush(self._file, self._flushed)
            return
        except OSError as error:
            self._end(error)
            return
        self._scheduler.call_soon(self._step)

    def _flushed(self, error: OSError | None) -> None:
        if self._stopped:
            return
        assert self._file is not None
        self._file.close()
        if error is not None or not self._wanted():
            self._end(error)
            return
        try:
            self._disk.rename(self._path + TEMPORARY_SUFFIX, self._path)
            self._disk.start_flush_dir(self._path.rpartition("/")[0], self._named)
        except OSError as failure:
            self._end(failure)

    def _named(self, error: OSError | None) -> None:
        # It is whole, whether or not its name outlives a power cut; a start writes what is missing.
        if not self._stopped:
            self._done(error)

    def _end(self, error: OSError | None) -> None:
        with contextlib.suppress(OSError):
            self._disk.remove(self._path + TEMPORARY_SUFFIX)
        self._done(error)


def read_settled(disk: Disk, segment_path: str, salt: int) -> Settled | None:
    """The sidecar of this segment file; None where there is none. Raises CorruptLog, UnknownFormat, OSError."""
    path = settled_path(segment_path)
    try:
        file = disk.open_readonly(path)
    except FileNotFoundError:
        return None
    try:
        return decode_settled(file.pread(file.size(), 0), path, salt)
    finally:
        file.close()


def decode_settled(data: bytes, path: str, salt: int | None) -> Settled:
    """`salt` is that of the segment that it should belong to; None: of any.

    Raises CorruptLog where it is damaged or another segment's, UnknownFormat for another version.
    """
    if len(data) < SETTLED_HEADER_BYTES:
        raise CorruptLog(path, len(data), "the file ends inside its header")
    if data[:8] != _MAGIC:
        raise CorruptLog(path, 0, "this is no file of outcomes")
    (crc,) = _CRC.unpack_from(data, SETTLED_HEADER_BYTES - _CRC.size)
    if crc != crc32c(data[: SETTLED_HEADER_BYTES - _CRC.size]):
        raise CorruptLog(path, 0, "the header is damaged")
    _, version, found_salt, size, body_crc = _HEADER.unpack_from(data)
    if version != SETTLED_VERSION:
        raise UnknownFormat(
            path, 0, f"format version {version} is unknown, this program reads {SETTLED_VERSION}"
        )
    body = memoryview(data)[SETTLED_HEADER_BYTES:]
    if len(body) != size or crc32c(body) != body_crc:
        raise CorruptLog(path, SETTLED_HEADER_BYTES, "the outcomes are damaged")
    if salt not in (None, found_salt):
        raise CorruptLog(path, 0, "it belongs to another segment file")
    unpacker = msgpack.Unpacker(use_list=True, max_buffer_size=len(body) + 1)
    unpacker.feed(body)
    topic, topic_id, segment_id, generation = next(unpacker)
    partitions: dict[int, SettledPartition] = {}
    for partition, first, end, flat in unpacker:
        found = partitions.setdefault(partition, SettledPartition(first, end, []))
        values = iter(flat)
        found.aborted.extend(map(Aborted, values, values, values))
    return Settled(Owner(topic, uuid.UUID(bytes=topic_id), segment_id, generation), partitions)
