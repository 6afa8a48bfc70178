"""Batches waiting to be written, and how they become entries of a segment.

Guarantees: the order inside a partition is the order of appending; the entries of one partition lie side by
side, so that its runs are long; an entry is framed once, when its position is known.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from crc32c import crc32c
from typing_extensions import Buffer

from storage.format import ENTRY_HEADER_BYTES, ENTRY_MAGIC, pack_crc, pack_entry_body
from storage.partition import PartitionLog
from storage.segment import Segment

JOIN_BELOW_BYTES: Final = 4096
"""Where the buffers of a write are smaller than this on average, copying them is cheaper than a long
vector."""

ASSIGNED_BYTES: Final = 16
"""Of a batch: what is set when it gets its offset."""

Queued = tuple[bytes, memoryview, int, int, int, int, int]
"""These bytes and rest of a batch, its size, base offset, end offset, txn_seq, max timestamp."""


class Framed(NamedTuple):
    """Entries ready to be written at the end of a segment."""

    buffers: list[Buffer]
    end: int
    """The segment's end once they are written."""
    ends: dict[PartitionLog, int]
    """The offset after the last one, per partition."""


def frame(segment: Segment, queue: dict[PartitionLog, list[Queued]], term: int, run_bytes: int) -> Framed:
    """Frame everything queued for the end of the segment, and enter it into the indexes."""
    salt = segment.salt
    split = segment.guarded_bytes - ENTRY_HEADER_BYTES - ASSIGNED_BYTES
    claim = segment.durable_end
    start = position = segment.end
    runs = 0
    buffers: list[Buffer] = []
    ends: dict[PartitionLog, int] = {}
    for log, entries in queue.items():
        partition = log.partition
        index = segment.indexes.get(partition)
        if index is None:
            index = segment.index_of(partition, entries[0][3])
            log.add_index(index)
        end_offset = 0
        for prefix, rest, size, base_offset, end_offset, txn_seq, timestamp in entries:
            guarded = (
                pack_entry_body(ENTRY_MAGIC, 0, size, partition, term, txn_seq, claim) + prefix + rest[:split]
            )
            buffers.append(pack_crc(crc32c(guarded, salt ^ position)) + guarded)
            buffers.append(rest[split:])
            size += ENTRY_HEADER_BYTES
            runs += index.add(base_offset, end_offset, position, size, term, timestamp, run_bytes)
            position += size
            segment.entries += 1
        ends[log] = end_offset
    segment.runs += runs
    if position - start < JOIN_BELOW_BYTES * len(buffers):
        buffers = [b"".join(buffers)]
    return Framed(buffers, position, ends)
