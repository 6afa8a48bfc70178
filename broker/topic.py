"""A topic that is there: its settings, its ranges and its partitions.

A topic's partitions are served by one or more ranges, each with a log of its own; together they cover every partition
once. `Rules` are its settings in the form that each produce request needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from broker import topic_config
from broker.config import BrokerConfig
from storage.layout import LogConfig
from storage.range_log import RangeLog
from storage.segment import Segment
from txn.partition import Partition

NO_LIMIT_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Rules:
    """What is in force when a batch arrives. Sizes in bytes, times in milliseconds."""

    max_message_bytes: int
    segment_bytes: int
    keyed: bool
    """cleanup.policy has compact: every record needs a key."""
    append_time: bool
    """message.timestamp.type = LogAppendTime: the broker's clock sets the timestamps."""
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int

    @classmethod
    def of(cls, config: Mapping[str, str], broker: BrokerConfig) -> Rules:
        """The rules of a topic with these checked settings, under the broker's defaults."""

        def setting(name: str) -> str:
            return topic_config.effective(config, name, broker)

        return cls(
            int(setting("max.message.bytes")),
            int(setting("segment.bytes")),
            "compact" in setting("cleanup.policy").split(","),
            setting("message.timestamp.type") == "LogAppendTime",
            int(setting("message.timestamp.before.max.ms")),
            int(setting("message.timestamp.after.max.ms")),
        )

    def log_config(self, broker: BrokerConfig) -> LogConfig:
        """The same for a range's log."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            max_batch_bytes=self.max_message_bytes,
            flush_linger_ms=broker.flush_linger_ms,
            producer_ttl_ms=broker.producer_id_expiration_ms,
            max_producers=broker.limits.producers_per_topic,
        )


@dataclass(slots=True, eq=False)
class Topic:
    """A topic. `config` holds the settings that differ from the defaults."""

    name: str
    id: UUID
    config: dict[str, str]
    rules: Rules
    ranges: list[RangeLog]
    """By their first partitions."""
    partitions: list[Partition]
    retired: list[RangeLog] = field(default_factory=list)
    """Ranges that were split or merged, until their last bytes are durable."""

    @classmethod
    def opened(
        cls, name: str, topic_id: UUID, config: dict[str, str], rules: Rules, ranges: list[RangeLog]
    ) -> Topic:
        """The topic of these ranges, which cover the partitions from 0 on."""
        topic = cls(name, topic_id, config, rules, [], [])
        for log in ranges:
            topic.add_range(log)
        return topic

    def add_range(self, log: RangeLog) -> None:
        """Take in a range of the partitions that follow those there are."""
        assert log.first == len(self.partitions), f"{self.name}: partition {log.first} does not follow"
        self.ranges.append(log)
        self.partitions += [
            Partition(self.name, self.id, index, log) for index in range(log.first, log.last + 1)
        ]

    @property
    def logs(self) -> list[RangeLog]:
        """Those of all ranges, the retired ones first: what the others say of durability builds on them."""
        return [*self.retired, *self.ranges]

    def segments(self) -> dict[int, Segment]:
        """All of its segments by id; one that several ranges continue stands there once."""
        return {segment.segment_id: segment for log in self.ranges for segment in log.segments}

    def take_over(self, children: list[RangeLog]) -> None:
        """These ranges take the place of those whose partitions they have."""
        first, last = children[0].first, children[-1].last
        self.retired += [log for log in self.ranges if first <= log.first <= last]
        self.ranges = sorted(
            [log for log in self.ranges if not first <= log.first <= last] + children,
            key=lambda log: log.first,
        )
        for log in children:
            for partition in self.partitions[log.first : log.last + 1]:
                partition.log = log

    def reconfigure(self, config: dict[str, str], broker: BrokerConfig) -> None:
        """Put other settings in force, or the same under other defaults of the broker."""
        self.config = config
        self.rules = Rules.of(config, broker)
        for log in self.ranges:
            log.reconfigure(
                replace(
                    log.config,
                    segment_bytes=self.rules.segment_bytes,
                    max_batch_bytes=self.rules.max_message_bytes,
                    producer_ttl_ms=broker.producer_id_expiration_ms,
                )
            )
