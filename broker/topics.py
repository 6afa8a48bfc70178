"""The topics of this node: their records in the metadata store and their range logs on disk.

A topic is published by one store batch (its record and its layout) after its first segment's file is durable, so a
crash leaves a whole topic or none. The layout names every segment of the topic's ranges. Changes to a topic that is
there are in `broker.topic_changes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from broker import layouts, topic_config
from broker.config import BrokerConfig
from broker.layout_store import LayoutStore
from broker.topic import Rules, Topic
from storage.cache import SegmentCache
from storage.clock import Scheduler
from storage.disk import Disk
from storage.layout import RangeHooks, RollEvent, SegmentInfo
from storage.range_log import RangeLog
from storage.recovery import RecoveryReport, create_range, open_ranges
from storage.reshape import Reshape, ReshapeOwner
from txn import keys
from txn.id_blocks import IdBlocks
from txn.metastore import ABSENT, Delete, MetaStore, Op, Put, StoreFailed
from txn.outcomes import forget_segments
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

Created = Callable[[Topic | KafkaError], None]
Deleted = Callable[[KafkaError | None], None]


class Topics:
    """All topics by name and by id. One place creates, opens and deletes them."""

    def __init__(
        self,
        disk: Disk,
        store: MetaStore,
        scheduler: Scheduler,
        config: BrokerConfig,
        new_uuid: Callable[[], UUID],
        *,
        term: int,
        on_failure: Callable[[KafkaError], None],
    ) -> None:
        self._disk = disk
        self._store = store
        self._scheduler = scheduler
        self.config = config
        """The broker's: its limits and the defaults of topics."""
        self._new_uuid = new_uuid
        self.layout_store = LayoutStore(store)
        self._segment_ids = IdBlocks(store, keys.SEGMENT_IDS)
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._creating: dict[str, list[Created]] = {}
        self.cache = SegmentCache()
        self._partition_count = 0
        self.changes = 0
        """Grows whenever a topic is made, deleted or given more partitions."""
        self._term = term
        self._on_failure = on_failure
        self.forget_partition: Callable[[Partition], None] = lambda _: None
        """Called for each partition of a topic that is being deleted, so that transactions let go of it."""
        self.on_segment_sealed: Callable[[Topic, int], None] = lambda _, __: None
        """Called when the footer of a segment is durable."""
        self.remove_later: Callable[[str, OSError], None] = lambda _, __: None
        """Called with the folder of a deleted topic in which something is left."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def get_by_id(self, topic_id: UUID | None) -> Topic | None:
        return self._by_id.get(topic_id) if topic_id is not None else None

    def partition(self, topic: Topic | None, index: int) -> Partition:
        """
        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return topic.partitions[index]

    # -- create

    def check_new(self, name: str, partitions: int, config: Mapping[str, str | None]) -> dict[str, str]:
        """The checked settings of a topic that may be created.

        Raises:
            KafkaError: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG.
        """
        topic_config.check_name(name)
        if name in self._by_name or name in self._creating:
            raise KafkaError(ErrorCode.topic_already_exists, f"topic {name!r} already exists")
        self.check_room(partitions, partitions)
        return {key: topic_config.check(key, value) for key, value in config.items()}

    def check_room(self, partitions: int, added: int) -> None:
        """
        Raises:
            KafkaError: INVALID_PARTITIONS where a topic of so many, or so many more on this broker, are too many.
        """
        limits = self.config.limits
        if not 0 < partitions <= limits.partitions_per_topic:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"{partitions} partitions are refused: a topic has 1 to {limits.partitions_per_topic}",
            )
        if self._partition_count + added > limits.partitions:
            raise KafkaError(
                ErrorCode.invalid_partitions, f"this broker has its limit of {limits.partitions} partitions"
            )

    def count_partitions(self, added: int) -> None:
        """So many more (or fewer) count against the limit from now on."""
        self._partition_count += added

    def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str | None],
        done: Created,
        replication_factor: int = -1,
    ) -> None:
        """Create a topic of one range; `done` when it is durable, with the error otherwise. Whatever the replication
        factor, which was checked: all that replicates a topic here is below it."""
        try:
            checked = self.check_new(name, partitions, config)
            topic_id = self._new_uuid()
            segment_id = self.allocate_segment_id()
        except KafkaError as refused:
            done(refused)
            return
        except StoreFailed as failure:
            done(storage_error(f"topic {name!r}", failure))
            return
        self._creating[name] = [done]
        self._partition_count += partitions

        def made(log: RangeLog | None, error: OSError | None) -> None:
            if log is None:
                self._created(name, partitions, storage_error(f"topic {name!r}", error))
            else:
                self._publish_new(name, topic_id, segment_id, checked, log)

        self.create_range(name, topic_id, checked, 0, partitions - 1, segment_id, made)

    def create_or_join(self, name: str, partitions: int, done: Created) -> None:
        """As `create`, but where another request is creating it just now, its result is this one's too."""
        joined = self._creating.get(name)
        if joined is not None:
            joined.append(done)
        else:
            self.create(name, partitions, {}, done)

    def _publish_new(
        self,
        name: str,
        topic_id: UUID,
        segment_id: int,
        config: dict[str, str],
        log: RangeLog,
    ) -> None:
        """The first segment's file is durable: let the store name it."""
        partitions = log.last + 1
        record = {"id": topic_id.bytes, "partitions": partitions, "config": config}
        layout = layouts.new_layout(SegmentInfo(segment_id, 0, log.last, "ACTIVE"))
        try:
            lsn = self._store.apply(
                [Put(keys.topic(name), record, ABSENT), Put(keys.layout(name), layout, ABSENT)]
            ).lsn
        except StoreFailed as failure:
            self._created(name, partitions, storage_error(f"topic {name!r}", failure))
            return

        def durable(error: Exception | None) -> None:
            if error is not None:
                self._created(name, partitions, storage_error(f"topic {name!r}", error))
            else:
                self._created(name, partitions, self._add(name, topic_id, config, [log]))

        self._store.when_durable(lsn, durable)

    def _created(self, name: str, partitions: int, result: Topic | KafkaError) -> None:
        self._partition_count -= partitions if isinstance(result, KafkaError) else 0
        for done in self._creating.pop(name):
            done(result)

    def _add(self, name: str, topic_id: UUID, config: dict[str, str], ranges: list[RangeLog]) -> Topic:
        topic = Topic.opened(name, topic_id, config, Rules.of(config, self.config), ranges)
        self.changes += 1
        self._by_name[name] = topic
        self._by_id[topic_id] = topic
        return topic

    def create_range(
        self,
        name: str,
        topic_id: UUID,
        config: Mapping[str, str],
        first: int,
        last: int,
        segment_id: int,
        made: Callable[[RangeLog | None, OSError | None], None],
    ) -> None:
        """Make the log of a topic's new range; `made` when its file is durable. No layout names it yet."""
        create_range(
            self._disk,
            self._scheduler,
            made,
            first=first,
            last=last,
            segment_id=segment_id,
            **self._log_arguments(name, topic_id, config),
        )

    def _log_arguments(self, name: str, topic_id: UUID, config: Mapping[str, str]) -> dict[str, Any]:
        """What making and opening a topic's range log have in common."""

        def progressed(indexes: Iterable[int]) -> None:
            topic = self._by_name.get(name)
            if topic is not None and topic.id == topic_id:
                for index in indexes:
                    topic.partitions[index].wake()

        return {
            "directory": layouts.directory(name, topic_id),
            "topic_id": topic_id,
            "term": self._term,
            "config": Rules.of(config, self.config).log_config(self.config),
            "cache": self.cache,
            "allocate_segment_id": self._segment_id_for_roll,
            "publish": partial(self._publish_roll, name),
            "on_sealed": partial(self._record_sealed, name),
            "on_progress": progressed,
            "on_failed": self._on_failure,
        }

    def allocate_segment_id(self) -> int:
        """A number no segment of any topic ever had. Raises StoreFailed."""
        return self._segment_ids.allocate()[0]

    def _segment_id_for_roll(self) -> int:
        try:
            return self.allocate_segment_id()
        except StoreFailed as failure:
            # A roll takes it as it takes a full disk: the segment grows on, and nothing is lost.
            raise OSError(str(failure)) from failure

    # -- roll

    def _publish_roll(self, name: str, event: RollEvent, done: Callable[[OSError | None], None]) -> None:
        """The child takes the parent's place as the tail (design, section 9)."""
        if self.layout_store.get(name) is None:
            return  # the topic is being deleted, and its log with it: the roll ends there

        def published(error: Exception | None) -> None:
            # Nobody else continues a segment that is rolling: a layout that says so is a fault, and the end of the log.
            done(error if error is None or isinstance(error, OSError) else OSError(str(error)))

        self.layout_store.change(name, partial(layouts.with_roll, event=event), published)

    def _record_sealed(self, name: str, segment_id: int, end_offsets: Mapping[int, int]) -> None:
        """Nobody waits: after a crash the file itself says that it is sealed."""
        self.layout_store.change(
            name,
            partial(layouts.with_sealed, segment_id=segment_id, end_offsets=end_offsets),
            lambda _: None,
        )
        topic = self._by_name.get(name)
        if topic is not None:
            self.on_segment_sealed(topic, segment_id)

    def reshape(
        self, topic: Topic, owner: ReshapeOwner, parents: Sequence[RangeLog], spans: Sequence[tuple[int, int]]
    ) -> Reshape:
        """A change of a topic's ranges, ready to start."""
        arguments = self._log_arguments(topic.name, topic.id, topic.config)
        return Reshape(
            self._disk,
            self._scheduler,
            owner,
            parents,
            spans,
            hooks=RangeHooks(**{name: arguments[name] for name in RangeHooks._fields if name in arguments}),
            config=arguments["config"],
            cache=self.cache,
        )

    # -- delete

    def delete(self, topic: Topic, more_ops: Sequence[Op], done: Deleted) -> None:
        """Remove a topic, its records and its files; `done` when that is durable. Transactions let go of it."""
        name = topic.name
        ops: list[Op] = [Delete(keys.topic(name)), Delete(keys.layout(name)), Delete(keys.log_starts(name))]
        ops += [Delete(keys.durable_ends(name)), *more_ops]
        layout = self._store.get(keys.layout(topic.name))
        segments = [segment["id"] for segment in layout.value["segments"]] if layout else []
        try:
            lsn = self._store.apply(ops).lsn
        except StoreFailed as failure:
            done(KafkaError(ErrorCode.kafka_storage_error, str(failure)))
            return
        self.changes += 1
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        self._partition_count -= len(topic.partitions)
        for partition in topic.partitions:
            self.forget_partition(partition)

        def durable(error: Exception | None) -> None:
            if error is None:
                forget_segments(self._store, self._scheduler, segments)
                self._remove_files(topic)
            for partition in topic.partitions:
                partition.wake()  # waiting fetches answer that the topic is gone
            done(KafkaError(ErrorCode.kafka_storage_error, str(error)) if error else None)

        self._store.when_durable(lsn, durable)

    def _remove_files(self, topic: Topic) -> None:
        for log in topic.logs:
            try:
                log.delete()
            except OSError as error:
                self.remove_later(log.directory, error)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Other defaults of the broker are in force, for topics that set nothing else."""
        self.config = config
        for topic in self._by_name.values():
            topic.reconfigure(topic.config, config)

    # -- start and stop

    def open_all(self) -> list[RecoveryReport]:
        """Open every topic that the store knows, and remove the folders of those that it doesn't.

        Raises:
            CorruptLog: flushed data is damaged.
        """
        reports: list[RecoveryReport] = []
        known: set[str] = set()
        for key, record in list(self._store.scan(keys.TOPICS)):
            name = key[len(keys.TOPICS) :]
            topic_id = UUID(bytes=record.value["id"])
            config = dict(record.value["config"])
            layout = self._store.get(keys.layout(name))
            assert layout is not None, f"topic {name!r} has no layout: both are written in one batch"
            log_starts = self._store.get(keys.log_starts(name))
            ends = self._store.get(keys.durable_ends(name))
            ranges, report = open_ranges(
                self._disk,
                self._scheduler,
                segments=layouts.segments_of(layout.value),
                log_start_offsets=log_starts.value if log_starts else None,
                durable_ends=ends.value if ends else None,
                **self._log_arguments(name, topic_id, config),
            )
            reports.append(report)
            topic = self._add(name, topic_id, config, ranges)
            self._partition_count += len(topic.partitions)
            known.add(layouts.directory(name, topic_id).split("/")[-1])
        for folder in self._disk.list("topics"):
            if folder not in known:
                for file in self._disk.list(f"topics/{folder}"):
                    self._disk.remove(f"topics/{folder}/{file}")
                self._disk.remove_dir(f"topics/{folder}")
        return reports

    def segment_topics(self) -> dict[int, str]:
        """Which topic each segment belongs to."""
        return {
            segment["id"]: key[len(keys.LAYOUTS) :]
            for key, record in self._store.scan(keys.LAYOUTS)
            for segment in record.value["segments"]
        }

    def close(self) -> bool:
        """Write, flush and checkpoint every log; whether nothing failed. Blocks: for a clean stop."""
        clean = True
        for topic in self._by_name.values():
            for log in topic.logs:
                try:
                    log.close()
                except OSError as error:
                    clean = False
                    self._on_failure(storage_error(f"topic {topic.name!r}", error))
        return clean


def storage_error(what: str, error: Exception | None) -> KafkaError:
    return KafkaError(ErrorCode.kafka_storage_error, f"{what}: {error}")
