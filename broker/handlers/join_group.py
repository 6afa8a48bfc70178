"""JoinGroup (key 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.groups import JoinRequest, JoinResult
from wire.building import to_ms

if TYPE_CHECKING:
    from broker.node import Node

KNOWN_MEMBER_VERSION = 4
NULLABLE_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9


def handle(node: Node, call: Call, request: Any) -> None:
    def reply(result: JoinResult) -> None:
        protocol_name = result.protocol_name
        if protocol_name is None and call.version < NULLABLE_PROTOCOL_VERSION:
            protocol_name = ""
        call.answer(
            error_code=result.error,
            generation_id=result.generation_id,
            protocol_type=result.protocol_type,
            protocol_name=protocol_name,
            leader=result.leader_id,
            skip_assignment=result.skip_assignment,
            member_id=result.member_id,
            members=tuple(
                call.build(
                    "JoinGroupResponseMember",
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    metadata=member.metadata,
                )
                for member in result.members
            ),
        )

    rebalance_timeout = getattr(request, "rebalance_timeout", None)
    node.groups.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
            client_id=call.client_id,
            client_host=call.client_host,
            session_timeout_ms=to_ms(request.session_timeout),
            rebalance_timeout_ms=-1 if rebalance_timeout is None else to_ms(rebalance_timeout),
            protocol_type=request.protocol_type,
            protocols=[(protocol.name, protocol.metadata) for protocol in request.protocols],
            require_known_member_id=call.version >= KNOWN_MEMBER_VERSION,
            can_skip_assignment=call.version >= SKIP_ASSIGNMENT_VERSION,
        ),
        node.scheduler.monotonic_ms(),
        reply,
    )
    node.arm_group_timer()
