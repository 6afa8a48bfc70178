"""DeleteRecords (key 21; KIP-107): move log starts. Answered when the new ones are durable.

The bytes stay in their segments until these are dropped as a whole; no client sees them any more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker import cluster_view, topic_config
from broker.call import Call
from broker.topic import Topic
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

_HIGH_WATERMARK = -1
_NOTHING = -1


def handle(node: Node, call: Call, request: Any) -> None:
    results: list[Any] = []
    waiting = 1

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            call.answer(topics=tuple(results))

    def report(
        wanted: Any, topic: Topic | None, codes: dict[int, ErrorCode], error: KafkaError | None = None
    ) -> None:
        """What became of one topic's partitions; `error`: of those that nothing was wrong with."""
        partitions = []
        for one in wanted.partitions:
            code = codes[one.partition_index]
            if code is ErrorCode.none and error is not None:
                code = error.code
            gone = topic is None or code is not ErrorCode.none
            partitions.append(
                call.build(
                    "DeleteRecordsPartitionResult",
                    partition_index=one.partition_index,
                    low_watermark=_NOTHING
                    if gone or topic is None
                    else topic.partitions[one.partition_index].log_start_offset,
                    error_code=code,
                )
            )
        results.append(call.build("DeleteRecordsTopicResult", name=wanted.name, partitions=tuple(partitions)))
        arrived()

    for wanted in request.topics:
        waiting += 1
        topic = node.topics.get(wanted.name)
        offsets: dict[int, int] = {}
        codes: dict[int, ErrorCode] = {}
        for one in wanted.partitions:
            try:
                offsets[one.partition_index] = _offset(node, topic, one)
                codes[one.partition_index] = ErrorCode.none
            except KafkaError as refused:
                codes[one.partition_index] = refused.code
        if topic is None or not offsets:
            report(wanted, topic, codes)
        else:
            node.changes.move_log_starts(topic, offsets, partial(report, wanted, topic, codes))
    arrived()


def _offset(node: Node, topic: Topic | None, wanted: Any) -> int:
    partition = node.topics.partition(topic, wanted.partition_index)
    assert topic is not None
    view = cluster_view.of(node)
    if not (view.leads(partition) and view.knows_end(partition)):
        raise KafkaError(ErrorCode.not_leader_or_follower)
    policy = topic_config.effective(topic.config, "cleanup.policy", node.config)
    if "compact" in policy and "delete" not in policy:
        raise KafkaError(ErrorCode.policy_violation)
    high_watermark = partition.high_watermark
    offset = high_watermark if wanted.offset == _HIGH_WATERMARK else int(wanted.offset)
    if not 0 <= offset <= high_watermark:
        raise KafkaError(ErrorCode.offset_out_of_range)
    return offset
