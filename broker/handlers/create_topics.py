"""CreateTopics (key 19)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from broker import cluster_view, topic_config
from broker.call import Call
from broker.handlers.describe_configs import topic_entry
from broker.topic import Topic
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    results: list[Any] = []
    waiting = 1
    times = Counter(topic.name for topic in request.topics)

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            call.answer(topics=tuple(results))

    def created(name: str, result: Topic | KafkaError) -> None:
        results.append(
            _refused(call, name, result) if isinstance(result, KafkaError) else _created(node, call, result)
        )
        arrived()

    for name, wanted in {topic.name: topic for topic in request.topics}.items():
        try:
            if times[name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"topic {name!r} is named more than once")
            partitions = _partition_count(node, wanted)
            factor = _replication_factor(node, wanted)
            settings = {setting.name: setting.value for setting in wanted.configs}
            if request.validate_only:
                checked = node.topics.check_new(name, partitions, settings)
                results.append(_result(node, call, name, None, partitions, factor, checked))
                continue
        except KafkaError as refused:
            results.append(_refused(call, name, refused))
            continue
        waiting += 1
        node.topics.create(name, partitions, settings, partial(created, name), replication_factor=factor)
    arrived()


def _partition_count(node: Node, wanted: Any) -> int:
    if wanted.assignments:
        if wanted.num_partitions != -1 or wanted.replication_factor != -1:
            raise KafkaError(ErrorCode.invalid_request, "give partition counts or an assignment, not both")
        if sorted(one.partition_index for one in wanted.assignments) != list(range(len(wanted.assignments))):
            raise KafkaError(ErrorCode.invalid_replica_assignment, "partitions must be numbered from 0 on")
        if any(tuple(one.broker_ids) != (node.config.node_id,) for one in wanted.assignments):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment, f"the only broker is {node.config.node_id}"
            )
        return len(wanted.assignments)
    return node.config.num_partitions if wanted.num_partitions == -1 else int(wanted.num_partitions)


def _replication_factor(node: Node, wanted: Any) -> int:
    if wanted.assignments:
        return len(wanted.assignments[0].broker_ids)
    return cluster_view.of(node).replication_factor(int(wanted.replication_factor))


def _created(node: Node, call: Call, topic: Topic) -> Any:
    factor = len(cluster_view.of(node).leadership(topic.partitions[0]).replicas)
    return _result(node, call, topic.name, topic.id, len(topic.partitions), factor, topic.config)


def _result(
    node: Node,
    call: Call,
    name: str,
    topic_id: Any,
    partitions: int,
    replication_factor: int,
    settings: dict[str, str],
) -> Any:
    return call.build(
        "CreatableTopicResult",
        name=name,
        topic_id=topic_id,
        error_code=ErrorCode.none,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=tuple(
            call.build(
                "CreatableTopicConfigs",
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=int(entry.source),
                is_sensitive=False,
            )
            for entry, _ in (
                topic_entry(node, setting, settings) for setting in topic_config.SETTINGS.values()
            )
        )
        if call.version >= 5
        else None,
    )


def _refused(call: Call, name: str, error: KafkaError) -> Any:
    return call.build(
        "CreatableTopicResult",
        name=name,
        topic_id=None,
        error_code=error.code,
        error_message=error.message,
        configs=() if call.version >= 5 else None,
    )
