"""Where partitions begin: `/log-start/<topic>` as the committed metadata have it, for the replicas of this node.

    a leader wishes         DeleteRecords, or retention: at the partition's leader, which knows what there is
    the controller records  for a topic, the highest of what was wished for (`record`)
    every node hears        its replicas begin there, as far as they have it, and drop whole segments below

Guarantees: a log start never goes back; nobody is told of one, and no replica drops anything for it, before it is
committed in the metadata; a replica begins nowhere above its high watermark, and goes on to the recorded place as it
follows. A wish may be lost on its way, so it is said again until it is told here as committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from broker.ranges.topics import RangeTopics, ReplicatedTopic
from storage.clock import Scheduler, Timer
from storage.replica import RangeReplica
from storage.replica_front import ReplicaFront
from txn import keys
from txn.metastore import Event, MetaStore, Op, Put, Snapshot, StoreFailed
from wire.errors import ErrorCode, KafkaError

log = logging.getLogger("sealog")

ASK_AGAIN_MS: Final = 300
PATIENCE_MS: Final = 10_000
"""After that nobody is waited for any more; the wish may come true all the same."""

Done = Callable[[KafkaError | None], None]


@dataclass(slots=True, eq=False)
class _Wish:
    topic: str
    topic_id: UUID
    offsets: dict[int, int]
    done: Done
    deadline_ms: int
    timer: Timer | None = None


class LogStarts:
    """`ask(topic, id, offsets)`: sends a wish to the controller, or loses it."""

    def __init__(
        self,
        scheduler: Scheduler,
        topics: RangeTopics,
        replica_of: Callable[[int], RangeReplica | None],
        front_of: Callable[[int], ReplicaFront | None],
        ask: Callable[[str, bytes, dict[int, int]], None],
    ) -> None:
        self._scheduler = scheduler
        self._topics = topics
        self._replica_of = replica_of
        self._front_of = front_of
        self._ask = ask
        self._starts: dict[str, dict[int, int]] = {}
        self._behind: set[int] = set()
        """Groups whose replica here does not have all up to its log starts yet."""
        self._wishes: list[_Wish] = []

    # What the records say.

    def watch(self, view: MetaStore) -> None:
        view.watch(self._told, prefix=keys.LOG_STARTS)

    def _told(self, events: list[Event]) -> None:
        changed: set[str] = set()
        for event in events:
            if isinstance(event, Snapshot):
                changed |= set(self._starts)
                self._starts = {
                    entry.key[len(keys.LOG_STARTS) :]: dict(entry.record.value) for entry in event.entries
                }
                changed |= set(self._starts)
                continue
            name = event.key[len(keys.LOG_STARTS) :]
            changed.add(name)
            if event.new is None:
                self._starts.pop(name, None)
            else:
                self._starts[name] = dict(event.new.value)
        for group, record in self._topics.ranges.items():
            if record.topic in changed:
                self._apply(group)
        for wish in [one for one in self._wishes if one.topic in changed]:
            self._look(wish)

    # What this node's replicas do about it.

    def opened(self, group: int) -> None:
        """There is a replica, or another one."""
        self._apply(group)

    def progressed(self, group: int) -> None:
        """High watermarks have moved."""
        if group in self._behind:
            self._apply(group)

    def _apply(self, group: int) -> None:
        self._behind.discard(group)
        record = self._topics.ranges.get(group)
        replica = self._replica_of(group)
        starts = self._starts.get(record.topic) if record is not None else None
        if record is None or replica is None or not starts:
            return
        topic = self._topics.get(record.topic)
        served = topic.partitions if topic is not None and topic.id.bytes == record.topic_id else ()
        for index in range(record.first, record.last + 1):
            wanted = starts.get(index, 0)
            log_ = replica.partition(index)
            offset = min(wanted, log_.high_watermark)
            if offset < wanted:
                self._behind.add(group)
            if offset <= log_.log_start_offset:
                continue
            if index < len(served) and served[index].log is replica:
                served[index].advance_log_start(offset)
            else:
                log_.advance_log_start(offset)
        front = self._front_of(group)
        if front is not None:
            dropped = front.drop()
            if dropped:
                log.info("%s: segments %s go, below the log starts", replica.directory, list(dropped))

    # Wishes of leaders.

    def move_log_starts(self, topic: ReplicatedTopic, offsets: Mapping[int, int], done: Done) -> None:
        """These partitions, which this node leads, shall begin there, none above its high watermark; `done` when that
        is committed and in force here. Errors: UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT."""
        wish = _Wish(topic.name, topic.id, dict(offsets), done, self._scheduler.monotonic_ms() + PATIENCE_MS)
        self._wishes.append(wish)
        self._scheduler.call_soon(self._look, wish)

    def _look(self, wish: _Wish) -> None:
        if wish not in self._wishes:
            return
        if wish.timer is not None:
            wish.timer.cancel()
        topic = self._topics.get(wish.topic)
        if topic is None or topic.id != wish.topic_id:
            self._over(wish, KafkaError(ErrorCode.unknown_topic_or_partition, f"{wish.topic} was deleted"))
            return
        starts = self._starts.get(wish.topic, {})
        left = {index: offset for index, offset in wish.offsets.items() if starts.get(index, 0) < offset}
        if not left:
            self._over(wish, None)
        elif self._scheduler.monotonic_ms() >= wish.deadline_ms:
            self._over(
                wish, KafkaError(ErrorCode.request_timed_out, f"the log starts of {wish.topic} did not move")
            )
        else:
            self._ask(wish.topic, wish.topic_id.bytes, left)
            wish.timer = self._scheduler.call_later(ASK_AGAIN_MS, self._look, wish)

    def _over(self, wish: _Wish, error: KafkaError | None) -> None:
        self._wishes.remove(wish)
        wish.done(error)

    def close(self) -> None:
        for wish in self._wishes:
            if wish.timer is not None:
                wish.timer.cancel()
        self._wishes.clear()


def record(
    store: MetaStore, name: str, topic_id: bytes, offsets: Mapping[int, int]
) -> Mapping[int, int] | None:
    """At the controller: what a leader wishes for. What is not higher than what is on record changes nothing, and what
    cannot be written now is wished for again. The log starts, if they are others now."""
    topic = store.get(keys.topic(name))
    if topic is None or topic.value["id"] != topic_id:
        return None
    known = store.get(keys.log_starts(name))
    before: dict[int, int] = dict(known.value) if known is not None else {}
    starts = dict(before)
    for index, offset in offsets.items():
        if 0 <= index < topic.value["partitions"]:
            starts[index] = max(offset, starts.get(index, 0))
    if starts == before:
        return None
    ops: list[Op] = [Put(keys.log_starts(name), starts)]
    try:
        store.apply(ops)
    except (KafkaError, StoreFailed) as error:
        log.info("the log starts of %s are not recorded now: %s", name, error)
        return None
    return starts


def note_of(topic: str, topic_id: bytes, offsets: Mapping[int, int]) -> list[Any]:
    return ["log starts", topic, topic_id, dict(offsets)]
