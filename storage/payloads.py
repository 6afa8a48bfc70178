"""What the entries of a replicated range say (docs/raft.md, section 7): a batch for a partition, or a roll.

    batch    1 u8 | partition u32 | txn_seq u64 | the batch as it lies in the log, offsets and leader epoch set
    roll     2 u8 | id of the child u64 | when it was made, ms u64
    retire   3 u8 | the same: a roll behind which no data follows

Guarantee: what `decode_batch` gives out is whole: its CRC holds. Place, file and claim are no part of it: each replica
frames the batch anew.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from typing_extensions import Buffer

from wire.batch import BATCH_HEADER_SIZE, BatchHeader, check_crc, parse_header
from wire.errors import KafkaError

_BATCH: Final = struct.Struct(">BIQ")
_ROLL: Final = struct.Struct(">BQQ")
_BATCH_TAG: Final = 1
_ROLL_TAG: Final = 2
_RETIRE_TAG: Final = 3
BATCH_AT: Final = _BATCH.size

pack_batch_head: Final = _BATCH.pack


class BadPayload(ValueError):
    """Not what a leader of this format sends."""


class Batch(NamedTuple):
    partition: int
    txn_seq: int
    header: BatchHeader
    data: memoryview
    """The batch, whole."""


class Roll(NamedTuple):
    """The segment ends here, and this one goes on: at the same place on every replica."""

    child_id: int
    created_ms: int
    retires: bool = False
    """The range ends here: other ranges take its partitions over, and the child holds what the group says to itself."""


def encode_batch(partition: int, txn_seq: int, prefix: Buffer, rest: Buffer) -> bytes:
    return b"".join((_BATCH.pack(_BATCH_TAG, partition, txn_seq), prefix, rest))


def encode_roll(roll: Roll) -> bytes:
    tag = _RETIRE_TAG if roll.retires else _ROLL_TAG
    return _ROLL.pack(tag, roll.child_id, roll.created_ms)


def decode(payload: bytes, term: int, *, check: bool = True) -> Batch | Roll:
    """`check`: the batch's CRC as well; needless where this node made it. Raises BadPayload."""
    if len(payload) == _ROLL.size and payload[0] in (_ROLL_TAG, _RETIRE_TAG):
        tag, child_id, created_ms = _ROLL.unpack(payload)
        return Roll(child_id, created_ms, tag == _RETIRE_TAG)
    if len(payload) < BATCH_AT + BATCH_HEADER_SIZE or payload[0] != _BATCH_TAG:
        raise BadPayload(f"an entry of {len(payload)} bytes that is no batch and no roll")
    _, partition, txn_seq = _BATCH.unpack_from(payload)
    data = memoryview(payload)[BATCH_AT:]
    try:
        header = parse_header(data)
        if header.size_bytes != len(data) or header.leader_epoch != term:
            raise BadPayload(f"a batch of term {header.leader_epoch} in an entry of term {term}")
        if check:
            check_crc(data, header)
    except KafkaError as error:
        raise BadPayload(f"an entry with a damaged batch ({error.message})") from error
    return Batch(partition, txn_seq, header, data)
