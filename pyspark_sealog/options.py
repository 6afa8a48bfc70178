"""The options of the source, checked before anything is asked of the broker."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark_sealog.cluster import EARLIEST, LATEST, TopicPartition
from pyspark_sealog.errors import OptionError
from pyspark_sealog.settings import (
    ISOLATION_LEVELS,
    ClientSettings,
    boolean,
    check_names,
    choice,
    client_settings,
    whole,
)

Format = Literal["binary", "string", "json"]
_FORMATS: Final = {"binary": 0, "string": 1, "json": 2}

_SOURCE: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "columns",
    "keyFormat",
    "keySchema",
    "valueFormat",
    "valueSchema",
    "archive",
)
# What Spark itself puts beside a source's or sink's options.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
_STREAMING_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True, slots=True)
class Where:
    """One side of what is read. At most one of the two is set: an offset for all (EARLIEST, LATEST) or by partition,
    or a time in milliseconds for all or by partition."""

    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Which columns there are, and of which types."""

    include_headers: bool
    columns: tuple[str, ...]
    key_format: Format
    key_schema: str
    value_format: Format
    value_schema: str


def column_options(ours: Mapping[str, str]) -> ColumnOptions:
    """Of options by lower-case name. Raises OptionError."""
    key_format, key_schema = _format(ours, "key")
    value_format, value_schema = _format(ours, "value")
    return ColumnOptions(
        boolean(ours, "includeHeaders", False),
        tuple(name.strip() for name in ours["columns"].split(",")) if "columns" in ours else (),
        key_format,
        key_schema,
        value_format,
        value_schema,
    )


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a source reads and how."""

    client: ClientSettings
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    starting: Where
    ending: Where
    late_start_is_latest: bool
    """Where no record is as late as the starting time: begin at the end, instead of failing."""
    fail_on_data_loss: bool
    min_partitions: int
    max_records_per_partition: int
    max_offsets: int
    min_offsets: int
    max_delay_s: float
    columns: ColumnOptions
    archive: str | None
    """The folder of a table that holds what came before (`pyspark_sealog.archive`)."""


def common_options(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """All options by lower-case name, but for Spark's own and those of the client. Raises OptionError."""
    ours = {
        name.lower(): value
        for name, value in options.items()
        if name.lower() not in _SPARKS_OWN and not name.lower().startswith("kafka.")
    }
    check_names(ours, known)
    return ours


def source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """`streaming` is None while it is not known which of the two it will be. Raises OptionError."""
    client = client_settings(options)
    ours = common_options(options, _SOURCE)
    for name in _STREAMING_ONLY if streaming is False else ():
        if name.lower() in ours:
            raise OptionError(f"option {name} is for streaming queries alone")
    for name in _BATCH_ONLY if streaming else ():
        if name.lower() in ours:
            raise OptionError(f"option {name} is for batch queries alone")
    topics, pattern, assigned = _what(ours)
    starting = _where(ours, "starting", LATEST if streaming else EARLIEST)
    if streaming is False and starting.offset == LATEST:
        raise OptionError("option startingOffsets: a batch query cannot start at the latest offsets")
    ending = _where(ours, "ending", LATEST)
    if ending.offset == EARLIEST or EARLIEST in (ending.offsets or {}).values():
        raise OptionError("option endingOffsets cannot be the earliest (-2)")
    min_offsets = whole(ours, "minOffsetsPerTrigger", 0, least=1)
    max_offsets = whole(ours, "maxOffsetsPerTrigger", 0, least=1)
    if max_offsets and min_offsets > max_offsets:
        raise OptionError("option minOffsetsPerTrigger is above maxOffsetsPerTrigger")
    if "archive" in ours and client.isolation_level != ISOLATION_LEVELS["read_committed"]:
        raise OptionError(
            "option archive: the table holds what was committed, so only read_committed can be read"
        )
    return SourceOptions(
        client,
        topics,
        pattern,
        assigned,
        starting,
        ending,
        bool(choice(ours, "startingOffsetsByTimestampStrategy", {"error": 0, "latest": 1}, 0)),
        boolean(ours, "failOnDataLoss", True),
        whole(ours, "minPartitions", 0, least=1),
        whole(ours, "maxRecordsPerPartition", 0, least=1),
        max_offsets,
        min_offsets,
        _duration_s(ours.get("maxtriggerdelay", "15m")),
        column_options(ours),
        ours.get("archive"),
    )


def _what(ours: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in ours]
    if len(given) != 1:
        raise OptionError(
            "exactly one of subscribe, subscribePattern and assign must say what to read"
            + (f", not {' and '.join(given)}" if given else "")
        )
    text = ours[given[0].lower()]
    if given == ["subscribe"]:
        topics = tuple(topic.strip() for topic in text.split(",") if topic.strip())
        if not topics:
            raise OptionError("option subscribe names no topic")
        return topics, None, ()
    if given == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option subscribePattern: {text!r}: {error}") from None
        return (), text, ()
    assigned = []
    for topic, partitions in _json_object("assign", text).items():
        if not isinstance(partitions, list) or not all(_is_whole(one) and one >= 0 for one in partitions):
            raise OptionError('option assign is not like {"topic": [0, 1]}')
        assigned += [TopicPartition(topic, one) for one in partitions]
    if not assigned:
        raise OptionError("option assign names no partition")
    return (), None, tuple(sorted(set(assigned)))


def _where(ours: Mapping[str, str], side: str, default: int) -> Where:
    """As the Kafka connector: one time for all goes before times by partition, and those before offsets."""
    for_all = f"{side}Timestamp"
    if for_all.lower() in ours:
        return Where(time_ms=whole(ours, for_all, 0))
    by_time = f"{side}OffsetsByTimestamp"
    if by_time.lower() in ours:
        times = _by_partition(by_time, ours[by_time.lower()])
        return Where(times_ms=_at_least(by_time, times, 0))
    name = f"{side}Offsets"
    text = ours.get(name.lower())
    if text is None:
        return Where(offset=default)
    if text.strip().lower() in ("earliest", "latest"):
        return Where(offset=EARLIEST if text.strip().lower() == "earliest" else LATEST)
    if not text.strip().startswith("{"):
        raise OptionError(
            f'option {name}: {text!r} is not earliest, latest, or like {{"topic": {{"0": 23}}}}'
        )
    return Where(offsets=_at_least(name, _by_partition(name, text), EARLIEST))


def _at_least(name: str, values: Mapping[TopicPartition, int], least: int) -> Mapping[TopicPartition, int]:
    for part, value in values.items():
        if value < least:
            raise OptionError(f"option {name}: {value} for {part}")
    return values


def _by_partition(name: str, text: str) -> dict[TopicPartition, int]:
    values: dict[TopicPartition, int] = {}
    for topic, partitions in _json_object(name, text).items():
        if not isinstance(partitions, dict):
            raise OptionError(f'option {name} is not like {{"topic": {{"0": 23}}}}')
        for partition, value in partitions.items():
            if not partition.isdigit() or not _is_whole(value):
                raise OptionError(f'option {name} is not like {{"topic": {{"0": 23}}}}')
            values[TopicPartition(topic, int(partition))] = value
    return values


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f"option {name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise OptionError(f"option {name} is not a JSON object")
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _format(ours: Mapping[str, str], side: str) -> tuple[Format, str]:
    name = f"{side}Format"
    chosen = ours.get(name.lower(), "binary").lower()
    if chosen not in _FORMATS:
        raise OptionError(f"option {name}: {chosen!r} is none of {', '.join(_FORMATS)}")
    schema = ours.get(f"{side}schema", "")
    if (chosen == "json") != bool(schema):
        raise OptionError(f"options {name}=json and {side}Schema go together")
    return chosen, schema  # type: ignore[return-value]


_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _duration_s(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|h)\s*", text)
    if match is None:
        raise OptionError(f"option maxTriggerDelay: {text!r} is not like 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_S[match[2]]
