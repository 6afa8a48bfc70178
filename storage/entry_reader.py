"""Reading a replicated range's entries by their numbers, for followers that lack them (docs/raft.md, section 7).

Guarantee: what comes out is whole, every CRC was checked: damage of one disk does not travel.
"""

from __future__ import annotations

from typing import Final

from storage.format import (
    BARE_FLAGS,
    ENTRY,
    ENTRY_HEADER_BYTES,
    GUARDED_BYTES,
    MEMBERS_FLAG,
    NOOP_FLAG,
    ROLL_FLAG,
    CorruptLog,
    decode_bare,
    entry_is_valid,
)
from storage.numbering import MEMBERSHIP, NOOP, NORMAL, PLACE_EVERY_BYTES, Entry
from storage.payloads import encode_batch
from storage.segment import Segment
from wire.batch import BATCH_HEADER_SIZE, check_crc, parse_header
from wire.errors import KafkaError

KIND_OF: Final = {NOOP_FLAG: NOOP, MEMBERS_FLAG: MEMBERSHIP, ROLL_FLAG: NORMAL}


def read_entries(segment: Segment, first: int, last: int, max_bytes: int) -> list[Entry]:
    """From `first` to at most `last`: one, and as many more as fit into `max_bytes` and lie in this segment.

    Raises CorruptLog, OSError.
    """
    numbering = segment.load_numbering()
    index, position = numbering.place_before(first)
    last = min(last, numbering.last_index)
    file = segment.file()
    data = memoryview(file.pread(min(PLACE_EVERY_BYTES + max_bytes, segment.end - position), position))
    at = 0
    found: list[Entry] = []
    total = 0
    while index <= last:
        if len(data) - at < GUARDED_BYTES:
            if found:
                return found
            position, at = position + at, 0
            data = memoryview(
                file.pread(min(max(max_bytes, GUARDED_BYTES), segment.end - position), position)
            )
        if len(data) - at < GUARDED_BYTES or not entry_is_valid(
            data[at : at + GUARDED_BYTES], segment.salt, position + at
        ):
            raise CorruptLog(segment.path, position + at, f"entry {index} is damaged")
        _, _, flags, size, partition, term, txn_seq, _ = ENTRY.unpack_from(data, at)
        end = at + ENTRY_HEADER_BYTES + size
        if index >= first:
            if end > len(data):
                if found:
                    return found
                position, at = position + at, 0
                data = memoryview(file.pread(ENTRY_HEADER_BYTES + size, position))
                end = ENTRY_HEADER_BYTES + size
            body = data[at + ENTRY_HEADER_BYTES : end]
            kind, payload = _content(segment, position + at, flags, partition, txn_seq, size, body)
            total += len(payload)
            if found and total > max_bytes:
                return found
            found.append(Entry(term, index, kind, payload))
        elif end > len(data):
            position, at, end = position + end, 0, 0
            data = memoryview(b"")
        at = end
        index += 1
    return found


def _content(
    segment: Segment, position: int, flags: int, partition: int, txn_seq: int, size: int, body: memoryview
) -> tuple[int, bytes]:
    if flags in BARE_FLAGS:
        payload = decode_bare(body)
        if payload is None:
            raise CorruptLog(segment.path, position, "an entry of no partition is damaged")
        return KIND_OF[flags], payload
    try:
        if flags or len(body) != size or size < BATCH_HEADER_SIZE:
            raise CorruptLog(segment.path, position, "this is no entry with a batch")
        check_crc(body, parse_header(body))
    except KafkaError as error:
        raise CorruptLog(segment.path, position, f"the batch is damaged ({error.message})") from error
    return NORMAL, encode_batch(partition, txn_seq, body, b"")
