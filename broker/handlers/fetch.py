"""Fetch (key 1): answer at once if there is enough to read, else wait for the high watermark or the LSO to move.

Nothing polls: a waiting fetch is woken by its partitions. Sessions (KIP-227) are answered truthfully with session id 0:
every fetch is a full one, and the next one of a session is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.topic import Topic
from storage.clock import Timer
from txn.partition import Partition
from wire.building import to_ms
from wire.errors import ErrorCode, KafkaError
from wire.fetch_codec import FetchPartitionResult, FetchTopicResult, encode_fetch_response

if TYPE_CHECKING:
    from broker.node import Node

TOPIC_ID_VERSION = 13
LATE_MS = 4
"""An empty answer comes this much after `max_wait`: kafka-go cuts its own deadline to whole ms and would reconnect."""
FULL_FETCH, BEGIN_SESSION = -1, 0
_READ_COMMITTED = 1


def handle(node: Node, call: Call, request: Any) -> None:
    # Other epochs begin or end a session, whatever its id: what they ask for is a full fetch.
    if getattr(request, "session_epoch", FULL_FETCH) not in (FULL_FETCH, BEGIN_SESSION):
        call.answer_raw(
            encode_fetch_response(
                call.version, call.correlation_id, [], error=ErrorCode.fetch_session_id_not_found
            )
        )
        return
    _Fetch(node, call, request).start()


class _Fetch:
    """One fetch from its arrival to its answer."""

    __slots__ = (
        "_call",
        "_committed",
        "_max_bytes",
        "_min_bytes",
        "_node",
        "_order",
        "_request",
        "_timer",
        "_topics",
        "_wait_ms",
        "_watched",
        "_woken",
    )

    def __init__(self, node: Node, call: Call, request: Any) -> None:
        self._node = node
        self._call = call
        self._request = request
        self._wait_ms = to_ms(request.max_wait)
        self._min_bytes = request.min_bytes
        limits = node.config.limits
        allowed = min(getattr(request, "max_bytes", 1 << 31), limits.fetch_bytes)
        self._max_bytes = min(allowed, max(limits.fetch_answer_bytes, request.min_bytes))
        self._committed = getattr(request, "isolation_level", 0) == _READ_COMMITTED
        self._timer: Timer | None = None
        self._watched: list[Partition] = []
        self._woken = False
        by_id = call.version >= TOPIC_ID_VERSION
        self._topics: list[tuple[Topic | None, Any]] = [
            (node.topics.get_by_id(wanted.topic_id) if by_id else node.topics.get(wanted.topic), wanted)
            for wanted in request.topics
        ]
        self._order = [
            (at, number)
            for at, (_, wanted) in enumerate(self._topics)
            for number in range(len(wanted.partitions))
        ]
        if self._max_bytes < allowed and len(self._order) > 1:
            # The client would take more than it gets: no partition may always be the first one.
            start = call.correlation_id % len(self._order)
            self._order = self._order[start:] + self._order[:start]

    def start(self) -> None:
        results, size, final = self._read()
        if final or size >= self._min_bytes or self._wait_ms <= 0:
            self._answer(results)
            return
        for topic, wanted in self._topics:
            for one in wanted.partitions:
                partition = self._node.topics.partition(topic, one.partition)
                partition.add_waiter(self._wake)
                self._watched.append(partition)
        self._timer = self._node.scheduler.call_later(self._wait_ms + LATE_MS, self._expired)

    def _wake(self) -> None:
        """Look again at the end of this turn, once, however many partitions moved in it."""
        if not self._woken:
            self._woken = True
            self._node.scheduler.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._woken = False
        if self._call.answered:
            return
        if self._call.abandoned:
            self._stop()
            return
        results, size, final = self._read()
        if final or size >= self._min_bytes:
            self._stop()
            self._answer(results)

    def _expired(self) -> None:
        self._timer = None
        self._stop()
        if not self._call.answered:
            self._answer(self._read()[0])

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._watched:
            partition.remove_waiter(self._wake)
        self._watched.clear()

    def _read(self) -> tuple[list[FetchTopicResult], int, bool]:
        """(results, bytes of records, whether an error makes it final)."""
        left = self._max_bytes
        size = 0
        final = False
        found: dict[tuple[int, int], FetchPartitionResult] = {}
        for at, number in self._order:
            topic, wanted = self._topics[at]
            result, taken = self._read_one(topic, wanted.partitions[number], left, first=size == 0)
            final = final or result.error is not ErrorCode.none
            left -= taken
            size += taken
            found[at, number] = result
        by_id = self._call.version >= TOPIC_ID_VERSION
        topics: list[FetchTopicResult] = []
        for at, (_, wanted) in enumerate(self._topics):
            partitions = [found[at, number] for number in range(len(wanted.partitions))]
            topics.append(
                FetchTopicResult("", wanted.topic_id, partitions)
                if by_id
                else FetchTopicResult(wanted.topic, None, partitions)
            )
        return topics, size, final or not topics

    def _read_one(
        self, topic: Topic | None, one: Any, left: int, *, first: bool
    ) -> tuple[FetchPartitionResult, int]:
        try:
            if topic is None and self._call.version >= TOPIC_ID_VERSION:
                raise KafkaError(ErrorCode.unknown_topic_id)
            partition = self._node.topics.partition(topic, one.partition)
            if self._node.topics.get(partition.topic) is not topic:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            check_leader_epoch(partition, getattr(one, "current_leader_epoch", -1))
            high_watermark, stable = partition.high_watermark, partition.last_stable_offset
            if one.fetch_offset > partition.end_offset or one.fetch_offset < partition.log_start_offset:
                raise KafkaError(ErrorCode.offset_out_of_range)
            limit = stable if self._committed else high_watermark
            # Where nothing was found yet, the first batch is sent however little the client wants.
            if one.fetch_offset >= limit or (left <= 0 and not first):
                records: list[Any] = []
                size = 0
            else:
                found = partition.fetch(
                    one.fetch_offset,
                    read_committed=self._committed,
                    max_bytes=min(left, one.partition_max_bytes),
                    at_least_one=first,
                )
                records, size = found.records, found.size_bytes
            return (
                FetchPartitionResult(
                    one.partition,
                    ErrorCode.none,
                    high_watermark,
                    stable,
                    partition.log_start_offset,
                    records=records,
                ),
                size,
            )
        except KafkaError as refused:
            return FetchPartitionResult(one.partition, refused.code), 0

    def _answer(self, results: list[FetchTopicResult]) -> None:
        self._call.answer_raw(encode_fetch_response(self._call.version, self._call.correlation_id, results))


def check_leader_epoch(partition: Partition, current_leader_epoch: int) -> None:
    """
    Raises:
        KafkaError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH where the client's view is older or newer (KIP-320).
    """
    if current_leader_epoch == -1:
        return
    if current_leader_epoch < partition.log.term:
        raise KafkaError(ErrorCode.fenced_leader_epoch)
    if current_leader_epoch > partition.log.term:
        raise KafkaError(ErrorCode.unknown_leader_epoch)
