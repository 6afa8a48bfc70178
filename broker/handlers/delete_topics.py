"""DeleteTopics (key 20): by name, and by topic id from version 6 on."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

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

    times = Counter(_known_as(node, *one) for one in wanted)
    for name, topic_id in dict.fromkeys(wanted):
        if times[_known_as(node, name, topic_id)] > 1 or (name is None) is (topic_id is None):
            waiting += 1
            report(
                name, topic_id, KafkaError(ErrorCode.invalid_request, "a topic once, by its name or its id")
            )
            continue
        waiting += 1
        topic = node.topics.get(name) if name is not None else node.topics.get_by_id(topic_id)
        if topic is None:
            code = ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
            report(name, topic_id, KafkaError(code))
        else:
            _delete(node, topic, partial(report, topic.name, topic.id))
    arrived()


def _known_as(node: Node, name: str | None, topic_id: UUID | None) -> str | UUID | None:
    """What is the same for every way to name a topic."""
    topic = node.topics.get_by_id(topic_id) if name is None else None
    return topic.name if topic is not None else name or topic_id


def _delete(node: Node, topic: Topic, done: Any) -> None:
    node.topics.delete(topic, node.offsets.delete_topic_ops(topic.name), done)
