"""Produce (key 0): check a batch's header, append it, answer when it is as safe as the producer asked.

Outside a transaction acks=all waits for a flush; inside one nothing waits, the commit does (design, D1 and D2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from broker import cluster_view, leader_hints, timestamps
from broker.call import Call
from broker.cluster_view import NOBODY, ClusterView
from broker.topic import Topic
from storage.layout import Appended
from storage.producers import SequenceGap, SequenceOverlap
from storage.sequencing import SequencedRange
from txn.partition import Partition
from txn.transaction import Transaction
from wire.batch import NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader, validate_produced
from wire.errors import ErrorCode, KafkaError
from wire.framing import LARGE_FRAME_BYTES
from wire.produce_codec import ProducePartitionResult, ProduceTopicResult, encode_produce_response
from wire.records import iterate_records

if TYPE_CHECKING:
    from broker.node import Node

IMPLICIT_ADD_VERSION = 12
"""From here on the produce itself adds its partition to the transaction (KIP-890)."""
ABORTABLE_VERSION = 11
ZSTD_VERSION = 7
TOPIC_ID_VERSION = 13
TURN_BYTES = 1 << 20
"""How much of a large request is appended in one turn of the loop, the batch that goes beyond it included."""
MANY_PARTITIONS = 500
"""From here on a request takes turns, too, whatever is in it."""
PARTITION_BYTES = 4 << 10
"""What looking at a partition counts for beside the bytes of its batch: it takes about as long as to append so many."""
_OF_THE_LOG = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_timestamp,
    }
)
"""Errors that come with the log's start offset, as in Kafka: the batch was held to what the log has."""


class _Produce:
    """One request while it waits: what was appended, and how many logs are still to answer."""

    __slots__ = (
        "acks",
        "admitted",
        "call",
        "durable_at",
        "failed",
        "now_ms",
        "results",
        "traced",
        "transactional",
        "transactional_id",
        "two_phase",
        "view",
        "waiting",
        "written",
    )

    def __init__(self, call: Call, request: Any, now_ms: int, view: ClusterView) -> None:
        self.call = call
        self.view = view
        self.transactional_id: str | None = request.transactional_id
        self.acks: int = request.acks
        self.now_ms = now_ms
        self.results: list[ProduceTopicResult] = []
        self.admitted: dict[tuple[int, int], Transaction] = {}
        """By (producer id, epoch): the transaction that the request's batches are of."""
        self.durable_at: dict[SequencedRange, int] = {}
        self.transactional: set[SequencedRange] = set()
        self.traced = False
        """That its transaction is open must survive a kill of this process as the batch does (design D2)."""
        self.two_phase = False
        """Of a transaction that must outlive a power cut (KIP-939): answered when all of it is on the disk."""
        self.failed: dict[SequencedRange, Exception] = {}
        self.written: list[tuple[ProducePartitionResult, Partition, SequencedRange]] = []
        self.waiting = 0


def handle(node: Node, call: Call, request: Any) -> None:
    acks = request.acks
    if acks not in (-1, 0, 1):
        _answer_all(call, request, ErrorCode.invalid_required_acks)
        return
    state = _Produce(call, request, node.scheduler.now_ms(), cluster_view.of(node))
    if call.size_bytes > LARGE_FRAME_BYTES or (
        call.size_bytes > 8 * MANY_PARTITIONS
        and sum(len(data.partition_data) for data in request.topic_data) > MANY_PARTITIONS
    ):
        _take(node, state, _one_by_one(node, state, request.topic_data))
        return
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
    _finish(node, state)


def _take(node: Node, state: _Produce, parts: Iterator[int]) -> None:
    """Append what a turn may take of a large request, and the rest in others: who else is there waits for a turn.

    Between two of them a transaction may have ended, a topic or a leader gone: each turn looks for itself.
    """
    state.admitted.clear()
    state.view = cluster_view.of(node)
    taken_bytes = 0
    for size in parts:
        taken_bytes += size
        if taken_bytes >= TURN_BYTES:
            state.call.next_step = lambda: _take(node, state, parts)
            return
    _finish(node, state)


def _one_by_one(node: Node, state: _Produce, topic_data: Any) -> Iterator[int]:
    """Append the batches, and say how much of a turn each took, in bytes."""
    by_id = state.call.version >= TOPIC_ID_VERSION
    for data in topic_data:
        results: list[ProducePartitionResult] = []
        state.results.append(
            ProduceTopicResult("" if by_id else data.name, data.topic_id if by_id else None, results)
        )
        for part in data.partition_data:
            topic = node.topics.get_by_id(data.topic_id) if by_id else node.topics.get(data.name)
            results.append(_append(node, state, topic, part, by_id=by_id))
            yield PARTITION_BYTES + len(part.records or b"")


def _finish(node: Node, state: _Produce) -> None:
    """All is appended or refused: answer when it is as safe as was asked for."""
    acks = state.acks
    if acks == 0:
        for log in state.durable_at:
            log.request_flush()
        _answer_acks_0(state)
        return
    _wait(node, state, acks)


def _append(
    node: Node, state: _Produce, topic: Topic | None, part: Any, *, by_id: bool
) -> ProducePartitionResult:
    call = state.call
    partition: Partition | None = None
    try:
        if topic is None and by_id:
            raise KafkaError(ErrorCode.unknown_topic_id)
        partition = node.topics.partition(topic, part.index)
        assert topic is not None
        if not state.view.leads(partition):
            raise KafkaError(ErrorCode.not_leader_or_follower)
        records = part.records
        rules = topic.rules
        header = validate_produced(
            records, allow_zstd=call.version >= ZSTD_VERSION, max_bytes=rules.max_message_bytes
        )
        if rules.keyed:
            _check_keys(records, partition)
        header, records, append_time_ms = timestamps.admit(rules, header, records, state.now_ms)
        log = partition.log
        if not header.attributes & TRANSACTIONAL_BIT:
            if partition.transactions.is_writing(header.producer_id):
                return ProducePartitionResult(
                    part.index,
                    ErrorCode.invalid_txn_state,
                    log_start_offset=partition.log_start_offset,
                    error_message="a plain batch amid its producer's transaction",
                )
            appended = _append_plain(state.view, partition, header, records)
            # A duplicate may be durable long since; what else this request wrote to the log is not.
            state.durable_at[log] = max(appended.lsn, state.durable_at.get(log, 0))
            return _accepted(state, partition, appended, append_time_ms)
        admission = node.coordinator.admission
        implicit = call.version >= IMPLICIT_ADD_VERSION
        producer = header.producer_id, header.producer_epoch
        at = partition.topic, partition.index
        transaction = state.admitted.get(producer)
        if transaction is None:
            transaction = admission.admit_write(state.transactional_id, *producer, at, implicit=implicit)
            state.admitted[producer] = transaction
        else:
            if at not in transaction.partitions:
                admission.admit_further(transaction, at, implicit=implicit)
        try:
            appended = log.append(
                partition.index,
                header,
                records,
                txn_seq=transaction.txn_seq,
                # A first batch that got lost must not be followed by a second one as if nothing were missing.
                require_known_producer=implicit,
            )
        except SequenceGap as gap:
            if state.view.goes_on(partition):
                raise KafkaError(ErrorCode.not_enough_replicas, gap.message) from gap
            raise
        if appended.duplicate:
            _check_repeat(partition, header.producer_id, appended)
        else:
            admission.wrote(
                transaction,
                partition,
                appended.segment_id,
                appended.base_offset,
                appended.last_offset,
                appended.lsn,
            )
        if transaction.two_phase:
            state.durable_at[log] = max(appended.lsn, state.durable_at.get(log, 0))
            state.two_phase = True
        if not (implicit and transaction.untraced):
            state.traced = True
        if log not in state.transactional:
            state.durable_at.setdefault(log, 0)
            state.transactional.add(log)
        return _accepted(state, partition, appended, append_time_ms)
    except KafkaError as error:
        refused = error
        if isinstance(error, SequenceOverlap) and partition is not None:
            refused = _of_aborted(partition, header.producer_id, error)
        start = -1
        if partition is not None and refused.code in _OF_THE_LOG:
            start = partition.log_start_offset
        result = ProducePartitionResult(
            part.index,
            _code_for(call, refused.code),
            log_start_offset=start,
            error_message=refused.message,
        )
        if refused.code in leader_hints.OF_PRODUCE:
            leader_hints.name_leader(state.view, partition, result)
        return result


def _append_plain(view: ClusterView, partition: Partition, header: BatchHeader, records: Any) -> Appended:
    """Outside a transaction.

    Soon after a change of leaders a batch ahead of its turn is refused by NOT_ENOUGH_REPLICAS, on which clients send
    all again, in order. For librdkafka may send a batch to the new leader before it has taken back the one before it,
    which failed at the old one; and it takes OUT_OF_ORDER_SEQUENCE_NUMBER for a reason to number all that it has anew,
    under the next epoch: what else is in doubt, in whatever partition, would then be in the log twice. (A transaction
    that goes on under a new leader would abort for the same. One that misses batches for good was refused before.)
    """
    lately = view.led_lately(partition)
    try:
        return partition.log.append(partition.index, header, records, require_known_producer=lately)
    except SequenceGap as gap:
        if lately:
            raise KafkaError(ErrorCode.not_enough_replicas, gap.message) from gap
        raise


def _check_keys(records: Any, partition: Partition) -> None:
    """Compaction keeps the last value of a key. Raises KafkaError(INVALID_RECORD) for a record without one."""
    if any(record.key is None for record in iterate_records(records)):
        raise KafkaError(
            ErrorCode.invalid_record, f"{partition} is compacted: every record needs a key (cleanup.policy)"
        )


def _check_repeat(partition: Partition, producer_id: int, appended: Appended) -> None:
    """A batch under sequences that an aborted transaction used is not in the log for any reader.

    Under the first protocol the epoch outlives an abort. A client that lost an answer, aborted, and used the sequences
    again for other records would lose these without a word, were it told that they are there (redpanda pull 5026).
    """
    if partition.transactions.is_aborted(producer_id, appended.base_offset):
        raise KafkaError(
            ErrorCode.transaction_abortable,
            f"its sequences are those of an aborted batch, at {appended.base_offset} of {partition}",
        )


def _of_aborted(partition: Partition, producer_id: int, overlap: SequenceOverlap) -> KafkaError:
    """The same, where the new batch is cut otherwise than the aborted one, so that it is no repeat of it.

    librdkafka gives the sequences of a batch that it took back when it aborted, and whose answer a crash took, to the
    next records. OUT_OF_ORDER_SEQUENCE_NUMBER would end that producer; on this it aborts, and counts on from there.
    """
    if not partition.transactions.is_aborted(producer_id, overlap.last_base_offset):
        return overlap
    return KafkaError(
        ErrorCode.transaction_abortable,
        f"its sequences are those of what was aborted, up to {overlap.last_base_offset} of {partition}",
    )


def _accepted(
    state: _Produce, partition: Partition, appended: Appended, append_time_ms: int
) -> ProducePartitionResult:
    if appended.duplicate and append_time_ms != NO_TIMESTAMP:
        known = partition.log.batch_at(partition.index, appended.base_offset)
        append_time_ms = known.max_timestamp if known is not None else NO_TIMESTAMP
    result = ProducePartitionResult(
        partition.index,
        ErrorCode.none,
        appended.base_offset,
        append_time_ms,
        partition.log_start_offset,
    )
    state.written.append((result, partition, partition.log))
    return result


def _code_for(call: Call, code: ErrorCode) -> ErrorCode:
    """The error that this version's clients understand.

    A fenced producer hears INVALID_PRODUCER_EPOCH from Produce, as in Kafka. One whose transaction a power cut took
    hears what its client aborts and goes on after. Under transactions v2 that is INVALID_PRODUCER_EPOCH, too, as after
    a timeout in Kafka: Kafka Streams 4.3 ends at TRANSACTION_ABORTABLE. In versions without TRANSACTION_ABORTABLE it
    is INVALID_PRODUCER_ID_MAPPING, since INVALID_PRODUCER_EPOCH is the end of a librdkafka producer.
    """
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.invalid_txn_state and call.version >= ABORTABLE_VERSION:
        return ErrorCode.transaction_abortable
    if code is ErrorCode.transaction_abortable and call.version >= IMPLICIT_ADD_VERSION:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and call.version < ABORTABLE_VERSION:
        return ErrorCode.invalid_producer_id_mapping
    return code


def _wait(node: Node, state: _Produce, acks: int) -> None:
    state.waiting = 1

    def arrived(log: SequencedRange | None = None, error: Exception | None = None) -> None:
        if log is not None and error is not None:
            state.failed[log] = error
        state.waiting -= 1
        if not state.waiting:
            _answer(state)

    def for_log(log: SequencedRange) -> Callable[[Exception | None], None]:
        return lambda error: arrived(log, error)

    for log, lsn in state.durable_at.items():
        if lsn and (acks == -1 or state.two_phase):
            state.waiting += 1
            log.when_durable(lsn, for_log(log))
        elif lsn:
            log.request_flush()
        if log in state.transactional or acks == 1:
            state.waiting += 1
            log.when_written(for_log(log))
    if state.traced:
        state.waiting += 1
        node.coordinator.admission.when_traced(state.two_phase, lambda _: arrived())
    arrived()


def _answer(state: _Produce) -> None:
    if state.failed:
        _mark_failed(state)
    call = state.call
    results = [one for topic in state.results for one in topic.partitions]
    hinted = [one for one in results if one.leader_id != NOBODY]
    endpoints = leader_hints.endpoints(state.view.brokers(), hinted) if hinted else ()
    call.answer_raw(
        [encode_produce_response(call.version, call.correlation_id, state.results, node_endpoints=endpoints)]
    )


def _mark_failed(state: _Produce) -> None:
    """What was written to a log that failed, went with its topic, or has another leader now, is not there."""
    for result, partition, log in state.written:
        error = state.failed.get(log)
        if error is not None:
            result.error = error.code if isinstance(error, KafkaError) else ErrorCode.kafka_storage_error
            result.error_message = str(error)
            result.base_offset = result.log_append_time = result.log_start_offset = -1
            if result.error in leader_hints.OF_PRODUCE:
                leader_hints.name_leader(state.view, partition, result)


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
