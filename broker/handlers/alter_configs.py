"""AlterConfigs (key 33; KIP-133): replace all that is set on a topic or the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.call import Call
from broker.handlers.config_resources import Resource, alter
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    alter(node, call, request, _replaced)


def _replaced(_: Resource, wanted: Any) -> dict[str, str | None]:
    """What is not named goes back to its default."""
    for config in wanted.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.invalid_request, f"{config.name} needs a value")
    return {config.name: config.value for config in wanted.configs}
