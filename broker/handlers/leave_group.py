"""LeaveGroup (key 13; several members at once from version 3 on, KIP-345)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.groups import LeaveRequest, LeavingMember

if TYPE_CHECKING:
    from broker.node import Node

BATCHED_VERSION = 3


def handle(node: Node, call: Call, request: Any) -> None:
    if call.version < BATCHED_VERSION:
        members = [LeavingMember(member_id=request.member_id)]
    else:
        members = [
            LeavingMember(member_id=one.member_id, group_instance_id=one.group_instance_id)
            for one in request.members
        ]
    result = node.groups.leave(
        LeaveRequest(group_id=request.group_id, members=members), node.scheduler.monotonic_ms()
    )
    if call.version < BATCHED_VERSION:
        call.answer(error_code=result.single_error)
    else:
        call.answer(
            error_code=result.error,
            members=tuple(
                call.build(
                    "MemberResponse",
                    member_id=one.member_id,
                    group_instance_id=one.group_instance_id,
                    error_code=one.error,
                )
                for one in result.members
            ),
        )
    node.arm_group_timer()
