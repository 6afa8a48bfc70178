"""ListTransactions (key 66; KIP-664, KIP-994 for the duration, KIP-1152 for the pattern)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.transaction_states import KNOWN, state_name
from broker.patterns import compile_pattern
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

_NO_DURATION = -1


def handle(node: Node, call: Call, request: Any) -> None:
    """The duration is that of a running transaction: an id without one is longer than nothing."""
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    longer_than_ms = getattr(request, "duration_filter", _NO_DURATION)
    pattern = None
    try:
        if getattr(request, "transactional_id_pattern", None):
            pattern = compile_pattern(request.transactional_id_pattern)
    except KafkaError as refused:
        call.answer(error_code=refused.code, unknown_state_filters=(), transaction_states=())
        return
    now_ms = node.scheduler.now_ms()
    found = []
    for held in node.coordinator.transactional_ids():
        state = state_name(held)
        if states and state not in states:
            continue
        if producer_ids and held.producer_id not in producer_ids:
            continue
        if longer_than_ms >= 0 and (held.open is None or now_ms - held.open.created_ms <= longer_than_ms):
            continue
        if pattern is not None and pattern.fullmatch(held.name) is None:
            continue
        found.append(
            call.build(
                "TransactionState",
                transactional_id=held.name,
                producer_id=held.producer_id,
                transaction_state=state,
            )
        )
    call.answer(
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(sorted(states - KNOWN)),
        transaction_states=tuple(found),
    )
