"""DeleteTopics (key 20): by name, and by topic id from version 6 on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.topic import Topic
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    if call.version >= 6:
        wanted = [(state.name, state.topic_id) for state in request.topics]
    else:
        wanted = [(name, None) for name in request.topic_names]
    results: list[Any] = []
    waiting = 1

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            call.answer(responses=tuple(results))

    def report(name: str | None, topic_id: Any, error: KafkaError | None) -> None:
        results.append(
            call.build(
                "DeletableTopicResult",
                name=name,
                topic_id=topic_id,
                error_code=error.code if error else ErrorCode.none,
                error_message=error.message if error else None,
            )
        )
        arrived()

    for name, topic_id in wanted:
        waiting += 1
        topic = node.topics.get(name) if name is not None else node.topics.get_by_id(topic_id)
        if topic is None:
            code = ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
            report(name, topic_id, KafkaError(code))
        else:
            _delete(node, topic, partial(report, topic.name, topic.id))
    arrived()


def _delete(node: Node, topic: Topic, done: Any) -> None:
    node.topics.delete(topic, node.offsets.delete_topic_ops(topic.name), done)
