"""sealog's own API for group transactions (design T10): enlist, commit, abort, extend, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.call import Call
from txn.group_state import GroupOutcome
from txn.transaction import PendingOffset, State, TopicPartition
from wire import group_transactions as messages
from wire import private_api
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: messages.Request) -> None:
    def reply(result: GroupOutcome | KafkaError) -> None:
        if isinstance(result, KafkaError):
            _answer(call, messages.Response(error=int(result.code), message=result.message))
            return
        _answer(
            call,
            messages.Response(
                batch=result.batch, attempt=result.attempt, members=result.members, repeated=result.repeated
            ),
        )

    groups = node.coordinator.group_transactions
    at = (request.sink, request.batch, request.attempt)
    match request:
        case messages.Enlist():
            groups.enlist(*at, request.generation, request.timeout_ms, _winner(request.member), reply)
        case messages.Commit():
            try:
                offsets = _offsets(node, request)
            except KafkaError as refused:
                reply(refused)
                return
            groups.commit(*at, [_winner(member) for member in request.members], offsets, reply)
        case messages.Abort():
            groups.abort(*at, reply)
        case messages.Extend():
            groups.extend(*at, request.timeout_ms, reply)
        case messages.Describe():
            _describe(node, call, request.sink)


def _winner(member: messages.Member) -> tuple[str, int, int]:
    return member.transactional_id, member.producer_id, member.epoch


def _offsets(node: Node, request: messages.Commit) -> dict[str, dict[TopicPartition, PendingOffset]]:
    by_group: dict[str, dict[TopicPartition, PendingOffset]] = {}
    for one in request.offsets:
        node.topics.partition(node.topics.get(one.topic), one.partition)
        if len(one.metadata.encode()) > node.config.limits.offset_metadata_bytes:
            raise KafkaError(ErrorCode.offset_metadata_too_large)
        offset = PendingOffset(one.offset, one.leader_epoch, one.metadata)
        by_group.setdefault(one.group, {})[one.topic, one.partition] = offset
    return by_group


def _describe(node: Node, call: Call, sink: str) -> None:
    groups = node.coordinator.group_transactions
    last = groups.last_done(sink)
    undecided = tuple(
        messages.Undecided(
            batch=group.batch,
            attempt=group.attempt,
            members=len(group.members),
            voted=sum(one.state is State.PREPARED for one in group.members.values()),
            deadline_ms=group.deadline_ms,
        )
        for group in groups
        if group.sink == sink
    )
    if last is None:
        _answer(call, messages.Response(undecided=undecided))
    else:
        _answer(
            call,
            messages.Response(
                batch=last.batch,
                attempt=last.attempt,
                members=last.members,
                repeated=True,
                undecided=undecided,
            ),
        )


def _answer(call: Call, response: messages.Response) -> None:
    call.answer_raw([private_api.encode_response(call.correlation_id, response)])
