"""OffsetFetch (key 9; several groups at once from version 8 on, KIP-709; topic ids from version 10 on)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from broker.call import Call
from txn.transaction import TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

TOP_ERROR_VERSION = 2
BATCHED_VERSION = 8
TOPIC_ID_VERSION = 10


def handle(node: Node, call: Call, request: Any) -> None:
    stable = getattr(request, "require_stable", False)
    if call.version >= BATCHED_VERSION:
        call.answer(groups=tuple(_group(node, call, group, stable) for group in request.groups))
    else:
        unavailable = _unavailable(node)
        # Version 1 has no error of the whole: there each offset says so.
        refused = unavailable is not ErrorCode.none and call.version >= TOP_ERROR_VERSION
        topics = (
            ()
            if refused
            else _topics(node, call, request.group_id, request.topics, stable, "OffsetFetchResponseTopic")
        )
        call.answer(topics=topics, error_code=unavailable)


def _unavailable(node: Node) -> ErrorCode:
    """After the metadata store has failed, what a commit that was answered put into force may be missing in memory; the
    next start finds it."""
    return ErrorCode.coordinator_not_available if node.store.failure is not None else ErrorCode.none


def _group(node: Node, call: Call, group: Any, stable: bool) -> Any:
    refused = node.groups.validate_offset_fetch(
        group.group_id, getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    )
    if refused is ErrorCode.none:
        refused = _unavailable(node)
    topics: tuple[Any, ...] = ()
    if refused is ErrorCode.none:
        topics = _topics(node, call, group.group_id, group.topics, stable, "OffsetFetchResponseTopics")
    return call.build("OffsetFetchResponseGroup", group_id=group.group_id, topics=topics, error_code=refused)


def _topics(node: Node, call: Call, group_id: str, wanted: Any, stable: bool, name: str) -> tuple[Any, ...]:
    partition_name = name.replace("Topic", "Partition")

    def build(key: str | UUID | None, partitions: list[tuple[int, Any]]) -> Any:
        return call.build(
            name,
            **({"topic_id": key} if call.version >= TOPIC_ID_VERSION else {"name": key}),
            partitions=tuple(
                call.build(partition_name, partition_index=index, **fields) for index, fields in partitions
            ),
        )

    if wanted is None:
        return tuple(build(key, found) for key, found in _everything(node, call, group_id, stable).items())
    answer = []
    for topic in wanted:
        by_id = call.version >= TOPIC_ID_VERSION
        key = topic.topic_id if by_id else topic.name
        known = node.topics.get_by_id(topic.topic_id) if by_id else None
        if by_id and known is None:
            answer.append(
                build(key, [(i, _nothing(ErrorCode.unknown_topic_id)) for i in topic.partition_indexes])
            )
            continue
        topic_name = known.name if known is not None else topic.name
        answer.append(
            build(
                key, [(i, _offset(node, group_id, (topic_name, i), stable)) for i in topic.partition_indexes]
            )
        )
    return tuple(answer)


def _everything(
    node: Node, call: Call, group_id: str, stable: bool
) -> dict[str | UUID | None, list[tuple[int, Any]]]:
    """All that the group has committed, and what is pending for it where the caller wants only stable offsets."""
    at = {where for where, _ in node.offsets.all_committed(group_id)}
    if stable:
        at |= set(node.offsets.pending_partitions(group_id))
    found: dict[str | UUID | None, list[tuple[int, Any]]] = {}
    for topic_name, index in sorted(at):
        topic = node.topics.get(topic_name)
        if topic is not None:
            key = topic.id if call.version >= TOPIC_ID_VERSION else topic_name
            found.setdefault(key, []).append((index, _offset(node, group_id, (topic_name, index), stable)))
    return found


def _offset(node: Node, group_id: str, at: TopicPartition, stable: bool) -> dict[str, Any]:
    if _unavailable(node) is not ErrorCode.none:
        return _nothing(ErrorCode.coordinator_not_available)
    if stable and node.offsets.is_pending(group_id, *at):
        return _nothing(ErrorCode.unstable_offset_commit)
    committed = node.offsets.committed(group_id, *at)
    if committed is None:
        return _nothing(ErrorCode.none)
    return {
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": ErrorCode.none,
    }


def _nothing(code: ErrorCode) -> dict[str, Any]:
    return {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": "", "error_code": code}
