"""Messages as bytes, for the streams between nodes.

    frame    length u32 (of what follows) | crc32 u32 (of what follows it) | version u8 | kind u8 | group u64 |
             source u32 | target u32 | term u64 | body
    body     as the kind says (below); big-endian throughout; an entry's index follows from its place

Guarantees: `decode` gives back what `encode` took, and raises `BadMessage` for every other input, without reading
beyond it or allocating more than it holds; a frame longer than the reader's limit is refused by its length alone.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from raftish import membership as members
from raftish.entries import Entry, Kind
from raftish.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    Note,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

VERSION: Final = 1
DEFAULT_MAX_FRAME_BYTES: Final = 128 << 20
"""Above the largest record batch that a broker may be set to take."""
_PREFIX: Final = struct.Struct(">II")
_HEADER: Final = struct.Struct(">BBQIIQ")
_VOTE_REQUEST: Final = struct.Struct(">QQB")
_PRE_VOTE_REQUEST: Final = struct.Struct(">QQ")
_GRANTED: Final = struct.Struct(">B")
_APPEND_REQUEST: Final = struct.Struct(">QQQI")
_ENTRY: Final = struct.Struct(">QBI")
_APPEND_RESPONSE: Final = struct.Struct(">BQQQ")
_HEARTBEAT: Final = struct.Struct(">QQ")
_HEARTBEAT_RESPONSE: Final = struct.Struct(">Q")
_SNAPSHOT_REQUEST: Final = struct.Struct(">QQ")


class BadMessage(ValueError):
    """Bytes that no node of this version sends."""


def encode(group: int, message: Message) -> bytes:
    """A whole frame."""
    kind = _NUMBERS[type(message)]
    head = _HEADER.pack(VERSION, kind, group, message.source, message.target, message.term)
    rest = head + _ENCODERS[kind](message)
    crc = zlib.crc32(rest)
    return _PREFIX.pack(len(rest) + 4, crc) + rest


def decode(frame: bytes) -> tuple[int, Message]:
    """(group, message) of one frame without its length, as `Frames` gives it."""
    try:
        (crc,) = struct.unpack_from(">I", frame)
        if crc != zlib.crc32(memoryview(frame)[4:]):
            raise BadMessage("a frame with another checksum")
        version, kind, group, source, target, term = _HEADER.unpack_from(frame, 4)
        if version != VERSION:
            raise BadMessage(f"version {version}, this is {VERSION}")
        decoder = _DECODERS.get(kind)
        if decoder is None:
            raise BadMessage(f"message kind {kind}")
        message, end = decoder(frame, 4 + _HEADER.size, source, target, term)
    except struct.error as error:
        raise BadMessage(f"a message that ends early: {error}") from error
    if end != len(frame):
        raise BadMessage(f"{len(frame) - end} bytes after the message")
    return group, message


class Frames:
    """Cuts a stream into frames."""

    def __init__(self, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole by now, without their lengths. Raises `BadMessage`."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                (size,) = struct.unpack_from(">I", buffer, start)
                if size > self._max:
                    raise BadMessage(f"a frame of {size} bytes, the limit is {self._max}")
                if len(buffer) - start - 4 < size:
                    break
                frame = bytes(memoryview(buffer)[start + 4 : start + 4 + size])
                start += 4 + size
                yield frame
        finally:
            del buffer[:start]


def _flag(value: int) -> bool:
    if value > 1:
        raise BadMessage(f"{value} for a yes or no")
    return bool(value)


# Bodies.


def _encode_append_request(message: AppendRequest) -> bytes:
    parts = [
        _APPEND_REQUEST.pack(message.prev_index, message.prev_term, message.commit, len(message.entries))
    ]
    for entry in message.entries:
        parts += (_ENTRY.pack(entry.term, entry.kind, len(entry.payload)), entry.payload)
    return b"".join(parts)


def _decode_append_request(
    frame: bytes, at: int, source: int, target: int, term: int
) -> tuple[AppendRequest, int]:
    prev_index, prev_term, commit, count = _APPEND_REQUEST.unpack_from(frame, at)
    at += _APPEND_REQUEST.size
    if count > (len(frame) - at) // _ENTRY.size:
        raise BadMessage(f"{count} entries in {len(frame) - at} bytes")
    entries = []
    last_term = prev_term
    for index in range(prev_index + 1, prev_index + 1 + count):
        entry_term, kind, size = _ENTRY.unpack_from(frame, at)
        at += _ENTRY.size
        if size > len(frame) - at:
            raise BadMessage(f"a payload of {size} bytes in {len(frame) - at}")
        if not last_term <= entry_term <= term:
            raise BadMessage(f"an entry of term {entry_term} after {last_term}, in a message of {term}")
        last_term = entry_term
        entry = Entry(entry_term, index, _kind(kind), frame[at : at + size])
        if entry.kind is Kind.MEMBERSHIP:
            _membership(entry.payload)
        entries.append(entry)
        at += size
    return AppendRequest(source, target, term, prev_index, prev_term, commit, tuple(entries)), at


def _kind(value: int) -> Kind:
    try:
        return Kind(value)
    except ValueError as error:
        raise BadMessage(f"an entry of kind {value}") from error


def _membership(payload: bytes) -> members.Membership:
    try:
        return members.decode(payload)
    except ValueError as error:
        raise BadMessage(str(error)) from error


def _encode_snapshot_request(message: SnapshotRequest) -> bytes:
    return _SNAPSHOT_REQUEST.pack(message.index, message.index_term) + members.encode(message.membership)


def _decode_snapshot_request(
    frame: bytes, at: int, source: int, target: int, term: int
) -> tuple[SnapshotRequest, int]:
    index, index_term = _SNAPSHOT_REQUEST.unpack_from(frame, at)
    membership = _membership(frame[at + _SNAPSHOT_REQUEST.size :])
    return SnapshotRequest(source, target, term, index, index_term, membership), len(frame)


def _decode_note(frame: bytes, at: int, source: int, target: int, term: int) -> tuple[Note, int]:
    return Note(source, target, term, frame[at:]), len(frame)


def _plain(
    kind: type[Any], layout: struct.Struct, names: tuple[str, ...], flag: int | None = None
) -> tuple[Callable[[Any], bytes], Callable[..., tuple[Any, int]]]:
    """The two directions of a body of fixed size; `flag` is the place of its one boolean."""

    def encode_body(message: Any) -> bytes:
        return layout.pack(*(getattr(message, name) for name in names))

    def decode_body(frame: bytes, at: int, source: int, target: int, term: int) -> tuple[Any, int]:
        values = list(layout.unpack_from(frame, at))
        if flag is not None:
            values[flag] = _flag(values[flag])
        return kind(source, target, term, *values), at + layout.size

    return encode_body, decode_body


_KINDS: Final[dict[int, tuple[type[Any], tuple[Callable[[Any], bytes], Callable[..., tuple[Any, int]]]]]] = {
    1: (PreVoteRequest, _plain(PreVoteRequest, _PRE_VOTE_REQUEST, ("last_index", "last_term"))),
    2: (PreVoteResponse, _plain(PreVoteResponse, _GRANTED, ("granted",), 0)),
    3: (VoteRequest, _plain(VoteRequest, _VOTE_REQUEST, ("last_index", "last_term", "transfer"), 2)),
    4: (VoteResponse, _plain(VoteResponse, _GRANTED, ("granted",), 0)),
    5: (AppendRequest, (_encode_append_request, _decode_append_request)),
    6: (
        AppendResponse,
        _plain(AppendResponse, _APPEND_RESPONSE, ("success", "index", "hint_index", "hint_term"), 0),
    ),
    7: (Heartbeat, _plain(Heartbeat, _HEARTBEAT, ("round", "commit"))),
    8: (HeartbeatResponse, _plain(HeartbeatResponse, _HEARTBEAT_RESPONSE, ("round",))),
    9: (SnapshotRequest, (_encode_snapshot_request, _decode_snapshot_request)),
    10: (TimeoutNow, _plain(TimeoutNow, struct.Struct(""), ())),
    11: (Note, (lambda message: message.payload, _decode_note)),
}
_NUMBERS: Final = {kind: number for number, (kind, _) in _KINDS.items()}
_ENCODERS: Final = {number: pair[0] for number, (_, pair) in _KINDS.items()}
_DECODERS: Final = {number: pair[1] for number, (_, pair) in _KINDS.items()}
