"""Fetch (key 1): answer at once if there is enough to read, else wait for the high watermark or the LSO to move.

Nothing polls: a waiting fetch is woken by its partitions. Sessions (KIP-227) are answered truthfully with session id 0:
every fetch is a full one, and the next one of a session is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from broker import cluster_view, leader_hints, read_replica
from broker.call import Call
from broker.cluster_view import NOBODY
from broker.read_ahead import Wanted
from broker.topic import Topic
from storage.clock import Timer
from txn.partition import Partition, Slice
from wire.building import to_ms
from wire.errors import ErrorCode, KafkaError
from wire.fetch_codec import (
    FIRST_WITH_ENDPOINTS,
    FetchPartitionResult,
    FetchTopicResult,
    encode_fetch_response,
)

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


class _Read(NamedTuple):
    """Of one partition. `next` is where the next fetch finds more below the limit; `is_cut`: the end of the answer,
    not the client's bound for a partition, is where the reading ended."""

    result: FetchPartitionResult
    size_bytes: int
    next: Wanted | None
    is_cut: bool


class _Fetch:
    """One fetch from its arrival to its answer."""

    __slots__ = (
        "_call",
        "_committed",
        "_max_bytes",
        "_min_bytes",
        "_next",
        "_node",
        "_order",
        "_rack",
        "_request",
        "_rotates",
        "_timer",
        "_topics",
        "_view",
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
        self._rack: str = getattr(request, "rack_id", "")
        self._view = cluster_view.of(node)
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
        self._next: list[Wanted] = []
        """Where the next fetch goes on, if there is anything to read there: first what this one has no room for."""
        self._rotates = self._max_bytes < allowed and len(self._order) > 1
        if self._rotates:
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
        unread: list[Wanted] = []
        read: list[Wanted] = []
        for at, number in self._read_first():
            topic, wanted = self._topics[at]
            one = self._read_one(topic, wanted.partitions[number], left, first=size == 0)
            result = found[at, number] = one.result
            redirected = result.preferred_read_replica != NOBODY
            final = final or redirected or result.error is not ErrorCode.none
            size += one.size_bytes
            # Where the answer's end cut a partition short there is no room for another one's batch either.
            left = 0 if one.is_cut else left - one.size_bytes
            if one.next is not None:
                (read if one.size_bytes else unread).append(one.next)
        self._next = unread + read
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

    def _read_first(self) -> Sequence[tuple[int, int]]:
        """The order of reading: what is in memory already comes first."""
        ahead = self._call.read_ahead
        if ahead is None or ahead.is_empty or not self._rotates:
            return self._order

        def is_kept(place: tuple[int, int]) -> bool:
            topic, wanted = self._topics[place[0]]
            index = wanted.partitions[place[1]].partition
            return (
                topic is not None and 0 <= index < len(topic.partitions) and topic.partitions[index] in ahead
            )

        return sorted(self._order, key=is_kept, reverse=True)

    def _read_one(self, topic: Topic | None, one: Any, left: int, *, first: bool) -> _Read:
        partition: Partition | None = None
        try:
            if topic is None and self._call.version >= TOPIC_ID_VERSION:
                raise KafkaError(ErrorCode.unknown_topic_id)
            partition = self._node.topics.partition(topic, one.partition)
            if self._node.topics.get(partition.topic) is not topic:
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
            if not self._rack and not self._view.leads(partition):
                raise KafkaError(ErrorCode.not_leader_or_follower)
            check_leader_epoch(partition, getattr(one, "current_leader_epoch", -1))
            high_watermark, stable = partition.high_watermark, partition.last_stable_offset
            replica = self._replica_for(partition, one.fetch_offset)
            if one.fetch_offset > partition.end_offset or one.fetch_offset < partition.log_start_offset:
                raise KafkaError(ErrorCode.offset_out_of_range)
            limit = stable if self._committed else high_watermark
            records: list[Any] = []
            size = 0
            wanted: Wanted | None = None
            is_cut = False
            if one.fetch_offset < limit and replica == NOBODY:
                wanted = Wanted(partition, one.fetch_offset, self._committed, one.partition_max_bytes)
                # Where nothing was found yet, the first batch is sent however little the client wants.
                if left > 0 or first:
                    found = self._fetch(wanted, left, first=first)
                    records, size = found.records, found.size_bytes
                    has_more = found.next_offset < limit
                    is_cut = has_more and left < one.partition_max_bytes
                    if size:
                        wanted = wanted._replace(offset=found.next_offset) if has_more else None
            return _Read(
                FetchPartitionResult(
                    one.partition,
                    ErrorCode.none,
                    high_watermark,
                    stable,
                    partition.log_start_offset,
                    preferred_read_replica=replica,
                    records=records,
                ),
                size,
                wanted,
                is_cut,
            )
        except KafkaError as refused:
            result = FetchPartitionResult(one.partition, refused.code)
            if refused.code in leader_hints.OF_FETCH and self._call.version >= FIRST_WITH_ENDPOINTS:
                leader_hints.name_leader(self._view, partition, result)
            return _Read(result, 0, None, False)

    def _fetch(self, wanted: Wanted, left: int, *, first: bool) -> Slice:
        allowed = min(left, wanted.max_bytes)
        ahead = self._call.read_ahead
        if ahead is not None and not ahead.is_empty:
            kept = ahead.take(wanted._replace(max_bytes=allowed))
            if kept is not None:
                return kept
        return wanted.partition.fetch(
            wanted.offset, read_committed=wanted.read_committed, max_bytes=allowed, at_least_one=first
        )

    def _replica_for(self, partition: Partition, fetch_offset: int) -> int:
        """The replica that the client should rather ask (KIP-392), or NOBODY: it is answered here.

        Raises:
            KafkaError: this node only follows, and the client named no rack, or the node does not have that offset.
        """
        view = self._view
        if view.leads(partition):
            if not self._rack:
                return NOBODY
            here = next((one.rack for one in view.brokers() if one.id == view.node_id), None)
            return read_replica.preferred(self._rack, here, view.replicas(partition), fetch_offset)
        if not self._rack or view.node_id not in view.leadership(partition).replicas:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        error = read_replica.follower_error(fetch_offset, partition.log_start_offset, partition.end_offset)
        if error is not ErrorCode.none:
            raise KafkaError(error)
        return NOBODY

    def _answer(self, results: list[FetchTopicResult]) -> None:
        call = self._call
        hinted = [one for topic in results for one in topic.partitions if one.leader_id != NOBODY]
        endpoints = leader_hints.endpoints(self._view.brokers(), hinted) if hinted else ()
        call.answer_raw(
            encode_fetch_response(call.version, call.correlation_id, results, node_endpoints=endpoints)
        )
        if call.read_ahead is not None:
            call.read_ahead.plan(
                self._next, self._node.config.limits.fetch_answer_bytes, self._node.read_ahead_budget
            )


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
