"""The broker's settings by Kafka's names: what they are, where each value comes from, and which may be changed while
it runs.

A value comes from, in this order: what was set for this broker, what was set for all brokers, the configuration file or
command line, the built-in default. Settings that are not dynamic show their value and cannot be changed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from broker.config import BrokerConfig
from broker.topic_config import ConfigType, text_of
from wire.errors import ErrorCode, KafkaError


class Source(enum.IntEnum):
    """Where a value comes from (DescribeConfigs)."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5


class Level(enum.Enum):
    """What a change is for: this broker, or all of them, which here are the same one. The value names its record."""

    BROKER = "broker"
    ALL_BROKERS = "all-brokers"


def broker_level(node_id: int, name: str) -> Level:
    """Which settings a broker resource of this name means to this broker; "" is all brokers.

    Raises:
        KafkaError: INVALID_REQUEST for another broker's id.
    """
    if name == "":
        return Level.ALL_BROKERS
    if name != str(node_id):
        raise KafkaError(ErrorCode.invalid_request, f"this broker is {node_id}, not {name!r}")
    return Level.BROKER


_SOURCES = {Level.BROKER: Source.BROKER, Level.ALL_BROKERS: Source.ALL_BROKERS}

_NAMES = {
    "data": "log.dirs",
    "listen": "listeners",
    "advertised_listener": "advertised.listeners",
    "auto_create_topics": "auto.create.topics.enable",
    "segment_bytes": "log.segment.bytes",
    "segment_ms": "log.roll.ms",
    "retention_ms": "log.retention.ms",
    "retention_bytes": "log.retention.bytes",
    "retention_check_interval_ms": "log.retention.check.interval.ms",
    "cleanup_policy": "log.cleanup.policy",
    "compaction_interval_ms": "log.cleaner.backoff.ms",
    "delete_retention_ms": "log.cleaner.delete.retention.ms",
    "min_cleanable_dirty_ratio": "log.cleaner.min.cleanable.ratio",
    "min_compaction_lag_ms": "log.cleaner.min.compaction.lag.ms",
    "max_compaction_lag_ms": "log.cleaner.max.compaction.lag.ms",
}
"""Kafka's names of fields, where they are not the field's with dots."""

_DYNAMIC = {
    "auto_create_topics": "Whether a topic that is asked for by name is made if it does not exist.",
    "cleanup_policy": "What happens to old data of topics that set nothing else: delete, compact, or both.",
    "delete_retention_ms": "How long the marks of deleted keys outlive a compaction, in ms; topics may set their own.",
    "group_initial_rebalance_delay_ms": "How long an empty group waits for more than its first member, in ms.",
    "group_max_session_timeout_ms": "The longest session timeout that a member of a group may ask for, in ms.",
    "group_min_session_timeout_ms": "The shortest session timeout that a member of a group may ask for, in ms.",
    "max_compaction_lag_ms": "When a record must have been looked at by compaction, in ms; topics may set their own.",
    "message_max_bytes": "The largest record batch that is taken, in bytes; topics may set their own.",
    "min_cleanable_dirty_ratio": "Which part of a log must be uncompacted for a compaction to begin; topics may set "
    "their own.",
    "min_compaction_lag_ms": "How long a record is left alone by compaction, in ms; topics may set their own.",
    "num_partitions": "Partitions of topics that are created without a number.",
    "offsets_retention_check_interval_ms": "How often offsets of groups that are gone are looked for, in ms.",
    "offsets_retention_minutes": "How long a group's offsets are kept after its last member left, in minutes.",
    "producer_id_expiration_ms": "How long a partition remembers a producer that writes nothing, in ms.",
    "retention_bytes": "How much data is kept, in bytes, times the number of a topic's partitions; -1: all. Topics may "
    "set their own.",
    "retention_ms": "How long data is kept, in ms; -1: for ever. Topics may set their own.",
    "segment_bytes": "The size at which a segment is sealed, in bytes; topics may set their own.",
    "segment_ms": "The age at which a segment is sealed though it is not full, in ms; topics may set their own.",
    "transaction_max_timeout_ms": "The longest transaction timeout that a producer may ask for, in ms.",
    "transaction_remove_expired_transaction_cleanup_interval_ms": "How often transactional ids that nobody uses are "
    "looked for, in ms.",
    "transactional_id_expiration_ms": "How long a transactional id is remembered that nobody uses and that has no "
    "transaction open, in ms.",
}
"""The fields that may be changed while the broker runs, with their documentation."""

_TYPES = {
    bool: ConfigType.BOOLEAN,
    int: ConfigType.INT,
    float: ConfigType.DOUBLE,
    str: ConfigType.STRING,
    list: ConfigType.LIST,
}

_LONG = frozenset(
    {
        "compaction_interval_ms",
        "delete_retention_ms",
        "max_compaction_lag_ms",
        "min_compaction_lag_ms",
        "offsets_retention_check_interval_ms",
        "retention_bytes",
        "retention_check_interval_ms",
        "retention_ms",
        "segment_ms",
        "snapshot_log_bytes",
    }
)
"""The fields of whole numbers that are longs, as Apache Kafka has those that it has."""

FIELDS: Mapping[str, str] = {
    _NAMES.get(field, field.replace("_", ".")): field
    for field in BrokerConfig.__struct_fields__
    if field != "limits"
}
"""The fields of `BrokerConfig` by the names of their settings. The limits are not shown."""


def find(name: str) -> str:
    """The field of `BrokerConfig` behind a setting.

    Raises:
        KafkaError: INVALID_CONFIG.
    """
    field = FIELDS.get(name)
    if field is None:
        raise KafkaError(ErrorCode.invalid_config, f"unknown broker setting {name!r}")
    return field


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting as it stands. `chain`: (source, value) of every place that has one, the one in force first."""

    name: str
    type: ConfigType
    read_only: bool
    chain: tuple[tuple[Source, str], ...]
    documentation: str

    @property
    def value(self) -> str:
        return self.chain[0][1]

    @property
    def source(self) -> Source:
        return self.chain[0][0]


class BrokerSettings:
    """The settings of one broker. `current` is what is in force."""

    def __init__(self, static: BrokerConfig) -> None:
        self._static = static
        self._set: dict[Level, dict[str, str]] = {Level.BROKER: {}, Level.ALL_BROKERS: {}}
        self._stored = dict(self._set)
        """What will be set when all changes under way are durable: what the next one must agree with."""
        self.current = static

    def check(self, level: Level, values: Mapping[str, str | None]) -> dict[str, str]:
        """The values as they may be stored: all that is set on this level from now on.

        Raises:
            KafkaError: INVALID_CONFIG for unknown names and bad values, INVALID_REQUEST for what is not dynamic.
        """
        checked: dict[str, str] = {}
        for name, value in values.items():
            field = find(name)
            if field not in _DYNAMIC:
                raise KafkaError(ErrorCode.invalid_request, f"{name} cannot be changed while the broker runs")
            if value is None:
                raise KafkaError(ErrorCode.invalid_config, f"{name} needs a value")
            checked[name] = value.strip()
        self._combined({**self._stored, level: checked})
        return checked

    def stored(self, level: Level, values: Mapping[str, str]) -> None:
        """These checked values are on their way to the disk."""
        self._stored[level] = dict(values)

    def put(self, level: Level, values: Mapping[str, str]) -> None:
        """Put checked values in force."""
        self._set[level] = dict(values)
        self.current = self._combined(self._set)

    def clear(self) -> None:
        """Nothing is set."""
        for level in Level:
            self._set[level], self._stored[level] = {}, {}
        self.current = self._static

    def restore(self, level: Level, values: Mapping[str, str]) -> list[str]:
        """Take over what was stored by an earlier start. The settings that this program does not take any more."""
        kept: Mapping[str, str] = values
        refused = []
        try:
            self.check(level, values)
        except KafkaError:
            kept = {}
            for name, value in values.items():
                try:
                    kept = self.check(level, {**kept, name: value})
                except KafkaError as error:
                    refused.append(str(error))
        self.stored(level, kept)
        self.put(level, kept)
        return refused

    def entry(self, name: str) -> Entry:
        """One setting by Kafka's name. Raises KeyError."""
        field = FIELDS[name]
        default, static = getattr(BrokerConfig(), field), getattr(self._static, field)
        chain = [(_SOURCES[level], values[name]) for level, values in self._set.items() if name in values]
        if static != default:
            chain.append((Source.STATIC, text_of(static)))
        chain.append((Source.DEFAULT, text_of(default)))
        kind = ConfigType.LONG if field in _LONG else _TYPES.get(type(static), ConfigType.STRING)
        return Entry(name, kind, field not in _DYNAMIC, tuple(chain), _DYNAMIC.get(field, ""))

    def list_default(self, name: str) -> str:
        """What a list has where nothing is set.

        Raises:
            KafkaError: INVALID_CONFIG where it is no list.
        """
        static = getattr(self._static, find(name))
        if not isinstance(static, list):
            raise KafkaError(ErrorCode.invalid_config, f"{name} is not a list of values")
        return text_of(static)

    def entries(self) -> Iterator[Entry]:
        """Every setting."""
        for name in FIELDS:
            yield self.entry(name)

    def set_for_all(self) -> Iterator[Entry]:
        """What is set for all brokers, with that place alone."""
        for name, value in self._set[Level.ALL_BROKERS].items():
            entry = self.entry(name)
            yield Entry(
                name, entry.type, entry.read_only, ((Source.ALL_BROKERS, value),), entry.documentation
            )

    def _combined(self, changes: Mapping[Level, Mapping[str, str]]) -> BrokerConfig:
        values: dict[str, Any] = {}
        for level in (Level.ALL_BROKERS, Level.BROKER):
            for name, text in changes[level].items():
                values[FIELDS[name]] = _parsed(name, text)
        try:
            config = msgspec.convert({**msgspec.structs.asdict(self._static), **values}, BrokerConfig)
        except msgspec.ValidationError as error:
            raise KafkaError(ErrorCode.invalid_config, str(error)) from error
        if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
            raise KafkaError(
                ErrorCode.invalid_config,
                "group.min.session.timeout.ms must not be above group.max.session.timeout.ms",
            )
        return config


def _parsed(name: str, text: str) -> object:
    """The text as the field's type."""
    default = getattr(BrokerConfig(), FIELDS[name])
    if isinstance(default, list):
        return [part.strip() for part in text.split(",") if part]
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise KafkaError(
                ErrorCode.invalid_config, f"{name} = {text!r} is refused: a number is needed"
            ) from None
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise KafkaError(ErrorCode.invalid_config, f"{name} = {text!r} is refused: true or false")
        return text.lower() == "true"
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) < 1 << 63):
        raise KafkaError(ErrorCode.invalid_config, f"{name} = {text!r} is refused: a whole number is needed")
    return int(text)
