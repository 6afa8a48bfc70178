"""InitProducerId (key 22; KIP-98, KIP-360; from version 6 on two-phase commit, KIP-939)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from txn.identities import Identity, InitRequest
from wire.building import to_ms
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

PRODUCER_FENCED_VERSION = 4
"""Older clients hear INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED."""


def handle(node: Node, call: Call, request: Any) -> None:
    def reply(result: Identity | KafkaError) -> None:
        if isinstance(result, Identity):
            ongoing = result.ongoing or (-1, -1)
            call.answer(
                error_code=ErrorCode.none,
                producer_id=result.producer_id,
                producer_epoch=result.epoch,
                ongoing_txn_producer_id=ongoing[0],
                ongoing_txn_producer_epoch=ongoing[1],
            )
            return
        code = result.code
        if code is ErrorCode.producer_fenced and call.version < PRODUCER_FENCED_VERSION:
            code = ErrorCode.invalid_producer_epoch
        call.answer(error_code=code, producer_id=-1, producer_epoch=-1)

    node.coordinator.init_producer(
        InitRequest(
            request.transactional_id,
            to_ms(request.transaction_timeout),
            getattr(request, "producer_id", -1),
            getattr(request, "producer_epoch", -1),
            two_phase=getattr(request, "enable2_pc", False),
            keep_prepared=getattr(request, "keep_prepared_txn", False),
        ),
        reply,
    )
