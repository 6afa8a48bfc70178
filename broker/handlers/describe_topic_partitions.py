"""DescribeTopicPartitions (key 75; KIP-966): topics by name, a page of partitions at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.metadata import leadership
from broker.handlers.operations import TOPIC, allowed
from broker.topic import Topic
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

MAX_PARTITIONS = 2_000
"""Per answer, whatever is asked for (Kafka's max.request.partition.size.limit)."""


def handle(node: Node, call: Call, request: Any) -> None:
    cursor = request.cursor
    start = (cursor.topic_name, cursor.partition_index) if cursor is not None else ("", 0)
    named = {topic.name for topic in request.topics}
    if cursor is not None and (start[1] < 0 or (named and start[0] not in named)):
        call.answer(
            topics=tuple(_refused(call, topic.name, ErrorCode.invalid_request) for topic in request.topics)
        )
        return
    names = sorted(named or (topic.name for topic in node.topics))
    left = min(max(request.response_partition_limit, 1), MAX_PARTITIONS)
    found: list[Any] = []
    next_cursor = None
    for name in names:
        if name < start[0]:
            continue
        first = start[1] if name == start[0] else 0
        topic = node.topics.get(name)
        if topic is None:
            found.append(_refused(call, name, ErrorCode.unknown_topic_or_partition))
            continue
        if not left:
            next_cursor = call.build("Cursor", topic_name=name, partition_index=first)
            break
        partitions = topic.partitions[first : first + left]
        left -= len(partitions)
        found.append(_topic(node, call, topic, partitions))
        if first + len(partitions) < len(topic.partitions):
            next_cursor = call.build("Cursor", topic_name=name, partition_index=first + len(partitions))
            break
    call.answer(topics=tuple(found), next_cursor=next_cursor)


def _topic(node: Node, call: Call, topic: Topic, partitions: Any) -> Any:
    return call.build(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        partitions=tuple(
            call.build(
                "DescribeTopicPartitionsResponsePartition",
                **leadership(node, partition),
                eligible_leader_replicas=(),
                last_known_elr=(),
            )
            for partition in partitions
        ),
        topic_authorized_operations=allowed(TOPIC, True),
    )


def _refused(call: Call, name: str, code: ErrorCode) -> Any:
    return call.build(
        "DescribeTopicPartitionsResponseTopic",
        error_code=code,
        name=name,
        topic_id=None,
        partitions=(),
        topic_authorized_operations=allowed(
            TOPIC, bool(name) and code is ErrorCode.unknown_topic_or_partition
        ),
    )
