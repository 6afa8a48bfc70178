"""Produce (key 0): check a batch's header, append it, answer when it is as safe as the producer asked.

Outside a transaction acks=all waits for a flush; inside one nothing waits, the commit does (design, D1 and D2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.topics import Topic
from storage.range_log import RangeLog
from txn.coordinator import Coordinator
from txn.partition import Partition
from wire.batch import validate_produced
from wire.errors import ErrorCode, KafkaError
from wire.produce_codec import ProducePartitionResult, ProduceTopicResult, encode_produce_response

if TYPE_CHECKING:
    from broker.node import Node

IMPLICIT_ADD_VERSION = 12
"""From here on the produce itself adds its partition to the transaction (KIP-890)."""
ABORTABLE_VERSION = 11
ZSTD_VERSION = 7
TOPIC_ID_VERSION = 13


class _Produce:
    """One request while it waits: what was appended, and how many logs are still to answer."""

    __slots__ = ("call", "durable_at", "failed", "request", "results", "transactional", "waiting")

    def __init__(self, call: Call, request: Any) -> None:
        self.call = call
        self.request = request
        self.results: list[ProduceTopicResult] = []
        self.durable_at: dict[RangeLog, int] = {}
        self.transactional: set[RangeLog] = set()
        self.failed: dict[RangeLog, Exception] = {}
        self.waiting = 0


def handle(node: Node, call: Call, request: Any) -> None:
    acks = request.acks
    if acks not in (-1, 0, 1):
        _answer_all(call, request, ErrorCode.invalid_required_acks)
        return
    state = _Produce(call, request)
    by_id = call.version >= TOPIC_ID_VERSION
    for data in request.topic_data:
        topic = node.topics.get_by_id(data.topic_id) if by_id else node.topics.get(data.name)
        state.results.append(
            ProduceTopicResult(
                "" if by_id else data.name,
                data.topic_id if by_id else None,
                [_append(node, state, topic, part, by_id=by_id) for part in data.partition_data],
            )
        )
    if acks == 0:
        for log in state.durable_at:
            log.request_flush()
        _answer_acks_0(state)
        return
    _wait(node, state, acks)


def _append(
    node: Node, state: _Produce, topic: Topic | None, part: Any, *, by_id: bool
) -> ProducePartitionResult:
    call, request = state.call, state.request
    try:
        if topic is None and by_id:
            raise KafkaError(ErrorCode.unknown_topic_id)
        partition = node.topics.partition(topic, part.index)
        assert topic is not None
        records = part.records
        header = validate_produced(records, allow_zstd=call.version >= ZSTD_VERSION)
        if header.size_bytes > topic.max_message_bytes:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"a batch of {header.size_bytes} bytes; {partition} takes {topic.max_message_bytes}",
            )
        log = partition.log
        if not header.is_transactional:
            appended = log.append(partition.index, header, records)
            # A duplicate may be durable long since; what else this request wrote to the log is not.
            state.durable_at[log] = max(appended.lsn, state.durable_at.get(log, 0))
            return _accepted(partition, appended.base_offset)
        implicit = call.version >= IMPLICIT_ADD_VERSION
        transaction = node.coordinator.admit_write(
            request.transactional_id,
            header.producer_id,
            header.producer_epoch,
            (partition.topic, partition.index),
            implicit=implicit,
        )
        appended = log.append(
            partition.index,
            header,
            records,
            txn_seq=transaction.txn_seq,
            # A first batch that got lost must not be followed by a second one as if nothing were missing.
            require_known_producer=implicit,
        )
        if not appended.duplicate:
            Coordinator.wrote(
                transaction,
                partition,
                appended.segment_id,
                appended.base_offset,
                appended.last_offset,
                appended.lsn,
            )
        state.durable_at.setdefault(log, 0)
        state.transactional.add(log)
        return _accepted(partition, appended.base_offset)
    except KafkaError as refused:
        return ProducePartitionResult(
            part.index, _code_for(call, refused.code), error_message=refused.message
        )


def _accepted(partition: Partition, base_offset: int) -> ProducePartitionResult:
    return ProducePartitionResult(
        partition.index, ErrorCode.none, base_offset, log_start_offset=partition.log_start_offset
    )


def _code_for(call: Call, code: ErrorCode) -> ErrorCode:
    """The error that this version's clients understand.

    A fenced producer hears INVALID_PRODUCER_EPOCH from Produce, as in Kafka, and so does one of a version without
    TRANSACTION_ABORTABLE whose transaction was lost: its client aborts and goes on with a new epoch (KIP-588).
    """
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and call.version < ABORTABLE_VERSION:
        return ErrorCode.invalid_producer_epoch
    return code


def _wait(node: Node, state: _Produce, acks: int) -> None:
    state.waiting = 1

    def arrived(log: RangeLog | None = None, error: Exception | None = None) -> None:
        if log is not None and error is not None:
            state.failed[log] = error
        state.waiting -= 1
        if not state.waiting:
            _answer(node, state)

    def for_log(log: RangeLog) -> Callable[[Exception | None], None]:
        return lambda error: arrived(log, error)

    for log, lsn in state.durable_at.items():
        if lsn and acks == -1:
            state.waiting += 1
            log.when_durable(lsn, for_log(log))
        elif lsn:
            log.request_flush()
        if log in state.transactional or acks == 1:
            state.waiting += 1
            log.when_written(for_log(log))
    if state.transactional:
        # The transaction's OPEN record must survive a kill of this process as the batch does (design D2).
        state.waiting += 1
        node.store.when_written(lambda _: arrived())
    arrived()


def _answer(node: Node, state: _Produce) -> None:
    if state.failed:
        _mark_failed(node, state)
    call = state.call
    call.answer_raw([encode_produce_response(call.version, call.correlation_id, state.results)])


def _mark_failed(node: Node, state: _Produce) -> None:
    for topic_result in state.results:
        topic = (
            node.topics.get_by_id(topic_result.topic_id)
            if topic_result.topic_id is not None
            else node.topics.get(topic_result.name)
        )
        error = state.failed.get(topic.log) if topic is not None else None
        if error is not None:
            topic_result.partitions = [
                ProducePartitionResult(one.partition, ErrorCode.kafka_storage_error, error_message=str(error))
                if one.error is ErrorCode.none
                else one
                for one in topic_result.partitions
            ]


def _answer_acks_0(state: _Produce) -> None:
    """No answer is awaited; an error closes the connection, so that the producer notices (as in Kafka)."""
    for topic_result in state.results:
        for one in topic_result.partitions:
            if one.error is not ErrorCode.none:
                state.call.disconnect(f"produce with acks=0 refused: {one.error.name}")
                break
    state.call.answer_nothing()


def _answer_all(call: Call, request: Any, code: ErrorCode) -> None:
    by_id = call.version >= TOPIC_ID_VERSION
    results = [
        ProduceTopicResult(
            "" if by_id else data.name,
            data.topic_id if by_id else None,
            [ProducePartitionResult(part.index, code) for part in data.partition_data],
        )
        for data in request.topic_data
    ]
    call.answer_raw([encode_produce_response(call.version, call.correlation_id, results)])
