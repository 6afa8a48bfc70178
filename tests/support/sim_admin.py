"""An administrator over a `SimClient`: each request with its fields, each answer as short as a test wants it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from support.sim_node import SimClient, SimNode, batch
from support.sim_producer import produce_fields

from wire.apis import ApiKey
from wire.errors import ErrorCode

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def grow_fields(counts: Mapping[str, int], *, validate_only: bool = False, assignments: Any = None) -> Any:
    return {
        "topics": tuple(
            {"name": name, "count": count, "assignments": assignments} for name, count in counts.items()
        ),
        "timeout": 30_000,
        "validate_only": validate_only,
    }


def grow(client: SimClient, name: str, count: int, version: int = 3, **options: Any) -> ErrorCode:
    answer = client.ask(ApiKey.CREATE_PARTITIONS, version, **grow_fields({name: count}, **options))
    return answer.results[0].error_code


def delete_records(
    client: SimClient, topic: str, offsets: Mapping[int, int], version: int = 2
) -> dict[int, tuple[ErrorCode, int]]:
    """(error, low watermark) per partition."""
    answer = client.ask(
        ApiKey.DELETE_RECORDS,
        version,
        topics=(
            {
                "name": topic,
                "partitions": tuple({"partition_index": p, "offset": o} for p, o in offsets.items()),
            },
        ),
        timeout=30_000,
    )
    (one,) = answer.topics
    return {p.partition_index: (p.error_code, p.low_watermark) for p in one.partitions}


def delete_topic(client: SimClient, name: str) -> ErrorCode:
    answer = client.ask(ApiKey.DELETE_TOPICS, 6, topics=({"name": name, "topic_id": None},), timeout=30_000)
    return answer.responses[0].error_code


def change(
    client: SimClient,
    kind: int,
    name: str,
    changes: Iterable[tuple[str, int, str | None]],
    *,
    validate_only: bool = False,
    version: int = 1,
) -> tuple[ErrorCode, str | None]:
    """IncrementalAlterConfigs of one resource: (setting, operation, value)."""
    answer = client.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        version,
        resources=(
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": tuple({"name": n, "config_operation": o, "value": v} for n, o, v in changes),
            },
        ),
        validate_only=validate_only,
    )
    return answer.responses[0].error_code, answer.responses[0].error_message


def replace(
    client: SimClient,
    kind: int,
    name: str,
    values: Mapping[str, str | None],
    *,
    validate_only: bool = False,
    version: int = 2,
) -> ErrorCode:
    """AlterConfigs of one resource."""
    answer = client.ask(
        ApiKey.ALTER_CONFIGS,
        version,
        resources=(
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": tuple({"name": n, "value": v} for n, v in values.items()),
            },
        ),
        validate_only=validate_only,
    )
    return answer.responses[0].error_code


def describe(client: SimClient, kind: int, name: str, *settings: str, version: int = 4) -> dict[str, Any]:
    """DescribeConfigs of one resource: its settings by name, as answered."""
    answer = client.ask(
        ApiKey.DESCRIBE_CONFIGS,
        version,
        resources=({"resource_type": kind, "resource_name": name, "configuration_keys": settings or None},),
        include_synonyms=True,
        include_documentation=True,
    )
    (result,) = answer.results
    assert result.error_code is ErrorCode.none, result
    return {config.name: config for config in result.configs}


def send(
    client: SimClient, topic: str, records: Mapping[int, list[bytes]], *, version: int = 9, **options: Any
) -> dict[int, Any]:
    """Plain records; what Produce answers per partition."""
    data = {partition: batch(*values, **options) for partition, values in records.items()}
    answer = client.ask(ApiKey.PRODUCE, version, **produce_fields(topic, data))
    return {one.index: one for one in answer.responses[0].partition_responses}


def run_turns(world: SimNode, turns: int) -> None:
    """So many turns of the loop, time moving on where nothing is ready."""
    for _ in range(turns):
        if not world.scheduler.run_turn():
            due = world.scheduler._next_due()
            if due is None:
                return
            world.scheduler._now_ms = max(world.scheduler._now_ms, due)
