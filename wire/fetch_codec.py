"""Fetch responses, versions 4 to 18, by struct, with the record data passed through.

Guarantee: the buffers returned are, one after the other, byte for byte what the generated schema writes for
the same values; record data is never copied. `records` is never null (librdkafka fails on it). The list of
aborted transactions is always empty: aborted batches are never sent, so no client needs to know of them.

Source: Kafka's FetchResponse message; KIP-227 (sessions), KIP-392 (read replica), KIP-951 (current leader),
KIP-516 (topic ids).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from typing_extensions import Buffer

from wire.errors import NO_ERROR, ErrorCode
from wire.packing import (
    NodeEndpoint,
    pack_array_length,
    pack_current_leader,
    pack_node_endpoints,
    pack_string,
    pack_tagged_fields,
    pack_unsigned_varint,
)

FIRST_WITH_LOG_START: Final = 5
FIRST_WITH_SESSION: Final = 7
FIRST_WITH_READ_REPLICA: Final = 11
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_ID: Final = 13
FIRST_WITH_ENDPOINTS: Final = 16

_CURRENT_LEADER_TAG: Final = 1
_NODE_ENDPOINTS_TAG: Final = 0
_NO_TOPIC_ID: Final = bytes(16)
_INT32: Final = struct.Struct(">i")
# Length, correlation id, (header tags,) throttle time, error, session id.
_HEAD_V4: Final = struct.Struct(">iii")
_HEAD_V7: Final = struct.Struct(">iiihi")
_HEAD_V12: Final = struct.Struct(">iibihi")
# Partition, error, high watermark, last stable offset, log start offset, the count of aborted transactions,
# preferred read replica, size of the records; each as its version has them.
_PARTITION_V4: Final = struct.Struct(">ihqqii")
_PARTITION_V5: Final = struct.Struct(">ihqqqii")
_PARTITION_V11: Final = struct.Struct(">ihqqqiii")
_PARTITION_V12: Final = struct.Struct(">ihqqqbi")
_EMPTY_COMPACT: Final = 1
"""The compact length of an empty array."""


@dataclass(slots=True)
class FetchPartitionResult:
    """What one partition has to answer. Offsets are -1 where an error leaves them unknown."""

    partition: int
    error: ErrorCode = NO_ERROR
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    preferred_read_replica: int = -1
    records: Sequence[Buffer] = ()
    """Whole batches, in any number of byte buffers; they must not change until they are written."""
    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class FetchTopicResult:
    """The partitions of one topic. Which of name and id goes out is the version's choice."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[FetchPartitionResult]


def encode_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[FetchTopicResult],
    *,
    throttle_time_ms: int = 0,
    error: ErrorCode = NO_ERROR,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Buffer]:
    """A whole response frame, length prefix and header included, as buffers to be written one after another.

    Everything between two partitions' records is one buffer. `error` and `session_id` go out from version 7
    on.
    """
    flexible = version >= FIRST_FLEXIBLE
    if flexible:
        head = bytearray(_HEAD_V12.pack(0, correlation_id, 0, throttle_time_ms, error, session_id))
    elif version >= FIRST_WITH_SESSION:
        head = bytearray(_HEAD_V7.pack(0, correlation_id, throttle_time_ms, error, session_id))
    else:
        head = bytearray(_HEAD_V4.pack(0, correlation_id, throttle_time_ms))
    buffers: list[Buffer] = [head]
    chunk = head
    written_bytes = 0
    chunk += pack_array_length(len(topics), flexible)
    for topic in topics:
        if version >= FIRST_WITH_TOPIC_ID:
            chunk += topic.topic_id.bytes if topic.topic_id is not None else _NO_TOPIC_ID
        else:
            chunk += pack_string(topic.name, flexible)
        chunk += pack_array_length(len(topic.partitions), flexible)
        for result in topic.partitions:
            records = result.records
            records_bytes = 0
            for record_buffer in records:
                records_bytes += memoryview(record_buffer).nbytes
            chunk += _pack_partition(version, result, records_bytes)
            if records_bytes:
                buffers += records
                written_bytes += len(chunk) + records_bytes
                buffers.append(chunk := bytearray())
            if flexible:
                if result.leader_id == -1 and result.leader_epoch == -1:
                    chunk.append(0)
                else:
                    leader = pack_current_leader(result.leader_id, result.leader_epoch)
                    chunk += pack_tagged_fields([(_CURRENT_LEADER_TAG, leader)])
        if flexible:
            chunk.append(0)
    if flexible:
        if node_endpoints and version >= FIRST_WITH_ENDPOINTS:
            chunk += pack_tagged_fields([(_NODE_ENDPOINTS_TAG, pack_node_endpoints(node_endpoints))])
        else:
            chunk.append(0)
    if not chunk:
        buffers.pop()
    _INT32.pack_into(head, 0, written_bytes + len(chunk) - _INT32.size)
    return buffers


def _pack_partition(version: int, result: FetchPartitionResult, records_bytes: int) -> bytes:
    """A partition up to and including the size of its records."""
    if version >= FIRST_FLEXIBLE:
        return _PARTITION_V12.pack(
            result.partition,
            result.error,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
            _EMPTY_COMPACT,
            result.preferred_read_replica,
        ) + pack_unsigned_varint(records_bytes + 1)
    if version >= FIRST_WITH_READ_REPLICA:
        return _PARTITION_V11.pack(
            result.partition,
            result.error,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
            0,
            result.preferred_read_replica,
            records_bytes,
        )
    if version >= FIRST_WITH_LOG_START:
        return _PARTITION_V5.pack(
            result.partition,
            result.error,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
            0,
            records_bytes,
        )
    return _PARTITION_V4.pack(
        result.partition,
        result.error,
        result.high_watermark,
        result.last_stable_offset,
        0,
        records_bytes,
    )
