"""AddOffsetsToTxn (key 25)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.txn_errors import code_for
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    def reply(error: KafkaError | None) -> None:
        call.answer(error_code=code_for(call, error.code) if error else ErrorCode.none)

    node.coordinator.admission.add_offsets(
        request.transactional_id, request.producer_id, request.producer_epoch, request.group_id, reply
    )
