"""DeleteGroups (key 42; KIP-229): groups without members, with their offsets. Answered when that is durable."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker import group_views
from broker.call import Call
from txn.metastore import StoreFailed
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    results: dict[str, ErrorCode] = {}
    waiting = 1

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            call.answer(
                results=tuple(
                    call.build("DeletableGroupResult", group_id=group_id, error_code=code)
                    for group_id, code in results.items()
                )
            )

    def report(group_id: str, code: ErrorCode) -> None:
        results[group_id] = code
        arrived()

    for group_id in dict.fromkeys(request.groups_names):
        waiting += 1
        delete_group(node, group_id, partial(report, group_id))
    arrived()


def delete_group(node: Node, group_id: str, reply: Any) -> None:
    """Offsets first: a crash in between leaves an empty group without any."""
    group = group_views.describe(node, group_id)
    if group is None:
        reply(ErrorCode.group_id_not_found)
        return
    if group.members:
        reply(ErrorCode.non_empty_group)
        return
    try:
        lsn = node.store.apply(node.offsets.delete_group_ops(group_id)).lsn
    except StoreFailed:
        reply(ErrorCode.coordinator_not_available)
        return
    if node.groups.describe(group_id) is not None:
        node.groups.delete(group_id, reply)
        node.arm_group_timer()
        return
    node.store.when_durable(
        lsn, lambda error: reply(ErrorCode.coordinator_not_available if error else ErrorCode.none)
    )
