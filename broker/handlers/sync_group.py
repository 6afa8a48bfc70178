"""SyncGroup (key 14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.groups import SyncRequest, SyncResult

if TYPE_CHECKING:
    from broker.node import Node

PROTOCOL_REQUIRED_VERSION = 5


def handle(node: Node, call: Call, request: Any) -> None:
    def reply(result: SyncResult) -> None:
        call.answer(
            error_code=result.error,
            protocol_type=result.protocol_type,
            protocol_name=result.protocol_name,
            assignment=result.assignment,
        )

    node.groups.sync(
        SyncRequest(
            group_id=request.group_id,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
            protocol_type=getattr(request, "protocol_type", None),
            protocol_name=getattr(request, "protocol_name", None),
            require_protocol=call.version >= PROTOCOL_REQUIRED_VERSION,
            assignments=[(one.member_id, one.assignment) for one in request.assignments],
        ),
        node.scheduler.monotonic_ms(),
        reply,
    )
    node.arm_group_timer()
