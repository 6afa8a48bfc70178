"""Topics as the controller changes them: made, grown, configured, deleted, each by one batch of the store.

What is made counts once its batch is committed; each node makes its replicas then. Who created a topic hears of it when
its ranges have leaders, or after `LEADERS_MS`: a client asks for leaders at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from broker import topic_config
from broker.cluster_view import NOBODY
from broker.placement import NodeView
from broker.ranges.assignment import assign, split_evenly
from broker.ranges.records import FIRST_GROUP, RangeRecord
from broker.ranges.topics import RangeTopics, ReplicatedTopic
from broker.ranges.view import RangesView
from broker.topics import storage_error
from storage.clock import Scheduler, Timer
from txn import keys
from txn.id_blocks import IdBlocks
from txn.metastore import ABSENT, Delete, MetaStore, Op, Put, StoreFailed
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError

Created = Callable[[ReplicatedTopic | KafkaError], None]
Done = Callable[[KafkaError | None], None]
LEADERS_MS: Final = 3000


@dataclass(slots=True, eq=False)
class _Creating:
    topic_id: UUID
    waiting: list[Created]
    durable: bool = False
    timer: Timer | None = None
    timed_out: bool = False


class LedTopics:
    """The topics of the cluster on the node that changes them. It ends with its leadership (`scheduler` does)."""

    def __init__(
        self,
        store: MetaStore,
        scheduler: Scheduler,
        topics: RangeTopics,
        view: RangesView,
        nodes: Callable[[], Sequence[NodeView]],
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._topics = topics
        self._view = view
        self._nodes = nodes
        self._new_uuid = new_uuid
        self._numbers = IdBlocks(store, keys.GROUP_NUMBERS)
        self._creating: dict[str, _Creating] = {}
        self._changing: set[str] = set()

    # As every node has them.

    def __iter__(self) -> Iterator[ReplicatedTopic]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def changes(self) -> int:
        return self._topics.changes

    def get(self, name: str) -> ReplicatedTopic | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: UUID | None) -> ReplicatedTopic | None:
        return self._topics.get_by_id(topic_id)

    def partition(self, topic: ReplicatedTopic | None, index: int) -> Partition:
        return self._topics.partition(topic, index)

    # Making.

    def check_new(self, name: str, partitions: int, config: Mapping[str, str | None]) -> dict[str, str]:
        """As `broker.topics.Topics.check_new`."""
        topic_config.check_name(name)
        if self._store.get(keys.topic(name)) is not None or name in self._creating:
            raise KafkaError(ErrorCode.topic_already_exists, f"topic {name!r} already exists")
        self._check_room(partitions, partitions)
        return {key: topic_config.check(key, value) for key, value in config.items()}

    def _check_room(self, partitions: int, added: int) -> None:
        limits = self._topics.config.limits
        if not 0 < partitions <= limits.partitions_per_topic:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"{partitions} partitions are refused: a topic has 1 to {limits.partitions_per_topic}",
            )
        if self._topics.partition_count + added > limits.partitions:
            raise KafkaError(
                ErrorCode.invalid_partitions, f"this cluster has its limit of {limits.partitions} partitions"
            )

    def create(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str | None],
        done: Created,
        replication_factor: int = -1,
    ) -> None:
        """`done` when it is committed and has leaders, or with the error."""
        try:
            checked = self.check_new(name, partitions, config)
            topic_id = self._new_uuid()
            ops: list[Op] = [
                Put(
                    keys.topic(name),
                    {"id": topic_id.bytes, "partitions": partitions, "config": checked},
                    ABSENT,
                ),
                *self._range_ops(name, topic_id, 0, partitions, replication_factor),
            ]
            lsn = self._store.apply(ops).lsn
        except KafkaError as refused:
            done(refused)
            return
        except StoreFailed as failure:
            done(storage_error(f"topic {name!r}", failure))
            return
        creating = self._creating[name] = _Creating(topic_id, [done])

        def durable(error: Exception | None) -> None:
            if error is not None:
                self._created(name, storage_error(f"topic {name!r}", error))
                return
            creating.durable = True
            creating.timer = self._scheduler.call_later(LEADERS_MS, self._time_out, name, creating)
            self.look()

        self._store.when_durable(lsn, durable)

    def create_or_join(self, name: str, partitions: int, done: Created) -> None:
        """As `create`, but where another request is creating it just now, its result is this one's too."""
        creating = self._creating.get(name)
        if creating is not None:
            creating.waiting.append(done)
        else:
            self.create(name, partitions, {}, done)

    def _range_ops(self, name: str, topic_id: UUID, first: int, count: int, factor: int) -> Iterator[Op]:
        """The ranges of new partitions: one for each node that could lead one. Raises KafkaError, StoreFailed."""
        nodes = self._nodes()
        spans = split_evenly(first, count, len(nodes))
        wanted = self._view.replication_factor(factor)
        leaders = {group: self._view.of_group(group).leader for group in self._topics.ranges}
        known = {group: leader for group, leader in leaders.items() if leader != NOBODY}
        places = assign(nodes, self._topics.ranges, known, spans, wanted)
        for (begin, end), replicas in zip(spans, places, strict=True):
            group = self.new_group()
            record = RangeRecord(name, topic_id.bytes, begin, end, replicas, self._scheduler.now_ms())
            yield Put(keys.replicated_range(group), record.value(), ABSENT)

    def new_group(self) -> int:
        """A number for one more range. Raises StoreFailed."""
        return self._numbers.allocate()[0] + FIRST_GROUP

    def _time_out(self, name: str, creating: _Creating) -> None:
        creating.timed_out = True
        self.look()

    def look(self) -> None:
        """A topic may have appeared, or a leader."""
        for name, creating in list(self._creating.items()):
            topic = self._topics.get_by_id(creating.topic_id) if creating.durable else None
            if topic is None:
                if creating.timed_out:
                    # Deleted meanwhile, as far as can be known.
                    self._created(name, KafkaError(ErrorCode.unknown_topic_or_partition))
            elif creating.timed_out or all(
                self._view.of_group(group).leader != NOBODY for group, _ in topic.groups
            ):
                self._created(name, topic)

    def _created(self, name: str, result: ReplicatedTopic | KafkaError) -> None:
        creating = self._creating.pop(name)
        if creating.timer is not None:
            creating.timer.cancel()
        for done in creating.waiting:
            done(result)

    # Changing.

    def check_growth(self, topic: ReplicatedTopic, count: int) -> None:
        """Raises KafkaError: INVALID_PARTITIONS unless the topic may grow to `count` partitions."""
        have = len(topic.partitions)
        if count <= have:
            raise KafkaError(
                ErrorCode.invalid_partitions,
                f"topic {topic.name!r} has {have} partitions; {count} are not more",
            )
        self._check_room(count, count - have)

    def grow(self, topic: ReplicatedTopic, count: int, done: Done) -> None:
        """CreatePartitions: `count` partitions in all, the new ones in ranges of their own."""
        record = self._store.get(keys.topic(topic.name))
        have = record.value["partitions"] if record is not None else 0
        if record is None or record.value["id"] != topic.id.bytes:
            done(KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic.name!r} was deleted"))
            return
        if count <= have:
            done(KafkaError(ErrorCode.invalid_partitions, f"topic {topic.name!r} has {have} partitions"))
            return

        def ops() -> list[Op]:
            ranges = self._range_ops(topic.name, topic.id, have, count - have, -1)
            return [
                Put(keys.topic(topic.name), {**record.value, "partitions": count}, record.version),
                *ranges,
            ]

        self._apply(topic, ops, done)

    def stored_config(self, topic: ReplicatedTopic) -> dict[str, str]:
        record = self._store.get(keys.topic(topic.name))
        return dict(record.value["config"]) if record is not None else dict(topic.config)

    def configure(self, topic: ReplicatedTopic, config: dict[str, str], done: Done) -> None:
        """Replace a topic's settings by these checked ones."""
        record = self._store.get(keys.topic(topic.name))
        if record is None:
            done(KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic.name!r} was deleted"))
            return
        changed = {**record.value, "config": config}
        self._apply(topic, lambda: [Put(keys.topic(topic.name), changed, record.version)], done)

    def delete(self, topic: ReplicatedTopic, more_ops: Sequence[Op], done: Done) -> None:
        """Its records go; every node removes its files when it hears that."""
        ranges = [
            key
            for key, record in self._store.scan(keys.RANGES)
            if _belongs(record.value, topic.name, topic.id.bytes)
        ]
        ops: list[Op] = [
            Delete(keys.topic(topic.name)),
            Delete(keys.log_starts(topic.name)),
            *(Delete(key) for key in ranges),
            *more_ops,
        ]
        self._apply(topic, lambda: ops, done)

    def _apply(self, topic: ReplicatedTopic, ops: Callable[[], Sequence[Op]], done: Done) -> None:
        try:
            lsn = self._store.apply(ops()).lsn
        except KafkaError as refused:
            done(refused)
            return
        except StoreFailed as failure:
            done(storage_error(f"topic {topic.name!r}", failure))
            return
        self._store.when_durable(
            lsn, lambda error: done(storage_error(f"topic {topic.name!r}", error) if error else None)
        )


def _belongs(value: Any, name: str, topic_id: bytes) -> bool:
    belongs: bool = value["topic"] == name and value["topic_id"] == topic_id
    return belongs
