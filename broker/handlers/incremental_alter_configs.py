"""IncrementalAlterConfigs (key 44; KIP-339): change some of what is set on a topic or the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.config_resources import Resource, alter
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


def handle(node: Node, call: Call, request: Any) -> None:
    alter(node, call, request, _changed)


def _changed(resource: Resource, wanted: Any) -> dict[str, str | None]:
    values: dict[str, str | None] = dict(resource.stored())
    for config in wanted.configs:
        name, value, operation = config.name, config.value, config.config_operation
        if operation not in (_SET, _DELETE, _APPEND, _SUBTRACT):
            raise KafkaError(ErrorCode.invalid_request, f"unknown operation {operation}")
        if operation == _DELETE:
            values.pop(name, None)  # a name that nobody knows is not set, which is what was asked for
            continue
        if value is None:
            raise KafkaError(ErrorCode.invalid_request, f"{name} needs a value")
        if operation == _SET:
            values[name] = value
            continue
        default = resource.list_default(name)
        parts = _parts(values.get(name, default))
        named = _parts(value)
        if operation == _APPEND:
            parts += [part for part in named if part not in parts]
        else:
            parts = [part for part in parts if part not in named]
        values[name] = ",".join(parts)
    return values


def _parts(value: str | None) -> list[str]:
    return [part.strip() for part in (value or "").split(",") if part.strip()]
