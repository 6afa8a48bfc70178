"""ListOffsets (key 2): the first, the last, or the first offset at a time. The end is HW or LSO by isolation level."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from broker import cluster_view
from broker.call import Call
from broker.handlers.fetch import check_leader_epoch
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_EARLIEST_PENDING_UPLOAD = -6
_SINCE = {_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING_UPLOAD: 11}
"""The first version in which each of these means something."""
_READ_COMMITTED = 1
OFFSET_NOT_AVAILABLE_VERSION = 5


def handle(node: Node, call: Call, request: Any) -> None:
    committed = getattr(request, "isolation_level", 0) == _READ_COMMITTED

    view = cluster_view.of(node)

    def one(name: str, wanted: Any, *, repeated: bool) -> Any:
        try:
            if repeated:
                raise KafkaError(ErrorCode.invalid_request, "the same partition twice")
            if call.version < _SINCE.get(wanted.timestamp, 0):
                raise KafkaError(
                    ErrorCode.unsupported_version, f"version {call.version} has no such timestamp"
                )
            partition = node.topics.partition(node.topics.get(name), wanted.partition_index)
            if not view.leads(partition):
                raise KafkaError(ErrorCode.not_leader_or_follower)
            check_leader_epoch(partition, getattr(wanted, "current_leader_epoch", -1))
            if not view.knows_end(partition):
                # It could go back behind what the leader before has told (KIP-207).
                raise KafkaError(
                    ErrorCode.offset_not_available
                    if call.version >= OFFSET_NOT_AVAILABLE_VERSION
                    else ErrorCode.leader_not_available
                )
            timestamp, offset = _find(partition, wanted.timestamp, committed=committed)
            epoch = partition.log.term if wanted.timestamp == _LATEST else partition.epoch_at(offset)
            return call.build(
                "ListOffsetsPartitionResponse",
                partition_index=wanted.partition_index,
                error_code=ErrorCode.none,
                timestamp=timestamp,
                offset=offset,
                leader_epoch=epoch if offset >= 0 else -1,
            )
        except KafkaError as refused:
            return call.build(
                "ListOffsetsPartitionResponse",
                partition_index=wanted.partition_index,
                error_code=refused.code,
            )

    def of(topic: Any) -> tuple[Any, ...]:
        times = Counter(wanted.partition_index for wanted in topic.partitions)
        first = {wanted.partition_index: wanted for wanted in topic.partitions}
        return tuple(one(topic.name, wanted, repeated=times[at] > 1) for at, wanted in first.items())

    call.answer(
        topics=tuple(
            call.build("ListOffsetsTopicResponse", name=topic.name, partitions=of(topic))
            for topic in request.topics
            if topic.partitions
        )
    )


def _find(partition: Partition, timestamp: int, *, committed: bool) -> tuple[int, int]:
    """(timestamp, offset); -1 for what there is none of."""
    if timestamp == _LATEST:
        return -1, partition.readable_end(read_committed=committed)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return -1, partition.log_start_offset
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return -1, -1  # nothing is tiered
    if timestamp == _MAX_TIMESTAMP:
        found = partition.max_timestamp(read_committed=committed)
        return (-1, -1) if found is None else (found[1], found[0])
    if timestamp < 0:
        raise KafkaError(ErrorCode.unsupported_version, f"timestamp {timestamp} means nothing here")
    at = partition.offset_for_timestamp(timestamp, read_committed=committed)
    return (-1, -1) if at is None else (at[1], at[0])
