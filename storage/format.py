"""The bytes of a segment file and of its checkpoint (design, section 9).

Guarantee: nothing decodes here unless its CRC32C holds. An entry's CRC is seeded with the CRC of its file's
header block and with its position, so a valid entry is valid only in its own place: neither bytes of another
file nor an entry quoted inside a record's value can be taken for one. All integers are big-endian.

    header block    4096 bytes: identity of the file, CRC in the last 4
    entries         32-byte entry header, then the Kafka record batch, without gaps
    bare entries    (replicated ranges) the same header with a flag, then what the range's group says to itself
    zeros           the preallocated rest                      (ACTIVE)
    footer          end mark, index blobs, producers, summary, trailer   (SEALED; the trailer ends the file)

What is known of the outcomes in a sealed segment lies beside it, in a file of its own (`storage.settled`).

The end mark is an entry without a batch: durable before the rest of the footer is written, it tells an
unfinished footer from a damaged entry.
"""

from __future__ import annotations

import re
import struct
import uuid
from typing import Any, Final, NamedTuple

import msgpack
from crc32c import crc32c
from typing_extensions import Buffer

FORMAT_VERSION: Final = 2
FIRST_VERSION: Final = 1
"""Of segments whose entries guard no more of a batch than its own CRC leaves out. Such a file is read, and appended to
by its own rule; no new one is made."""
_FRAME_VERSION: Final = 1
"""Of trailers and checkpoints; both are bound to their segment, whose version says the rest."""
HEADER_BLOCK_BYTES: Final = 4096
ENTRY_HEADER_BYTES: Final = 32
BATCH_PREFIX_BYTES: Final = 61
"""A record batch's header, whole: an entry's CRC covers it, so that what readers decide by it (attributes, producer,
sequence) is checked wherever an entry is. The batch's own CRC, which covers all but 21 of these bytes, is checked
where a file is scanned, and by clients."""
GUARDED_BYTES: Final = ENTRY_HEADER_BYTES + BATCH_PREFIX_BYTES
_GUARDED_BYTES_OF: Final = {FIRST_VERSION: ENTRY_HEADER_BYTES + 21, FORMAT_VERSION: GUARDED_BYTES}
TRAILER_BYTES: Final = 64
END_FLAG: Final = 1
NOOP_FLAG: Final = 2
MEMBERS_FLAG: Final = 4
ROLL_FLAG: Final = 8
BARE_FLAGS: Final = frozenset({NOOP_FLAG, MEMBERS_FLAG, ROLL_FLAG})
"""Entries of no partition: no offset is spent on them (D5), and whoever reads batches passes over them."""
ENTRY_MAGIC: Final = 0xE5A7
SEGMENT_SUFFIX: Final = ".seg"
CHECKPOINT_SUFFIX: Final = ".ckpt"
SETTLED_SUFFIX: Final = ".settled"
TEMPORARY_SUFFIX: Final = ".tmp"
LOG_STARTS_NAME: Final = "log-starts"
TAKING_OVER_NAME: Final = "taking-over"
COMPACTED_NAME: Final = "compacted"
ANCESTORS_NAME: Final = "ancestors"
MAX_PARENTS: Final = 256
MAX_MEMBERS_BYTES: Final = 512

_SEGMENT_MAGIC: Final = b"SEALOGSG"
_TRAILER_MAGIC: Final = b"SEALOGFT"
_CHECKPOINT_MAGIC: Final = b"SEALOGCP"

# magic, version, number of parents, topic id, segment id, first, last, term, created_ms, generation
_HEADER: Final = struct.Struct(">8sHH16sQIIIQI")
# first index (0: entries have no numbers), term of the entry before it, size of the members; the members follow
_NUMBERED: Final = struct.Struct(">QQH")
_NUMBERED_AT: Final = 3072
_CRC: Final = struct.Struct(">I")
# CRC of the payload, its size; the payload follows, and zeros up to the size of a batch's prefix
_BARE: Final = struct.Struct(">II")
# magic, version, salt, footer position, summary position, summary size, summary CRC
_TRAILER: Final = struct.Struct(">8sH2xIIIII")
# magic, version, salt, body size, body CRC
_CHECKPOINT: Final = struct.Struct(">8sH2xIII")

pack_crc: Final = _CRC.pack
pack_entry_body: Final = struct.Struct(">HHIIIQI").pack
"""magic, flags, batch size, partition, term, txn_seq, durable position: the entry header without its CRC."""

ENTRY: Final = struct.Struct(">IHHIIIQI")
"""crc, magic, flags, batch size, partition, term, txn_seq, durable position."""

ENTRY_AND_BATCH: Final = struct.Struct(">IH2xIIIQ4x" + "q12xxhi8xqqh" + "8x")
"""crc, magic, batch size, partition, term, txn_seq; then of the batch behind it: base offset, attributes,
last offset delta, max timestamp, producer id, producer epoch."""


class CorruptLog(Exception):
    """A file is not what it must be, and going on would lose or invent data. Names the file and the
    position."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} at byte {position}: {reason}")
        self.path: Final = path
        self.position: Final = position
        self.reason: Final = reason


class UnknownFormat(CorruptLog):
    """A file of a format version that this program does not read."""


class Numbered(NamedTuple):
    """Where a segment of a replicated range stands in its log (docs/raft.md, section 7)."""

    first_index: int
    """Of its first entry, counted from 1 on in the range's chain."""
    previous_term: int
    """Of the entry before that; 0 where there is none."""
    members: bytes
    """The group's members as of that place, as the group encodes them."""


class HeaderBlock(NamedTuple):
    """Who a segment file is. `salt` is the block's CRC, which binds every entry to this file."""

    topic_id: uuid.UUID
    segment_id: int
    first: int
    last: int
    term: int
    created_ms: int
    parents: tuple[int, ...]
    generation: int
    """How often it was rewritten by compaction. 0: as its range wrote it, without gaps between batches."""
    salt: int
    numbered: Numbered | None = None
    """None: the file is of a range that is not replicated. Of what compaction wrote only the last entry is there by
    its number."""
    version: int = FORMAT_VERSION

    @property
    def guarded_bytes(self) -> int:
        """How much of an entry its CRC covers, the CRC included: its header and the begin of the batch."""
        return _GUARDED_BYTES_OF[self.version]


def segment_name(segment_id: int, generation: int = 0) -> str:
    """The file of a segment; each rewriting by compaction is a file of its own."""
    return f"{segment_id:020d}{f'.{generation}' if generation else ''}{SEGMENT_SUFFIX}"


def settled_name(segment_id: int, generation: int = 0) -> str:
    """The sidecar of that file of a segment."""
    return settled_path(segment_name(segment_id, generation))


def settled_path(segment_path: str) -> str:
    """The sidecar of a segment file, whatever the file is called."""
    return segment_path.removesuffix(SEGMENT_SUFFIX) + SETTLED_SUFFIX


def checkpoint_name(segment_id: int) -> str:
    return f"{segment_id:020d}{CHECKPOINT_SUFFIX}"


class FileName(NamedTuple):
    """What a file's name says. `generation` is above 0 for segments that compaction has written."""

    segment_id: int
    suffix: str
    generation: int


_FILE_NAME: Final = re.compile(
    r"([0-9]{20})(?:\.([1-9][0-9]{0,8})(?=\.se))?(\.seg|\.seg\.tmp|\.ckpt|\.ckpt\.tmp|\.settled|\.settled\.tmp)"
)


def parse_name(name: str) -> FileName | None:
    """The parts of a file name made by this package; None for a stranger's."""
    found = _FILE_NAME.fullmatch(name)
    return FileName(int(found[1]), found[3], int(found[2] or 0)) if found else None


def encode_header_block(
    topic_id: uuid.UUID,
    segment_id: int,
    first: int,
    last: int,
    term: int,
    created_ms: int,
    parents: tuple[int, ...],
    generation: int = 0,
    numbered: Numbered | None = None,
) -> bytes:
    if len(parents) > MAX_PARENTS:
        raise ValueError(f"a segment has at most {MAX_PARENTS} parents")
    if numbered is not None and len(numbered.members) > MAX_MEMBERS_BYTES:
        raise ValueError(f"a group's members take at most {MAX_MEMBERS_BYTES} bytes")
    block = bytearray(HEADER_BLOCK_BYTES)
    _HEADER.pack_into(
        block,
        0,
        _SEGMENT_MAGIC,
        FORMAT_VERSION,
        len(parents),
        topic_id.bytes,
        segment_id,
        first,
        last,
        term,
        created_ms,
        generation,
    )
    struct.pack_into(f">{len(parents)}Q", block, _HEADER.size, *parents)
    if numbered is not None:
        first_index, previous_term, members = numbered
        _NUMBERED.pack_into(block, _NUMBERED_AT, first_index, previous_term, len(members))
        members_at = _NUMBERED_AT + _NUMBERED.size
        block[members_at : members_at + len(members)] = members
    _CRC.pack_into(block, HEADER_BLOCK_BYTES - 4, crc32c(memoryview(block)[:-4]))
    return bytes(block)


def decode_header_block(block: bytes, path: str) -> HeaderBlock:
    """Raises CorruptLog, or UnknownFormat for a version written by another program."""
    if len(block) < HEADER_BLOCK_BYTES:
        raise CorruptLog(path, 0, f"the file ends after {len(block)} bytes, inside its header block")
    (salt,) = _CRC.unpack_from(block, HEADER_BLOCK_BYTES - 4)
    # Every version keeps magic, version and CRC in these places, so damage is told from a newer format.
    if block[:8] != _SEGMENT_MAGIC:
        raise CorruptLog(path, 0, "this is no segment file")
    if crc32c(memoryview(block)[: HEADER_BLOCK_BYTES - 4]) != salt:
        raise CorruptLog(path, 0, "the header block is damaged")
    (version,) = struct.unpack_from(">H", block, 8)
    if version not in _GUARDED_BYTES_OF:
        raise UnknownFormat(
            path, 0, f"format version {version} is unknown, this program reads {FORMAT_VERSION}"
        )
    # fmt: off
    (
        _, _, parent_count, topic, segment_id, first, last, term, created_ms, generation,
    ) = _HEADER.unpack_from(block, 0)
    # fmt: on
    parents = struct.unpack_from(f">{min(parent_count, MAX_PARENTS)}Q", block, _HEADER.size)
    numbered = _decode_numbered(block) if version > FIRST_VERSION else None
    # fmt: off
    return HeaderBlock(
        uuid.UUID(bytes=topic), segment_id, first, last, term, created_ms, parents, generation, salt, numbered, version,
    )
    # fmt: on


def _decode_numbered(block: bytes) -> Numbered | None:
    first_index, previous_term, size = _NUMBERED.unpack_from(block, _NUMBERED_AT)
    if not first_index:
        return None
    members_at = _NUMBERED_AT + _NUMBERED.size
    return Numbered(first_index, previous_term, block[members_at : members_at + size])


def entry_is_valid(guarded: memoryview, salt: int, position: int) -> bool:
    """Whether these `HeaderBlock.guarded_bytes` are those of an entry that was written to this place of this file."""
    crc, magic = ENTRY.unpack_from(guarded, 0)[:2]
    return bool(magic == ENTRY_MAGIC and crc == crc32c(guarded[4:], salt ^ position))


def encode_end_mark(header: HeaderBlock, position: int) -> bytes:
    """The entry that ends a file at `position`; everything below is durable when it is written."""
    guarded = pack_entry_body(ENTRY_MAGIC, END_FLAG, 0, 0, 0, 0, position)
    guarded += bytes(header.guarded_bytes - ENTRY_HEADER_BYTES)
    return pack_crc(crc32c(guarded, header.salt ^ position)) + guarded


def encode_bare(flag: int, payload: bytes, term: int, claim: int, salt: int, position: int) -> bytes:
    """An entry of no partition, whole: header and body."""
    body = _BARE.pack(crc32c(payload), len(payload)) + payload
    body += bytes(max(0, BATCH_PREFIX_BYTES - len(body)))
    header = pack_entry_body(ENTRY_MAGIC, flag, len(body), 0, term, 0, claim)
    crc = pack_crc(crc32c(header + body[:BATCH_PREFIX_BYTES], salt ^ position))
    return crc + header + body


def bare_size(payload: bytes) -> int:
    """Of the whole entry."""
    return ENTRY_HEADER_BYTES + max(BATCH_PREFIX_BYTES, _BARE.size + len(payload))


def decode_bare(body: Buffer) -> bytes | None:
    """The payload; None where it is damaged."""
    view = memoryview(body)
    if len(view) < BATCH_PREFIX_BYTES:
        return None
    crc, size = _BARE.unpack_from(view)
    payload = bytes(view[_BARE.size : _BARE.size + size])
    whole = len(payload) == size and len(view) == max(BATCH_PREFIX_BYTES, _BARE.size + size)
    return payload if whole and crc32c(payload) == crc else None


class Trailer(NamedTuple):
    """Where a sealed segment's footer lies; positions in the file, sizes in bytes."""

    footer_position: int
    summary_position: int
    summary_size: int
    summary_crc: int


def encode_trailer(salt: int, trailer: Trailer) -> bytes:
    packed = _TRAILER.pack(_TRAILER_MAGIC, _FRAME_VERSION, salt, *trailer)
    packed += bytes(TRAILER_BYTES - 4 - len(packed))
    return packed + _CRC.pack(crc32c(packed))


def decode_trailer(data: bytes, salt: int) -> Trailer | None:
    """None when these are not the last bytes of this segment, sealed."""
    if len(data) != TRAILER_BYTES or data[:8] != _TRAILER_MAGIC:
        return None
    (crc,) = _CRC.unpack_from(data, TRAILER_BYTES - 4)
    if crc32c(memoryview(data)[: TRAILER_BYTES - 4]) != crc:
        return None
    _, version, found_salt, *fields = _TRAILER.unpack_from(data, 0)
    if version != _FRAME_VERSION or found_salt != salt:
        return None
    return Trailer(*fields)


def encode_checkpoint(salt: int, body: Any) -> bytes:
    packed: bytes = msgpack.packb(body)
    return _CHECKPOINT.pack(_CHECKPOINT_MAGIC, _FRAME_VERSION, salt, len(packed), crc32c(packed)) + packed


def decode_checkpoint(data: bytes, salt: int) -> Any | None:
    """The body; None when damaged, of another version or of another segment: then it is as good as absent."""
    if len(data) < _CHECKPOINT.size:
        return None
    magic, version, found_salt, size, crc = _CHECKPOINT.unpack_from(data, 0)
    if magic != _CHECKPOINT_MAGIC or version != _FRAME_VERSION or found_salt != salt:
        return None
    body = memoryview(data)[_CHECKPOINT.size :]
    if len(body) != size or crc32c(body) != crc:
        return None
    return unpack(body)


def unpack(data: Buffer) -> Any:
    """msgpack whose CRC has been checked, so its sizes are believed."""
    return msgpack.unpackb(data, strict_map_key=False, use_list=True)
