"""Metadata (key 3): the brokers, the topics and their leaders; creates topics that are asked for, if allowed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from broker import cluster_view
from broker.call import Call
from broker.cluster_view import NOBODY
from broker.handlers.operations import CLUSTER, TOPIC, allowed
from broker.topic import Topic
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


TOPIC_ID_VERSION = 12
"""Versions 10 and 11 have the field already; there a topic still goes by its name."""


def handle(node: Node, call: Call, request: Any) -> None:
    wanted = request.topics
    asked = getattr(request, "include_topic_authorized_operations", False)
    cluster_asked = getattr(request, "include_cluster_authorized_operations", False)
    if wanted is None or (not wanted and call.version == 0):
        _answer(node, call, [_topic(node, call, topic, asked) for topic in node.topics], cluster_asked)
        return
    if call.version < TOPIC_ID_VERSION and any(
        one.name is None or getattr(one, "topic_id", None) is not None for one in wanted
    ):
        refused = [
            _absent(call, one.name, getattr(one, "topic_id", None), ErrorCode.invalid_request)
            for one in wanted
        ]
        call.answer(brokers=(), cluster_id=None, controller_id=-1, topics=tuple(refused))
        return
    may_create = node.config.auto_create_topics and getattr(request, "allow_auto_topic_creation", True)
    found: list[Any] = []
    waiting = 1

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            _answer(node, call, found, cluster_asked)

    def created(name: str, result: Topic | KafkaError) -> None:
        if isinstance(result, KafkaError):
            found.append(_absent(call, name, None, result.code))
        else:
            found.append(_topic(node, call, result, asked))
        arrived()

    # A topic that has an id goes by it, whatever it is called.
    for topic_id, name in dict.fromkeys(_named(one) for one in wanted):
        topic = node.topics.get(name) if name is not None else node.topics.get_by_id(topic_id)
        if topic is not None:
            found.append(_topic(node, call, topic, asked))
        elif name is None:
            found.append(_absent(call, None, topic_id, ErrorCode.unknown_topic_id))
        elif not name:
            found.append(_absent(call, name, None, ErrorCode.invalid_topic_exception))
        elif may_create:
            waiting += 1
            node.topics.create_or_join(name, node.config.num_partitions, partial(created, name))
        else:
            found.append(_absent(call, name, None, ErrorCode.unknown_topic_or_partition))
    arrived()


def _named(one: Any) -> tuple[UUID | None, str | None]:
    topic_id = getattr(one, "topic_id", None)
    return (topic_id, None) if topic_id is not None else (None, one.name)


def leadership(node: Node, partition: Partition) -> dict[str, Any]:
    """Who leads and holds a partition, as Metadata and DescribeTopicPartitions name it."""
    known = cluster_view.of(node).leadership(partition)
    return {
        "error_code": ErrorCode.none if known.leader != NOBODY else ErrorCode.leader_not_available,
        "partition_index": partition.index,
        "leader_id": known.leader,
        "leader_epoch": known.epoch,
        "replica_nodes": known.replicas,
        "isr_nodes": known.in_sync,
    }


def _topic(node: Node, call: Call, topic: Topic, asked: bool) -> Any:
    return call.build(
        "MetadataResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        partitions=tuple(
            call.build("MetadataResponsePartition", **leadership(node, partition))
            for partition in topic.partitions
        ),
        topic_authorized_operations=allowed(TOPIC, asked),
    )


def _absent(call: Call, name: str | None, topic_id: Any, code: ErrorCode) -> Any:
    if name is None and call.version < 12:
        name = ""
    return call.build("MetadataResponseTopic", error_code=code, name=name, topic_id=topic_id, partitions=())


def _answer(node: Node, call: Call, topics: list[Any], asked: bool) -> None:
    view = cluster_view.of(node)
    call.answer(
        brokers=tuple(
            call.build("MetadataResponseBroker", node_id=one.id, host=one.host, port=one.port, rack=one.rack)
            for one in view.brokers()
        ),
        cluster_id=node.cluster_id,
        controller_id=view.controller(),
        topics=tuple(topics),
        cluster_authorized_operations=allowed(CLUSTER, asked),
    )
