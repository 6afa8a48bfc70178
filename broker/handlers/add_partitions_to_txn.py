"""AddPartitionsToTxn (key 24; batched from version 4 on, which brokers send one another)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.txn_errors import code_for
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

BATCHED_VERSION = 4


def handle(node: Node, call: Call, request: Any) -> None:
    if call.version < BATCHED_VERSION:

        def reply(codes: dict[tuple[str, int], ErrorCode]) -> None:
            call.answer(results_by_topic_v3_and_below=_results(call, request.v3_and_below_topics, codes))

        _add(
            node,
            call,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
            reply,
        )
        return
    results: list[Any] = []
    waiting = 1

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            call.answer(error_code=ErrorCode.none, results_by_transaction=tuple(results))

    def report(transaction: Any, codes: dict[tuple[str, int], ErrorCode]) -> None:
        results.append(
            call.build(
                "AddPartitionsToTxnResult",
                transactional_id=transaction.transactional_id,
                topic_results=_results(call, transaction.topics, codes),
            )
        )
        arrived()

    for one in request.transactions:
        waiting += 1
        _add(
            node,
            call,
            one.transactional_id,
            one.producer_id,
            one.producer_epoch,
            one.topics,
            partial(report, one),
            verify_only=one.verify_only,
        )
    arrived()


def refuse_all(call: Call, request: Any, code: ErrorCode) -> None:
    """Answer the same about every partition."""

    def codes(topics: Any) -> dict[tuple[str, int], ErrorCode]:
        return {(topic.name, index): code for topic in topics for index in topic.partitions}

    if call.version < BATCHED_VERSION:
        topics = request.v3_and_below_topics
        call.answer(results_by_topic_v3_and_below=_results(call, topics, codes(topics)))
        return
    call.answer(
        error_code=ErrorCode.none,
        results_by_transaction=tuple(
            call.build(
                "AddPartitionsToTxnResult",
                transactional_id=one.transactional_id,
                topic_results=_results(call, one.topics, codes(one.topics)),
            )
            for one in request.transactions
        ),
    )


def _add(
    node: Node,
    call: Call,
    name: str,
    producer_id: int,
    epoch: int,
    topics: Any,
    reply: Any,
    *,
    verify_only: bool = False,
) -> None:
    wanted = [(topic.name, index) for topic in topics for index in topic.partitions]
    unknown = {at for at in wanted if not _exists(node, at)}
    if unknown:
        # All or nothing, as in Kafka: the known ones hear that they were not tried.
        reply(
            {
                at: ErrorCode.unknown_topic_or_partition
                if at in unknown
                else ErrorCode.operation_not_attempted
                for at in wanted
            }
        )
        return

    def done(error: KafkaError | None) -> None:
        code = code_for(call, error.code) if error else ErrorCode.none
        reply(dict.fromkeys(wanted, code))

    if verify_only:
        done(node.coordinator.admission.verify(name, producer_id, epoch, wanted))
    else:
        node.coordinator.admission.add_partitions(name, producer_id, epoch, wanted, done)


def _exists(node: Node, at: tuple[str, int]) -> bool:
    topic = node.topics.get(at[0])
    return topic is not None and 0 <= at[1] < len(topic.partitions)


def _results(call: Call, topics: Any, codes: dict[tuple[str, int], ErrorCode]) -> tuple[Any, ...]:
    return tuple(
        call.build(
            "AddPartitionsToTxnTopicResult",
            name=topic.name,
            results_by_partition=tuple(
                call.build(
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=index,
                    partition_error_code=codes[(topic.name, index)],
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )
