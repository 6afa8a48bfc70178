"""DescribeGroups (key 15): the classic groups; one that does not exist is Dead, and an error from version 6 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker import group_views
from broker.call import Call
from broker.groups import CLASSIC_TYPE, GroupState
from broker.handlers.operations import GROUP, allowed
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

NOT_FOUND_VERSION = 6


def handle(node: Node, call: Call, request: Any) -> None:
    asked = getattr(request, "include_authorized_operations", False)
    call.answer(groups=tuple(_group(node, call, group_id, asked) for group_id in request.groups))


def _group(node: Node, call: Call, group_id: str, asked: bool) -> Any:
    group = group_views.describe(node, group_id)
    if group is None or group.group_type != CLASSIC_TYPE:
        known = call.version < NOT_FOUND_VERSION
        reason = "does not exist" if group is None else "is not a classic group"
        return call.build(
            "DescribedGroup",
            error_code=ErrorCode.none if known else ErrorCode.group_id_not_found,
            error_message=None if known else f"group {group_id!r} {reason}",
            group_id=group_id,
            group_state=GroupState.DEAD.value,
            authorized_operations=allowed(GROUP, asked),
        )
    return call.build(
        "DescribedGroup",
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=tuple(
            call.build(
                "DescribedGroupMember",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ),
        authorized_operations=allowed(GROUP, asked),
    )
