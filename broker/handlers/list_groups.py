"""ListGroups (key 16; KIP-518 for the filter by state, KIP-848 for that by type)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.group_views import all_groups
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    states = {state.strip().lower() for state in getattr(request, "states_filter", ())}
    types = {kind.strip().lower() for kind in getattr(request, "types_filter", ())}
    call.answer(
        error_code=ErrorCode.none,
        groups=tuple(
            call.build(
                "ListedGroup",
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=group.group_type,
            )
            for group in all_groups(node)
            if (not states or group.state.value.lower() in states)
            and (not types or group.group_type in types)
        ),
    )
