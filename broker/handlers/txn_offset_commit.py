"""TxnOffsetCommit (key 28; KIP-447): a group's offsets that count when the producer's transaction commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.offset_commit import Codes, check_offsets, named_partitions, of_an_empty_group
from broker.handlers.txn_errors import code_for
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

IMPLICIT_ADD_VERSION = 5
MEMBER_VERSION = 3


def handle(node: Node, call: Call, request: Any) -> None:
    refused = ErrorCode.none if request.group_id else ErrorCode.invalid_group_id
    if refused is ErrorCode.none and call.version >= MEMBER_VERSION:
        refused = node.groups.validate_offset_commit(
            request.group_id,
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            now_ms=node.scheduler.monotonic_ms(),
            transactional=True,
            partitions=named_partitions(node, request.topics),
        )
        node.arm_group_timer()
        refused = of_an_empty_group(node, request.group_id, refused)
    codes, offsets = check_offsets(node, request.topics, refused)
    if not offsets:
        _answer(call, request, codes)
        return

    def reply(error: KafkaError | None) -> None:
        if error is not None:
            code = code_for(call, error.code)
            if (
                code is ErrorCode.transaction_abortable
                and call.version >= IMPLICIT_ADD_VERSION
                and request.member_id
            ):
                # Clients abort and go on after either; Kafka Streams 4.3 does so only after this one.
                code = ErrorCode.illegal_generation
            for at, known in codes.items():
                if known is ErrorCode.none:
                    codes[at] = code
        _answer(call, request, codes)

    node.coordinator.admission.commit_offsets(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.group_id,
        offsets,
        reply,
        implicit=call.version >= IMPLICIT_ADD_VERSION,
        again=lambda: handle(node, call, request),
    )


def refuse_all(call: Call, request: Any, code: ErrorCode) -> None:
    """Answer the same about every offset."""
    at = ((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
    _answer(call, request, dict.fromkeys(at, code))


def _answer(call: Call, request: Any, codes: Codes) -> None:
    call.answer(
        topics=tuple(
            call.build(
                "TxnOffsetCommitResponseTopic",
                name=topic.name,
                partitions=tuple(
                    call.build(
                        "TxnOffsetCommitResponsePartition",
                        partition_index=one.partition_index,
                        error_code=codes[(topic.name, one.partition_index)],
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
            if topic.partitions
        )
    )
