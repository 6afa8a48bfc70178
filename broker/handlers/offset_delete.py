"""OffsetDelete (key 47; KIP-496): a group's offsets of topics that none of its members reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import group_views
from broker.call import Call
from txn.metastore import StoreFailed
from txn.transaction import TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    if not request.group_id:
        call.answer(error_code=ErrorCode.invalid_group_id, topics=())
        return
    group = group_views.describe(node, request.group_id)
    if group is None:
        call.answer(error_code=ErrorCode.group_id_not_found, topics=())
        return
    if group.members and group.protocol_type != group_views.CONSUMER_PROTOCOL:
        call.answer(error_code=ErrorCode.non_empty_group, topics=())
        return
    subscribed = group_views.subscribed_topics(group) if group.members else frozenset()
    codes: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        for one in topic.partitions:
            at = (topic.name, one.partition_index)
            known = node.topics.get(topic.name)
            if known is None or not 0 <= one.partition_index < len(known.partitions):
                codes[at] = ErrorCode.unknown_topic_or_partition
            elif subscribed is None or topic.name in subscribed:
                # Members that do not say what they read may read anything.
                codes[at] = ErrorCode.group_subscribed_to_topic
            else:
                codes[at] = ErrorCode.none
    unread = [at for at, code in codes.items() if code is ErrorCode.none]
    try:
        lsn = node.store.apply(node.offsets.delete_ops(request.group_id, unread)).lsn
    except StoreFailed:
        call.answer(error_code=ErrorCode.coordinator_not_available, topics=())
        return

    def durable(error: Exception | None) -> None:
        if error is not None:
            call.answer(error_code=ErrorCode.coordinator_not_available, topics=())
        else:
            _answer(call, request, codes)

    node.store.when_durable(lsn, durable)


def _answer(call: Call, request: Any, codes: dict[TopicPartition, ErrorCode]) -> None:
    call.answer(
        error_code=ErrorCode.none,
        topics=tuple(
            call.build(
                "OffsetDeleteResponseTopic",
                name=topic.name,
                partitions=tuple(
                    call.build(
                        "OffsetDeleteResponsePartition",
                        partition_index=one.partition_index,
                        error_code=codes[(topic.name, one.partition_index)],
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
            if topic.partitions
        ),
    )
