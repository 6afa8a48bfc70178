"""WriteTxnMarkers (key 27): how an administrator aborts an open transaction (KIP-664, `kafka-transactions abort`).

No markers are written here, and no transaction can hang: an abort ends the producer's whole transaction through the
coordinator and fences the producer, as its timeout would have done. To commit so is refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker import cluster_view
from broker.call import Call
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    codes: dict[tuple[int, str, int], ErrorCode] = {}
    view = cluster_view.of(node)
    waiting = 1

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            _answer(call, request, codes)

    def ended(partitions: list[tuple[int, str, int]], error: KafkaError | None) -> None:
        for at in partitions:
            codes[at] = error.code if error else ErrorCode.none
        arrived()

    for number, marker in enumerate(request.markers):
        open_in: list[tuple[int, str, int]] = []
        for topic in marker.topics:
            for index in topic.partition_indexes:
                at = (number, topic.name, index)
                try:
                    partition = node.topics.partition(node.topics.get(topic.name), index)
                    if not view.leads(partition):
                        raise KafkaError(ErrorCode.not_leader_or_follower)
                    if marker.transaction_result:
                        raise KafkaError(ErrorCode.invalid_request, "only the producer itself can commit")
                    codes[at] = ErrorCode.none
                    if _is_open(partition, marker):
                        open_in.append(at)
                except KafkaError as refused:
                    codes[at] = refused.code
        if open_in:
            waiting += 1
            node.coordinator.open.abort_by_administrator(marker.producer_id, partial(ended, open_in))
    arrived()


def _is_open(partition: Partition, marker: Any) -> bool:
    """
    Raises:
        KafkaError: INVALID_PRODUCER_EPOCH for an epoch older than what is open, or than the last that wrote.
    """
    state = partition.producers.states.get(marker.producer_id)
    newest = state.epoch if state is not None else -1
    found = False
    for (producer_id, epoch, _), _ in partition.transactions.open_transactions():
        if producer_id == marker.producer_id:
            found = True
            newest = max(newest, epoch)
    if marker.producer_epoch < newest:
        raise KafkaError(ErrorCode.invalid_producer_epoch)
    return found


def _answer(call: Call, request: Any, codes: dict[tuple[int, str, int], ErrorCode]) -> None:
    call.answer(
        markers=tuple(
            call.build(
                "WritableTxnMarkerResult",
                producer_id=marker.producer_id,
                topics=tuple(
                    call.build(
                        "WritableTxnMarkerTopicResult",
                        name=topic.name,
                        partitions=tuple(
                            call.build(
                                "WritableTxnMarkerPartitionResult",
                                partition_index=index,
                                error_code=codes[(number, topic.name, index)],
                            )
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for number, marker in enumerate(request.markers)
        )
    )
