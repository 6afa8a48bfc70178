"""Topic settings: names, types, defaults and what values are allowed (Kafka's topic configs).

One table. A name or a value that is not allowed here is refused, and the documentation of each setting says what
the broker does with it: a setting that is kept for applications that send it, and has no effect, says so.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.config import BrokerConfig
from wire.errors import ErrorCode, KafkaError


class ConfigType(enum.IntEnum):
    """The config types of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `check` raises ValueError with the reason a value is refused."""

    name: str
    type: ConfigType
    default: str
    check: Callable[[str], None]
    documentation: str
    server_name: str | None = None
    """Kafka's name for the broker's setting that is this one's default."""
    field: str | None = None
    """The field of `BrokerConfig` that is its default here; `default` where there is none."""

    def default_of(self, config: BrokerConfig) -> str:
        """What a topic has that sets nothing."""
        return self.default if self.field is None else text_of(getattr(config, self.field))


def text_of(value: object) -> str:
    """A setting's value as Kafka spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


_WHOLE = re.compile(r"-?[0-9]{1,19}")


def _number(low: int, high: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        if not _WHOLE.fullmatch(value) or not low <= int(value) <= high:
            raise ValueError(f"it must be a whole number between {low} and {high}")

    return check


def _fraction(value: str) -> None:
    if not 0 <= float(value) <= 1:
        raise ValueError("it must be between 0 and 1")


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")

    return check


def _list_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        for part in value.split(","):
            if value and part.strip() not in allowed:
                raise ValueError(f"each part must be one of {', '.join(allowed)}")

    return check


_I32 = (1 << 31) - 1
_I64 = (1 << 63) - 1

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST

_NO_EFFECT = "Kept and shown; it has no effect here: "

_bool = _one_of("true", "false")

# fmt: off
_SETTINGS = (
    Setting("cleanup.policy", _LIST, "delete", _list_of("delete", "compact"),
            "What happens to old data: delete (by age or size), compact (the last value of each key stays), or both.",
            "log.cleanup.policy", "cleanup_policy"),
    Setting("compression.gzip.level", _INT, "-1", _number(-1, 9),
            _NO_EFFECT + "batches are kept as the producer compressed them.", "compression.gzip.level"),
    Setting("compression.lz4.level", _INT, "9", _number(1, 17),
            _NO_EFFECT + "batches are kept as the producer compressed them.", "compression.lz4.level"),
    Setting("compression.type", _STRING, "producer", _one_of("producer"),
            "Batches are kept as the producer compressed them.", "compression.type"),
    Setting("compression.zstd.level", _INT, "3", _number(-131_072, 22),
            _NO_EFFECT + "batches are kept as the producer compressed them.", "compression.zstd.level"),
    Setting("delete.retention.ms", _LONG, "86400000", _number(0, _I64),
            "How long the marks of deleted keys outlive a compaction, in ms.",
            "log.cleaner.delete.retention.ms", "delete_retention_ms"),
    Setting("file.delete.delay.ms", _LONG, "0", _number(0, _I64),
            _NO_EFFECT + "files of deleted topics are removed at once.", "log.segment.delete.delay.ms"),
    Setting("flush.messages", _LONG, str(_I64), _number(1, _I64),
            _NO_EFFECT + "what is written is flushed before it is acknowledged to acks=all, and within the broker's "
            "flush.linger.ms otherwise.", "log.flush.interval.messages"),
    Setting("flush.ms", _LONG, str(_I64), _number(0, _I64),
            _NO_EFFECT + "what is written is flushed before it is acknowledged to acks=all, and within the broker's "
            "flush.linger.ms otherwise.", "log.flush.interval.ms"),
    Setting("index.interval.bytes", _INT, "4096", _number(0, _I32),
            _NO_EFFECT + "the index has an entry per run of batches.", "log.index.interval.bytes"),
    Setting("max.compaction.lag.ms", _LONG, str(_I64), _number(1, _I64),
            "When a record must have been looked at by compaction, in ms.",
            "log.cleaner.max.compaction.lag.ms", "max_compaction_lag_ms"),
    Setting("max.message.bytes", _INT, "1048588", _number(0, 100 << 20),
            "The largest record batch that is taken, in bytes.", "message.max.bytes", "message_max_bytes"),
    Setting("message.timestamp.after.max.ms", _LONG, "3600000", _number(0, _I64),
            "With CreateTime: how far ahead of the broker's clock the newest timestamp of a batch may be, in ms; "
            "INVALID_TIMESTAMP beyond.", "log.message.timestamp.after.max.ms"),
    Setting("message.timestamp.before.max.ms", _LONG, str(_I64), _number(0, _I64),
            "With CreateTime: how far behind the broker's clock a record's timestamp may be, in ms; "
            "INVALID_TIMESTAMP beyond. Once it is set, batches are decoded to be checked.",
            "log.message.timestamp.before.max.ms"),
    Setting("message.timestamp.type", _STRING, "CreateTime", _one_of("CreateTime", "LogAppendTime"),
            "Whose clock sets a record's timestamp: the producer's, or the broker's when it appends.",
            "log.message.timestamp.type"),
    Setting("min.cleanable.dirty.ratio", _DOUBLE, "0.5", _fraction,
            "Which part of a log must be uncompacted for a compaction to begin.",
            "log.cleaner.min.cleanable.ratio", "min_cleanable_dirty_ratio"),
    Setting("min.compaction.lag.ms", _LONG, "0", _number(0, _I64),
            "How long a record is left alone by compaction, in ms.",
            "log.cleaner.min.compaction.lag.ms", "min_compaction_lag_ms"),
    Setting("min.insync.replicas", _INT, "1", _number(1, 1),
            "Replicas that must have a write before acks=all is answered.", "min.insync.replicas"),
    Setting("preallocate", _BOOLEAN, "true", _bool,
            _NO_EFFECT + "files grow in preallocated steps always.", "log.preallocate"),
    Setting("remote.storage.enable", _BOOLEAN, "false", _one_of("false"), "There is no tiered storage."),
    Setting("retention.bytes", _LONG, "-1", _number(-1, _I64),
            "How much data is kept, in bytes, times the number of partitions: sealed segments beyond it go, the oldest "
            "first; -1: all.", "log.retention.bytes", "retention_bytes"),
    Setting("retention.ms", _LONG, "-1", _number(-1, _I64),
            "How long data is kept, in ms; -1: for ever.", "log.retention.ms", "retention_ms"),
    Setting("segment.bytes", _INT, str(1 << 30), _number(1 << 16, _I32),
            "The size at which a segment is sealed and the next one begins, in bytes.",
            "log.segment.bytes", "segment_bytes"),
    Setting("segment.index.bytes", _INT, "10485760", _number(4, _I32),
            _NO_EFFECT + "an index lies in its segment's footer.", "log.index.size.max.bytes"),
    Setting("segment.jitter.ms", _LONG, "0", _number(0, _I64),
            _NO_EFFECT + "segments are looked at one after another.", "log.roll.jitter.ms"),
    Setting("segment.ms", _LONG, "604800000", _number(1, _I64),
            "The age at which a segment is sealed though it is not full, in ms.", "log.roll.ms", "segment_ms"),
    Setting("unclean.leader.election.enable", _BOOLEAN, "false", _bool,
            _NO_EFFECT + "there is one replica.", "unclean.leader.election.enable"),
)
# fmt: on

SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _SETTINGS}


def find(name: str) -> Setting:
    """
    Raises:
        KafkaError: INVALID_CONFIG.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        raise KafkaError(ErrorCode.invalid_config, f"unknown topic setting {name!r}")
    return setting


def check(name: str, value: str | None) -> str:
    """The value, if the setting exists and takes it.

    Raises:
        KafkaError: INVALID_CONFIG with the reason.
    """
    setting = find(name)
    if value is None:
        raise KafkaError(ErrorCode.invalid_config, f"{name} needs a value")
    value = value.strip()
    try:
        setting.check(value)
    except ValueError as reason:
        raise KafkaError(ErrorCode.invalid_config, f"{name} = {value!r} is refused: {reason}") from reason
    return value


def effective(config: Mapping[str, str], name: str, broker: BrokerConfig) -> str:
    """What a topic with these settings has, its broker's defaults included."""
    value = config.get(name)
    return SETTINGS[name].default_of(broker) if value is None else value


_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_name(name: str) -> None:
    """
    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION where no topic can have this name.
    """
    if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"topic name {name!r} is refused: 1 to 249 of letters, digits, '.', '_' and '-', not '.' or '..'",
        )
