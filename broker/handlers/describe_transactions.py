"""DescribeTransactions (key 65; KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.transaction_states import state_name
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

_NO_TIME = -1


def handle(node: Node, call: Call, request: Any) -> None:
    call.answer(transaction_states=tuple(_state(node, call, name) for name in request.transactional_ids))


def _state(node: Node, call: Call, name: str) -> Any:
    held = node.coordinator.get(name)
    if held is None:
        code = ErrorCode.transactional_id_not_found if name else ErrorCode.invalid_request
        return call.build(
            "TransactionState",
            error_code=code,
            transactional_id=name,
            transaction_start_time=_NO_TIME,
            producer_id=-1,
            producer_epoch=-1,
        )
    partitions: dict[str, list[int]] = {}
    if held.open is not None:
        written = {(partition.topic, partition.index) for partition in held.open.writes}
        for topic, index in sorted(held.open.partitions | written):
            partitions.setdefault(topic, []).append(index)
    return call.build(
        "TransactionState",
        error_code=ErrorCode.none,
        transactional_id=name,
        transaction_state=state_name(held),
        transaction_timeout=held.timeout_ms,
        transaction_start_time=held.open.created_ms if held.open is not None else _NO_TIME,
        producer_id=held.producer_id,
        producer_epoch=held.epoch,
        topics=tuple(
            call.build("TopicData", topic=topic, partitions=tuple(indexes))
            for topic, indexes in partitions.items()
        ),
    )
