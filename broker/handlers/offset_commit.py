"""OffsetCommit (key 8): a group's offsets outside any transaction, answered when they are durable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from broker.call import Call
from txn.metastore import StoreFailed
from txn.transaction import PendingOffset, TopicPartition
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from broker.node import Node

MEMBER_EPOCH_VERSION = 9
TOPIC_ID_VERSION = 10


def handle(node: Node, call: Call, request: Any) -> None:
    generation = getattr(request, "generation_id_or_member_epoch", -1)
    refused = node.groups.validate_offset_commit(
        request.group_id,
        generation,
        request.member_id,
        getattr(request, "group_instance_id", None),
        now_ms=node.scheduler.monotonic_ms(),
        transactional=False,
        partitions=named_partitions(node, request.topics),
        knows_epochs=call.version >= MEMBER_EPOCH_VERSION,
    )
    node.arm_group_timer()
    refused = of_an_empty_group(node, request.group_id, refused)
    codes, offsets = check_offsets(node, request.topics, refused)
    if not offsets:
        _answer(call, request, codes)
        return
    try:
        lsn = node.store.apply(node.offsets.put_ops(request.group_id, offsets, node.scheduler.now_ms())).lsn
    except StoreFailed:
        _fail(call, request, codes)
        return

    def durable(error: Exception | None) -> None:
        if error is not None:
            _fail(call, request, codes)
        else:
            _answer(call, request, codes)

    node.store.when_durable(lsn, durable)


Codes = dict[tuple[str | UUID | None, int], ErrorCode]


def topic_key(topic: Any) -> str | UUID | None:
    """What names a topic in this version: its id from version 10 of OffsetCommit on, its name otherwise."""
    key: str | UUID | None = topic.topic_id if hasattr(topic, "topic_id") else topic.name
    return key


def of_an_empty_group(node: Node, group_id: str, refused: ErrorCode) -> ErrorCode:
    """A group that only holds offsets is an empty group: what is wrong then is the member (as in Kafka)."""
    if refused not in (ErrorCode.illegal_generation, ErrorCode.group_id_not_found):
        return refused
    if node.groups.describe(group_id) is not None:
        return refused
    holds_offsets = (
        next(node.offsets.all_committed(group_id), None) is not None
        or node.offsets.pending_partitions(group_id) != []
    )
    return ErrorCode.unknown_member_id if holds_offsets else refused


def named_partitions(node: Node, topics: Any) -> Iterator[tuple[UUID, int]]:
    """The partitions that a request names, of topics that exist: looked up when somebody asks for them."""
    for topic in topics:
        key = topic_key(topic)
        known = node.topics.get_by_id(key) if isinstance(key, UUID) else node.topics.get(key or "")
        if known is not None:
            for one in topic.partitions:
                yield known.id, one.partition_index


def check_offsets(
    node: Node, topics: Any, refused: ErrorCode
) -> tuple[Codes, dict[TopicPartition, PendingOffset]]:
    """The code for each partition, and the offsets that may be committed."""
    codes: Codes = {}
    offsets: dict[TopicPartition, PendingOffset] = {}
    limit = node.config.limits.offset_metadata_bytes
    for topic in topics:
        key = topic_key(topic)
        known = node.topics.get_by_id(key) if isinstance(key, UUID) else node.topics.get(key or "")
        for one in topic.partitions:
            at = (key, one.partition_index)
            metadata = one.committed_metadata or ""
            if refused is not ErrorCode.none:
                codes[at] = refused
            elif known is None and not isinstance(key, str):
                codes[at] = ErrorCode.unknown_topic_id
            elif known is None or not 0 <= one.partition_index < len(known.partitions):
                codes[at] = ErrorCode.unknown_topic_or_partition
            elif len(metadata.encode()) > limit:
                codes[at] = ErrorCode.offset_metadata_too_large
            else:
                codes[at] = ErrorCode.none
                offsets[(known.name, one.partition_index)] = PendingOffset(
                    int(one.committed_offset), int(getattr(one, "committed_leader_epoch", -1)), metadata
                )
    return codes, offsets


def _fail(call: Call, request: Any, codes: Codes) -> None:
    _answer(
        call,
        request,
        {
            at: ErrorCode.coordinator_not_available if code is ErrorCode.none else code
            for at, code in codes.items()
        },
    )


def _answer(call: Call, request: Any, codes: Codes) -> None:
    by_id = call.version >= TOPIC_ID_VERSION
    call.answer(
        topics=tuple(
            call.build(
                "OffsetCommitResponseTopic",
                **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
                partitions=tuple(
                    call.build(
                        "OffsetCommitResponsePartition",
                        partition_index=one.partition_index,
                        error_code=codes[(topic_key(topic), one.partition_index)],
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
            if topic.partitions
        )
    )
