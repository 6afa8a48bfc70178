"""EndTxn (key 26): commit or abort. From version 5 on it answers the producer's next identity (KIP-890)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.txn_errors import code_for
from txn.identities import Identity
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

BUMP_VERSION = 5


def handle(node: Node, call: Call, request: Any) -> None:
    def reply(result: Identity | KafkaError) -> None:
        if isinstance(result, Identity):
            call.answer(
                error_code=ErrorCode.none, producer_id=result.producer_id, producer_epoch=result.epoch
            )
        else:
            call.answer(error_code=code_for(call, result.code), producer_id=-1, producer_epoch=-1)

    node.coordinator.ends.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        reply,
        bump=call.version >= BUMP_VERSION,
    )
