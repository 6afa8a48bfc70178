"""OffsetForLeaderEpoch (key 23; KIP-101, KIP-320): where a leader epoch ended, for consumers that check their
position after a change of leader (here: after a restart).

Source of the cases: Kafka's LeaderEpochFileCache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import cluster_view
from broker.call import Call
from broker.handlers.fetch import check_leader_epoch
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

_UNDEFINED = -1


def handle(node: Node, call: Call, request: Any) -> None:
    view = cluster_view.of(node)

    def one(name: str, wanted: Any) -> Any:
        code, epoch, end_offset = ErrorCode.none, _UNDEFINED, _UNDEFINED
        try:
            partition = node.topics.partition(node.topics.get(name), wanted.partition)
            if not view.leads(partition):
                raise KafkaError(ErrorCode.not_leader_or_follower)
            check_leader_epoch(partition, wanted.current_leader_epoch)
            epoch, end_offset = end_of_epoch(partition, wanted.leader_epoch)
        except KafkaError as refused:
            code = refused.code
        return call.build(
            "EpochEndOffset",
            error_code=code,
            partition=wanted.partition,
            leader_epoch=epoch,
            end_offset=end_offset,
        )

    call.answer(
        topics=tuple(
            call.build(
                "OffsetForLeaderTopicResult",
                topic=topic.topic,
                partitions=tuple(one(topic.topic, wanted) for wanted in topic.partitions),
            )
            for topic in request.topics
        )
    )


def end_of_epoch(partition: Partition, epoch: int) -> tuple[int, int]:
    """(the largest epoch not above this one that wrote anything, the offset after its last record); -1 where this
    one is yet to come."""
    term = partition.log.term
    if epoch == term:
        return epoch, partition.end_offset
    if epoch < 0 or epoch > term:
        return _UNDEFINED, _UNDEFINED
    floor = epoch
    for known, first_offset in partition.epochs:
        if known > epoch:
            return floor, max(first_offset, partition.log_start_offset)
        floor = known
    return floor, partition.end_offset
