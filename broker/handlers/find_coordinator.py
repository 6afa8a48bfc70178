"""FindCoordinator (key 10; batched from version 4 on, KIP-699): a broker by itself coordinates everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import cluster_view
from broker.call import Call
from broker.cluster_view import GROUP, NOBODY, TRANSACTION
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

BATCHED_VERSION = 4


def handle(node: Node, call: Call, request: Any) -> None:
    kind = getattr(request, "key_type", GROUP)
    known = kind in (GROUP, TRANSACTION)
    view = cluster_view.of(node)
    brokers = {broker.id: broker for broker in view.brokers()}

    def find(key: str) -> dict[str, Any]:
        if not known:
            return _absent(ErrorCode.invalid_request, f"unknown coordinator type {request.key_type}")
        broker = brokers.get(view.coordinator(kind, key))
        if broker is None:
            return _absent(ErrorCode.coordinator_not_available, "no node coordinates it at the moment")
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": broker.id,
            "host": broker.host,
            "port": broker.port,
        }

    if call.version >= BATCHED_VERSION:
        call.answer(
            coordinators=tuple(
                call.build("Coordinator", key=key, **find(key)) for key in request.coordinator_keys
            )
        )
    else:
        call.answer(**find(request.key))


def _absent(code: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "node_id": NOBODY, "host": "", "port": -1}
