"""DescribeProducers (key 61; KIP-664): who has written to a partition lately, and whose transaction is open there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

_NONE = -1


def handle(node: Node, call: Call, request: Any) -> None:
    def one(name: str, index: int) -> Any:
        try:
            partition = node.topics.partition(node.topics.get(name), index)
        except KafkaError as refused:
            return call.build(
                "PartitionResponse", partition_index=index, error_code=refused.code, active_producers=()
            )
        return call.build(
            "PartitionResponse",
            partition_index=index,
            error_code=ErrorCode.none,
            active_producers=tuple(_producers(call, partition)),
        )

    call.answer(
        topics=tuple(
            call.build(
                "TopicResponse",
                name=topic.name,
                partitions=tuple(one(topic.name, index) for index in topic.partition_indexes),
            )
            for topic in request.topics
        )
    )


def _producers(call: Call, partition: Partition) -> list[Any]:
    open_offsets = {key[0]: first for key, first in partition.transactions.open_transactions()}
    return [
        call.build(
            "ProducerState",
            producer_id=producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.batches[-1][1],
            last_timestamp=state.active_ms,
            # No coordinator ever wrote a marker here.
            coordinator_epoch=_NONE,
            current_txn_start_offset=open_offsets.get(producer_id, _NONE),
        )
        for producer_id, state in partition.producers.states.items()
    ]
