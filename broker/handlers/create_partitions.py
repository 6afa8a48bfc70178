"""CreatePartitions (key 37; KIP-195): let topics grow. The records that are there stay where they are."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.call import Call
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    results: dict[str, Any] = {}
    waiting = 1
    times = Counter(wanted.name for wanted in request.topics)

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            call.answer(results=tuple(results[name] for name in times))

    def report(name: str, error: KafkaError | None) -> None:
        results[name] = call.build(
            "CreatePartitionsTopicResult",
            name=name,
            error_code=error.code if error else ErrorCode.none,
            error_message=error.message if error else None,
        )
        arrived()

    for wanted in {wanted.name: wanted for wanted in request.topics}.values():
        waiting += 1
        name = wanted.name
        try:
            if times[name] > 1:
                raise KafkaError(ErrorCode.invalid_request, f"topic {name!r} is named more than once")
            topic = node.topics.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
            node.changes.check_growth(topic, wanted.count)
            _check_assignments(node, wanted, wanted.count - len(topic.partitions))
        except KafkaError as refused:
            report(name, refused)
            continue
        if request.validate_only:
            report(name, None)
        else:
            node.changes.grow(topic, wanted.count, partial(report, name))
    arrived()


def _check_assignments(node: Node, wanted: Any, added: int) -> None:
    if wanted.assignments is None:
        return
    if len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"{added} partitions are added, {len(wanted.assignments)} assigned",
        )
    if any(tuple(one.broker_ids) != (node.config.node_id,) for one in wanted.assignments):
        raise KafkaError(ErrorCode.invalid_replica_assignment, f"the only broker is {node.config.node_id}")
