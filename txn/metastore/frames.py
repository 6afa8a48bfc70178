"""The bytes of the store's files: a header block, then frames. Sans I/O.

Guarantees that a damaged frame is never taken for a good one (CRC-32C over all of it, salted with the file's
number and covering its position), and that a reader who meets damage can tell a torn end from lost durable
data: every frame says in its header how far the log was durable when the frame was made. If a valid frame
behind the damage says that the damaged place had been flushed, then it wasn't the end of an unfinished write.

Header block (4096 bytes): magic, format version, kind, number, CRC. Frame: magic, CRC, payload length, kind,
lsn, durable lsn, position; payload. All little-endian. Space after the last frame is zeros.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from storage.zeros import used_bytes
from txn.metastore.errors import CorruptStore, UnknownFormat
from txn.metastore.schema import MAX_FRAME_BYTES

FORMAT_VERSION = 1
HEADER_BYTES = 4096
"""The frames start in a block of their own: no write to them can tear the header."""

LOG = 1
SNAPSHOT = 2

BATCH = 1
"""A batch of the log: [next sequence, [key, value, ...], [deleted key, ...]]. Its lsn follows its
predecessor's."""
MARK = 2
"""Says only how far the log is durable. Its lsn is that of the batch before it; no payload."""
RECORDS = 3
"""A stretch of a snapshot: [key, version, value, ...]. Its lsn is the snapshot's."""
END = 4
"""The end of a snapshot: [number of records, next sequence], and the note of its writer if there is one."""

FILE_MAGIC = b"metastor"
FRAME_MAGIC = b"\xa5Mf\x1e"

_FILE_HEADER = Struct("<8sIIQI")
_FRAME_START = Struct("<4sI")
_FRAME_REST = Struct("<IIQQQ")
_FRAME = Struct("<4sIIIQQQ")
FRAME_HEADER_BYTES = _FRAME.size


class Frame(NamedTuple):
    kind: int
    lsn: int
    durable_lsn: int
    position: int
    payload: bytes


def encode_file_header(kind: int, number: int) -> bytes:
    fields = _FILE_HEADER.pack(FILE_MAGIC, FORMAT_VERSION, kind, number, 0)[:-4]
    return (fields + crc32c(fields).to_bytes(4, "little")).ljust(HEADER_BYTES, b"\0")


def read_file_header(path: str, data: bytes) -> tuple[int, int]:
    """(kind, number) of a file. Raises `UnknownFormat` or `CorruptStore`."""
    if len(data) < _FILE_HEADER.size or not data.startswith(FILE_MAGIC):
        raise CorruptStore(path, 0, "the file's header is damaged")
    _, version, found_kind, found_number, crc = _FILE_HEADER.unpack_from(data)
    # The version comes first: what follows it may look different in another one.
    if version != FORMAT_VERSION:
        raise UnknownFormat(path, version, FORMAT_VERSION)
    if crc != crc32c(data[: _FILE_HEADER.size - 4]):
        raise CorruptStore(path, 0, "the file's header is damaged")
    return found_kind, found_number


def check_file_header(path: str, data: bytes, kind: int, number: int) -> None:
    """Raises `UnknownFormat` or `CorruptStore`."""
    found_kind, found_number = read_file_header(path, data)
    if (found_kind, found_number) != (kind, number):
        raise CorruptStore(path, 0, f"this is file {found_number} of kind {found_kind}: was it renamed?")


def encode_frame_header(
    file_number: int, position: int, kind: int, lsn: int, durable_lsn: int, payload: bytes
) -> bytes:
    """What goes before `payload` in file `file_number` at `position`."""
    rest = _FRAME_REST.pack(len(payload), kind, lsn, durable_lsn, position)
    return _FRAME_START.pack(FRAME_MAGIC, crc32c(payload, crc32c(rest, file_number & 0xFFFFFFFF))) + rest


def lsn_of(header: bytes) -> int:
    """The lsn in a frame's header, whatever the frame is worth. Raises ValueError for fewer bytes than a header's."""
    if len(header) < FRAME_HEADER_BYTES:
        raise ValueError("no whole frame header")
    lsn: int = _FRAME.unpack_from(header)[4]
    return lsn


class Tail(NamedTuple):
    """What follows the last good frame of a file."""

    position: int
    """The end of the good frames."""
    dropped_bytes: int
    """From `position` to the last byte that isn't zero; 0 is a clean end."""
    claimed_lsn: int
    """The highest lsn that a valid frame behind the damage calls durable; 0 if there is none."""
    reason: str
    """What is wrong at `position`; empty at a clean end."""


class FrameReader:
    """Takes a file's bytes after its header piece by piece, gives the frames up to the first damage."""

    def __init__(self, file_number: int) -> None:
        self._salt = file_number & 0xFFFFFFFF
        self._data = b""
        self._position = HEADER_BYTES
        """Where `_data` starts in the file."""
        self._end = HEADER_BYTES
        """Where the good frames end."""
        self._reason = ""
        self._last_used = HEADER_BYTES
        self._claimed_lsn = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The good frames that end in these bytes, in order; none once there was damage."""
        used = used_bytes(data)
        if used:
            self._last_used = self._position + len(self._data) + used
        self._data = self._data + data if self._data else data
        if self._reason:
            self._search(final=False)
            return []
        return self._read()

    def finish(self) -> Tail:
        """The file has ended."""
        if self._data and not self._reason:
            self._damaged("the frame is cut short")
        if self._reason:
            self._search(final=True)
        dropped_bytes = max(0, self._last_used - self._end)
        return Tail(self._end, dropped_bytes, self._claimed_lsn, self._reason if dropped_bytes else "")

    def _read(self) -> list[Frame]:
        frames: list[Frame] = []
        data = self._data
        at = 0
        size = len(data)
        while size - at >= FRAME_HEADER_BYTES:
            frame = self._frame_at(data, at)
            if frame is None:
                break
            if isinstance(frame, str):
                self._end = self._position + at
                self._cut(at)
                self._damaged(frame)
                self._search(final=False)
                return frames
            frames.append(frame)
            at += FRAME_HEADER_BYTES + len(frame.payload)
        self._end = self._position + at
        self._cut(at)
        return frames

    def _frame_at(self, data: bytes, at: int) -> Frame | str | None:
        """The frame, or what is wrong with it, or None when more bytes are needed to tell."""
        magic, crc, length, kind, lsn, durable_lsn, position = _FRAME.unpack_from(data, at)
        if magic != FRAME_MAGIC:
            return "no frame starts here"
        if length > MAX_FRAME_BYTES:
            return f"the frame claims to be {length} bytes long"
        if position != self._position + at:
            return f"the frame belongs at byte {position}"
        start = at + FRAME_HEADER_BYTES
        payload = data[start : start + length]
        if len(payload) < length:
            return None
        if crc != crc32c(payload, crc32c(data[at + _FRAME_START.size : start], self._salt)):
            return "the frame's checksum is wrong"
        return Frame(kind, lsn, durable_lsn, position, payload)

    def _damaged(self, reason: str) -> None:
        self._reason = reason
        # What starts at the damage itself was looked at already.
        self._cut(1)

    def _search(self, *, final: bool) -> None:
        """Look for valid frames behind the damage: only for what they say of durability."""
        at = 0
        while True:
            found = self._data.find(FRAME_MAGIC, at)
            if found < 0:
                self._cut(max(at, len(self._data) - len(FRAME_MAGIC) + 1))
                return
            at = found
            frame = self._frame_at(self._data, at) if len(self._data) - at >= FRAME_HEADER_BYTES else None
            if isinstance(frame, Frame):
                self._claimed_lsn = max(self._claimed_lsn, frame.durable_lsn)
                at += FRAME_HEADER_BYTES + len(frame.payload)
            elif frame is None and not final:
                self._cut(at)
                return
            else:
                at += 1

    def _cut(self, size: int) -> None:
        self._data = self._data[size:]
        self._position += size
