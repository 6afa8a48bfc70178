"""Changes to a topic that is there: more partitions, other settings, a later log start.

Each is one store batch, and in force here only when that is durable: what a client was told outlives a crash, and what
a crash takes back nobody was told. A topic grows by a range of its own for the new partitions, whose first segment's
file is durable before the layout names it; a file that no layout names is removed at the next start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from broker import layouts
from broker.topic import Topic
from broker.topics import Topics, storage_error
from storage.clock import Scheduler
from storage.disk import Disk
from storage.files import delete_files
from storage.layout import SegmentInfo
from storage.range_log import RangeLog
from txn import keys
from txn.metastore import MetaStore, Op, Put, StoreFailed
from txn.outcomes import delete_in_batches
from wire.errors import ErrorCode, KafkaError

Done = Callable[[KafkaError | None], None]
"""Called once: when the change is durable and in force, or with the reason why it never will be."""


class TopicChanges:
    """Changes topics of one node. The caller has checked what is asked for."""

    def __init__(self, disk: Disk, store: MetaStore, scheduler: Scheduler, topics: Topics) -> None:
        self._disk = disk
        self._store = store
        self._scheduler = scheduler
        self._topics = topics
        self._growing: dict[Topic, list[Callable[[], None]]] = {}
        """Topics that grow just now, and who waits in line to let them grow further."""
        self.on_log_start_moved: Callable[[Topic], None] = lambda topic: None

    # -- partitions

    def check_growth(self, topic: Topic, count: int) -> None:
        """
        Raises:
            KafkaError: INVALID_PARTITIONS unless the topic may grow to `count` partitions.
        """
        have = len(topic.partitions)
        if count <= have:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"topic {topic.name!r} has {have} partitions; {count} are not more",
            )
        self._topics.check_room(count, count - have)

    def grow(self, topic: Topic, count: int, done: Done) -> None:
        """CreatePartitions: `count` partitions in all. Calls for one topic wait for each other.

        Errors: INVALID_PARTITIONS, UNKNOWN_TOPIC_OR_PARTITION (deleted meanwhile), KAFKA_STORAGE_ERROR.
        """
        waiting = self._growing.get(topic)
        if waiting is not None:
            waiting.append(partial(self.grow, topic, count, done))
            return
        try:
            if self._topics.get(topic.name) is not topic:
                raise _deleted(topic)
            self.check_growth(topic, count)
            segment_id = self._topics.allocate_segment_id()
        except KafkaError as refused:
            done(refused)
            return
        except StoreFailed as failure:
            done(storage_error(f"topic {topic.name!r}", failure))
            return
        have = len(topic.partitions)
        self._growing[topic] = []
        self._topics.count_partitions(count - have)

        def end(error: KafkaError | None) -> None:
            if error is not None:
                self._topics.count_partitions(have - count)
            done(error)
            for call in self._growing.pop(topic):
                call()

        def made(log: RangeLog | None, error: OSError | None) -> None:
            if log is None:
                end(storage_error(f"topic {topic.name!r}", error))
            else:
                self._publish_range(topic, log, segment_id, end)

        self._topics.create_range(topic.name, topic.id, topic.config, have, count - 1, segment_id, made)

    def _publish_range(self, topic: Topic, log: RangeLog, segment_id: int, end: Done) -> None:
        """The new range's file is durable: let the layout name it."""
        record, layout = self._store.get(keys.topic(topic.name)), self._store.get(keys.layout(topic.name))
        if self._topics.get(topic.name) is not topic or record is None or layout is None:
            self._drop(log, segment_id)
            end(_deleted(topic))
            return
        if self._store.failure is not None:
            # The layout in memory may be ahead of the topic then: by a range whose record never became durable.
            self._drop(log, segment_id)
            end(storage_error(f"topic {topic.name!r}", self._store.failure))
            return
        info = SegmentInfo(segment_id, log.first, log.last, "ACTIVE")
        ops: list[Op] = [
            Put(keys.topic(topic.name), {**record.value, "partitions": log.last + 1}, record.version),
            Put(keys.layout(topic.name), layouts.with_range(layout.value, info), layout.version),
        ]
        try:
            lsn = self._store.apply(ops).lsn
        except StoreFailed as failure:
            self._drop(log, segment_id)
            end(storage_error(f"topic {topic.name!r}", failure))
            return

        def durable(error: Exception | None) -> None:
            if error is not None:
                # Whether the layout names the range is unknown from here on; a restart finds out.
                self._close(log)
                end(storage_error(f"topic {topic.name!r}", error))
            elif self._topics.get(topic.name) is not topic:
                self._drop(log, segment_id)
                end(_deleted(topic))
            else:
                topic.add_range(log)
                self._topics.changes += 1
                log.reconfigure(topic.rules.log_config(self._topics.config))
                end(None)

        self._store.when_durable(lsn, durable)

    @staticmethod
    def _close(log: RangeLog) -> None:
        with contextlib.suppress(OSError):
            log.close()

    def _drop(self, log: RangeLog, segment_id: int) -> None:
        """Nothing names this range, and nothing will. What cannot be removed now a start removes."""
        self._close(log)
        with contextlib.suppress(OSError):
            delete_files(self._disk, log.directory, segment_id)

    # -- settings

    def stored_config(self, topic: Topic) -> dict[str, str]:
        """The settings that the next change builds on: durable or not, they will be in force."""
        record = self._store.get(keys.topic(topic.name))
        return dict(record.value["config"]) if record is not None else dict(topic.config)

    def configure(self, topic: Topic, config: dict[str, str], done: Done) -> None:
        """Replace a topic's settings by these checked ones. Errors: KAFKA_STORAGE_ERROR."""
        record = self._store.get(keys.topic(topic.name))
        assert record is not None, f"topic {topic.name!r} has no record"

        def in_force() -> None:
            topic.reconfigure(config, self._topics.config)

        op = Put(keys.topic(topic.name), {**record.value, "config": config}, record.version)
        self._apply(topic, [op], in_force, done)

    # -- log starts

    def move_log_starts(self, topic: Topic, offsets: Mapping[int, int], done: Done) -> None:
        """DeleteRecords: these partitions begin at these offsets, none of them above its high watermark.

        A log start that is higher already stays. Aborted ranges below are forgotten after that, or with their segment.
        Errors: KAFKA_STORAGE_ERROR.
        """
        key = keys.log_starts(topic.name)
        record = self._store.get(key)
        known: dict[int, Any] = dict(record.value) if record is not None else {}
        ops: list[Op] = []
        for index, offset in offsets.items():
            if offset > max(known.get(index, 0), topic.partitions[index].log_start_offset):
                known[index] = offset
        if record is None or known != record.value:
            ops.append(Put(key, known))

        def in_force() -> None:
            for index, offset in offsets.items():
                topic.partitions[index].advance_log_start(offset)
            self.on_log_start_moved(topic)
            delete_in_batches(self._store, self._scheduler, lambda: self._aborted_below(topic, offsets))

        self._apply(topic, ops, in_force, done)

    def log_starts(self, topic: Topic) -> dict[int, int]:
        """What of it is in force, by partition; empty where nothing was ever deleted."""
        record = self._store.get(keys.log_starts(topic.name))
        if record is None:
            return {}
        return {index: topic.partitions[index].log_start_offset for index in record.value}

    def _aborted_below(self, topic: Topic, offsets: Mapping[int, int]) -> Iterator[str]:
        for index, offset in offsets.items():
            for segment_id in topic.partitions[index].segments_below(offset):
                for key, record in self._store.scan(keys.aborted_in(segment_id, index)):
                    if record.value[0] < offset:
                        yield key

    # -- shared

    def _apply(self, topic: Topic, ops: list[Op], in_force: Callable[[], None], done: Done) -> None:
        try:
            lsn = self._store.apply(ops).lsn
        except StoreFailed as failure:
            done(storage_error(f"topic {topic.name!r}", failure))
            return

        def durable(error: Exception | None) -> None:
            if error is not None:
                done(storage_error(f"topic {topic.name!r}", error))
                return
            in_force()
            done(None)

        self._store.when_durable(lsn, durable)


def _deleted(topic: Topic) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic.name!r} was deleted")
