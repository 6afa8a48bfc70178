"""Metadata (key 3): the broker, its topics and their leaders; creates topics that are asked for, if allowed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.topic import Topic
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    wanted = request.topics
    if wanted is None or (not wanted and call.version == 0):
        _answer(node, call, [_topic(node, call, topic) for topic in node.topics])
        return
    may_create = node.config.auto_create_topics and getattr(request, "allow_auto_topic_creation", True)
    found: list[Any] = []
    waiting = 1

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            _answer(node, call, found)

    def created(name: str, result: Topic | KafkaError) -> None:
        if isinstance(result, Topic):
            found.append(_topic(node, call, result))
        else:
            found.append(_absent(call, name, None, result.code))
        arrived()

    for one in wanted:
        topic_id = getattr(one, "topic_id", None)
        topic = node.topics.get(one.name) if one.name is not None else node.topics.get_by_id(topic_id)
        if topic is not None:
            found.append(_topic(node, call, topic))
        elif one.name is None:
            found.append(_absent(call, None, topic_id, ErrorCode.unknown_topic_id))
        elif may_create:
            waiting += 1
            node.topics.create_or_join(one.name, node.config.num_partitions, partial(created, one.name))
        else:
            found.append(_absent(call, one.name, None, ErrorCode.unknown_topic_or_partition))
    arrived()


def leadership(node: Node, partition: Partition) -> dict[str, Any]:
    """Who leads and holds a partition, as Metadata and DescribeTopicPartitions name it."""
    node_id = node.config.node_id
    return {
        "error_code": ErrorCode.none,
        "partition_index": partition.index,
        "leader_id": node_id,
        "leader_epoch": partition.log.term,
        "replica_nodes": (node_id,),
        "isr_nodes": (node_id,),
    }


def _topic(node: Node, call: Call, topic: Topic) -> Any:
    return call.build(
        "MetadataResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        partitions=tuple(
            call.build("MetadataResponsePartition", **leadership(node, partition))
            for partition in topic.partitions
        ),
    )


def _absent(call: Call, name: str | None, topic_id: Any, code: ErrorCode) -> Any:
    if name is None and call.version < 12:
        name = ""
    return call.build("MetadataResponseTopic", error_code=code, name=name, topic_id=topic_id, partitions=())


def _answer(node: Node, call: Call, topics: list[Any]) -> None:
    host, port = node.advertised
    call.answer(
        brokers=(call.build("MetadataResponseBroker", node_id=node.config.node_id, host=host, port=port),),
        cluster_id=node.cluster_id,
        controller_id=node.config.node_id,
        topics=tuple(topics),
    )
