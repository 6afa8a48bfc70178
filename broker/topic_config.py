"""Topic settings: names, types, defaults and what values are allowed (Kafka's topic configs).

One table; a name that is not in it is refused, so that nobody believes in a setting that does nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    """One topic setting. `check` raises ValueError with the reason a value is refused."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    check: Callable[[str], None]


def _number(low: int, high: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        if not low <= int(value) <= high:
            raise ValueError(f"it must be between {low} and {high}")

    return check


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")

    return check


def _list_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        for part in value.split(","):
            if part.strip() not in allowed:
                raise ValueError(f"each part must be one of {', '.join(allowed)}")

    return check


_I32 = (1 << 31) - 1
_I64 = (1 << 63) - 1

_SETTINGS = (
    Setting("cleanup.policy", ConfigType.LIST, "delete", "What happens to old data.", _list_of("delete")),
    Setting(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Batches are kept as the producer compressed them.",
        _one_of("producer"),
    ),
    Setting(
        "max.message.bytes",
        ConfigType.INT,
        "1048588",
        "The largest record batch that is taken, in bytes.",
        _number(0, 100 << 20),
    ),
    Setting(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whose clock sets a record's timestamp.",
        _one_of("CreateTime"),
    ),
    Setting(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        "Replicas that must have a write before acks=all is answered.",
        _number(1, 1),
    ),
    Setting(
        "segment.bytes",
        ConfigType.INT,
        str(1 << 30),
        "The size at which a segment is sealed and the next one begins, in bytes.",
        _number(1 << 16, _I32),
    ),
    Setting(
        "retention.ms", ConfigType.LONG, "-1", "How long data is kept, in ms; -1: for ever.", _number(-1, -1)
    ),
    Setting(
        "retention.bytes", ConfigType.LONG, "-1", "How much data is kept, in bytes; -1: all.", _number(-1, -1)
    ),
)

SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _SETTINGS}


def check(name: str, value: str | None) -> str:
    """The value, if the setting exists and takes it.

    Raises:
        KafkaError: INVALID_CONFIG with the reason.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        raise KafkaError(ErrorCode.invalid_config, f"unknown topic setting {name!r}")
    if value is None:
        raise KafkaError(ErrorCode.invalid_config, f"{name} needs a value")
    try:
        setting.check(value)
    except ValueError as reason:
        raise KafkaError(ErrorCode.invalid_config, f"{name} = {value!r} is refused: {reason}") from reason
    return value
