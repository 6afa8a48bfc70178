"""Heartbeat (key 12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    code = node.groups.heartbeat(
        request.group_id,
        request.generation_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
        node.scheduler.monotonic_ms(),
    )
    call.answer(error_code=code)
    node.arm_group_timer()
