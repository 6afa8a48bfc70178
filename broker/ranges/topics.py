"""The topics as every node sees them: the committed records, and this node's replicas where it has any.

A topic appears when its record and the ranges of all its partitions are there, and grows and goes in the same way. A
partition of which this node has no replica is a name whose leader is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from broker.config import BrokerConfig
from broker.ranges.records import RangeRecord
from broker.topic import Rules
from storage.layout import LogConfig
from storage.partition import PartitionLog
from storage.producers import ProducerBudget, ProducerStates
from storage.range_reader import RangeReader
from storage.replica import RangeReplica
from storage.sequencing import SequencedRange
from txn import keys
from txn.metastore import MetaStore
from txn.partition import Partition
from wire.errors import ErrorCode, KafkaError


class AbsentRange(RangeReader):
    """In place of a replica that is not here, or not yet. It is asked first who leads, so nobody appends."""

    term = -1
    directory = ""

    def __init__(self, first: int, last: int) -> None:
        budget = ProducerBudget(1, 0)
        super().__init__(
            first,
            last,
            LogConfig(),
            [PartitionLog(index, 0, ProducerStates(budget)) for index in range(first, last + 1)],
        )


@dataclass(slots=True, eq=False)
class ReplicatedTopic:
    """A topic of ranges with groups of their own. `groups` by their first partitions, each with its last one."""

    name: str
    id: UUID
    config: dict[str, str]
    rules: Rules
    groups: list[tuple[int, int]]
    """(group, last partition)"""
    partitions: list[Partition]

    def group_of(self, index: int) -> int:
        return next(group for group, last in self.groups if index <= last)


class RangeTopics:
    """By name and by id. `replica_of(group)`: what this node has of it, if anything."""

    def __init__(self, config: BrokerConfig, replica_of: Callable[[int], RangeReplica | None]) -> None:
        self.config = config
        self.on_served: Callable[[Partition], None] = lambda _: None
        """A partition has a replica here now, or another one than before."""
        self.on_absent: Callable[[Partition], None] = lambda _: None
        """A partition has no replica here any more."""
        self.on_dropped: Callable[[Partition], None] = lambda _: None
        """A partition's topic is gone."""
        self.changes = 0
        """Grows whenever a topic appears, goes or gets more partitions."""
        self.ranges: dict[int, RangeRecord] = {}
        """By group, as committed."""
        self.partition_count = 0
        self._ranges_of: dict[str, set[int]] = {}
        self._replica_of = replica_of
        self._records: dict[str, dict[str, Any]] = {}
        self._by_name: dict[str, ReplicatedTopic] = {}
        self._by_id: dict[UUID, ReplicatedTopic] = {}
        self._groups: dict[Partition, int] = {}
        self._touched: set[str] = set()

    def __iter__(self) -> Iterator[ReplicatedTopic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> ReplicatedTopic | None:
        return self._by_name.get(name)

    def get_by_id(self, topic_id: UUID | None) -> ReplicatedTopic | None:
        return self._by_id.get(topic_id) if topic_id is not None else None

    def partition(self, topic: ReplicatedTopic | None, index: int) -> Partition:
        """Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION."""
        if topic is None or not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        return topic.partitions[index]

    def group_of(self, partition: Partition) -> int | None:
        """The number of its range's group; None where the topic is gone."""
        return self._groups.get(partition)

    def log_config(self, record: RangeRecord) -> LogConfig:
        """Of a range's replica."""
        topic = self._records.get(record.topic)
        config = dict(topic["config"]) if topic is not None and topic["id"] == record.topic_id else {}
        return Rules.of(config, self.config).log_config(self.config)

    def knows_all(self, store: MetaStore) -> bool:
        """Whether every topic that is on record in `store` is here as it is there."""
        records = [(key[len(keys.TOPICS) :], record.value) for key, record in store.scan(keys.TOPICS)]
        return len(records) == len(self) and all(
            (topic := self.get(name)) is not None
            and topic.id.bytes == value["id"]
            and len(topic.partitions) == value["partitions"]
            for name, value in records
        )

    # What the records say; `settle` after each round of them.

    def topic_is(self, name: str, value: dict[str, Any] | None) -> None:
        self._touched.add(name)
        if value is None:
            self._records.pop(name, None)
        else:
            self._records[name] = value

    def range_is(self, group: int, record: RangeRecord | None) -> None:
        before = self.ranges.pop(group, None)
        if before is not None:
            self._ranges_of[before.topic].discard(group)
            self._touched.add(before.topic)
        if record is not None:
            self.ranges[group] = record
            self._ranges_of.setdefault(record.topic, set()).add(group)
            self._touched.add(record.topic)

    def settle(self) -> None:
        """Make the topics what the records say."""
        touched, self._touched = self._touched, set()
        for name in touched:
            record = self._records.get(name)
            topic = self._by_name.get(name)
            if topic is not None and (record is None or topic.id.bytes != record["id"]):
                self._drop(topic)
                topic = None
            if record is not None:
                self._make(name, record, topic)
            elif not self._ranges_of.get(name):
                self._ranges_of.pop(name, None)

    def _make(self, name: str, record: dict[str, Any], topic: ReplicatedTopic | None) -> None:
        groups = sorted(
            (one.first, one.last, group)
            for group in self._ranges_of.get(name, ())
            if (one := self.ranges[group]).topic_id == record["id"]
        )
        if sum(last - first + 1 for first, last, _ in groups) != record["partitions"]:
            return  # the rest of it is about to be told
        config = dict(record["config"])
        if topic is None:
            topic_id = UUID(bytes=record["id"])
            topic = ReplicatedTopic(name, topic_id, config, Rules.of(config, self.config), [], [])
            self._by_name[name] = self._by_id[topic_id] = topic
        elif config != topic.config:
            topic.config, topic.rules = config, Rules.of(config, self.config)
            for group, _ in topic.groups:
                replica = self._replica_of(group)
                if replica is not None:
                    replica.reconfigure(topic.rules.log_config(self.config))
        for first, last, group in groups:
            if first == len(topic.partitions):
                self._grow(topic, group, first, last)

    def _grow(self, topic: ReplicatedTopic, group: int, first: int, last: int) -> None:
        replica = self._replica_of(group)
        log = replica if replica is not None else cast(SequencedRange, AbsentRange(first, last))
        added = [Partition(topic.name, topic.id, index, log) for index in range(first, last + 1)]
        topic.groups.append((group, last))
        topic.partitions += added
        self._groups |= dict.fromkeys(added, group)
        self.partition_count += len(added)
        self.changes += 1
        if replica is not None:
            for partition in added:
                self.on_served(partition)

    def _drop(self, topic: ReplicatedTopic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        self.partition_count -= len(topic.partitions)
        self.changes += 1
        for partition in topic.partitions:
            self._groups.pop(partition, None)
            self.on_dropped(partition)
            partition.wake()  # waiting fetches answer that the topic is gone

    # What this node's replicas say.

    def served_by(self, group: int) -> list[Partition]:
        """The partitions of a range, should its topic be known here."""
        record = self.ranges.get(group)
        topic = self._by_name.get(record.topic) if record is not None else None
        if record is None or topic is None or topic.id.bytes != record.topic_id:
            return []
        return topic.partitions[record.first : record.last + 1]

    def partitions_of(self, group: int) -> dict[int, Partition]:
        """The same by their numbers."""
        return {partition.index: partition for partition in self.served_by(group)}

    def opened(self, group: int, replica: RangeReplica) -> None:
        """Serve the range from this from now on."""
        for partition in self.served_by(group):
            partition.serve_from(replica)
            self.on_served(partition)
            partition.wake()

    def gone(self, group: int) -> None:
        """There is no replica of it here any more."""
        record = self.ranges.get(group)
        if record is not None:
            for partition in self.served_by(group):
                partition.serve_from(cast(SequencedRange, AbsentRange(record.first, record.last)))
                self.on_absent(partition)
                partition.wake()

    def progressed(self, group: int, partitions: Iterable[int]) -> None:
        record = self.ranges.get(group)
        topic = self._by_name.get(record.topic) if record is not None else None
        if topic is not None:
            for index in partitions:
                if index < len(topic.partitions):
                    topic.partitions[index].wake()

    def wake(self, group: int) -> None:
        """Whoever waits for its partitions looks again: another node leads."""
        for partition in self.served_by(group):
            partition.wake()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Other defaults of the broker are in force."""
        self.config = config
        for topic in self._by_name.values():
            topic.rules = Rules.of(topic.config, config)
