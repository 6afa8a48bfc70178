"""FindCoordinator (key 10; batched from version 4 on, KIP-699): on one node it is always this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

BATCHED_VERSION = 4
_GROUP, _TRANSACTION = 0, 1


def handle(node: Node, call: Call, request: Any) -> None:
    known = getattr(request, "key_type", _GROUP) in (_GROUP, _TRANSACTION)
    host, port = node.advertised if known else ("", -1)
    found = {
        "error_code": ErrorCode.none if known else ErrorCode.invalid_request,
        "error_message": None if known else f"unknown coordinator type {request.key_type}",
        "node_id": node.config.node_id if known else -1,
        "host": host,
        "port": port,
    }
    if call.version >= BATCHED_VERSION:
        call.answer(
            coordinators=tuple(
                call.build("Coordinator", key=key, **found) for key in request.coordinator_keys
            )
        )
    else:
        call.answer(**found)
