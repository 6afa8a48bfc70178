"""What AlterConfigs and IncrementalAlterConfigs have in common: the resources they change, checked as a whole.

A resource is changed as a whole or not at all. Source of the checks and their codes: Kafka's ConfigAdminManager and
ConfigurationControlManager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker import topic_config
from broker.call import Call
from broker.topic import Topic
from broker.topic_config import ConfigType
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4

Done = Callable[[KafkaError | None], None]


class Resource(Protocol):
    """Something that has settings."""

    def stored(self) -> dict[str, str]:
        """What is set on it, changes under way included."""
        ...

    def list_default(self, name: str) -> str:
        """What a list has where nothing is set. Raises KafkaError: INVALID_CONFIG where it is no list."""
        ...

    def check(self, values: Mapping[str, str | None]) -> dict[str, str]:
        """All that may be set on it. Raises KafkaError."""
        ...

    def replace(self, values: dict[str, str], done: Done) -> None:
        """Set these checked values and nothing else; `done` when they are durable and in force."""
        ...


class _TopicResource:
    def __init__(self, node: Node, topic: Topic) -> None:
        self._node = node
        self._topic = topic

    def stored(self) -> dict[str, str]:
        return self._node.changes.stored_config(self._topic)

    def list_default(self, name: str) -> str:
        setting = topic_config.find(name)
        if setting.type is not ConfigType.LIST:
            raise KafkaError(ErrorCode.invalid_config, f"{name} is not a list of values")
        return setting.default_of(self._node.config)

    def check(self, values: Mapping[str, str | None]) -> dict[str, str]:
        return {name: topic_config.check(name, value) for name, value in values.items()}

    def replace(self, values: dict[str, str], done: Done) -> None:
        self._node.changes.configure(self._topic, values, done)


class _BrokerResource:
    def __init__(self, node: Node, name: str) -> None:
        self._node = node
        self._level, self._record = node.settings_of(name)

    def stored(self) -> dict[str, str]:
        return self._node.stored_settings(self._record)

    def list_default(self, name: str) -> str:
        return self._node.settings.list_default(name)

    def check(self, values: Mapping[str, str | None]) -> dict[str, str]:
        return self._node.settings.check(self._level, values)

    def replace(self, values: dict[str, str], done: Done) -> None:
        self._node.configure(self._level, self._record, values, done)


def find_resource(node: Node, kind: int, name: str) -> Resource:
    """
    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST.
    """
    if kind == TOPIC_RESOURCE:
        if not name:
            raise KafkaError(ErrorCode.invalid_request, "there are no settings for all topics")
        return _TopicResource(node, find_topic(node, name))
    if kind == BROKER_RESOURCE:
        return _BrokerResource(node, name)
    raise KafkaError(ErrorCode.invalid_request, f"resources of type {kind} have no settings here")


def find_topic(node: Node, name: str) -> Topic:
    """
    Raises:
        KafkaError: INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION.
    """
    topic_config.check_name(name)
    topic = node.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
    return topic


def alter(
    node: Node, call: Call, request: Any, changed: Callable[[Resource, Any], dict[str, str | None]]
) -> None:
    """Alter every resource of a request. `changed` says what is to be set on a resource afterwards."""
    times = Counter((wanted.resource_type, wanted.resource_name) for wanted in request.resources)
    results: list[Any] = []
    waiting = 1

    def arrived() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            call.answer(responses=tuple(results))

    def report(wanted: Any, error: KafkaError | None) -> None:
        results.append(
            call.build(
                "AlterConfigsResourceResponse",
                error_code=error.code if error else ErrorCode.none,
                error_message=error.message if error else None,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
            )
        )
        arrived()

    for wanted in request.resources:
        waiting += 1
        try:
            if times[wanted.resource_type, wanted.resource_name] > 1:
                raise KafkaError(ErrorCode.invalid_request, "each resource may be named once")
            _check_names(wanted)
            resource = find_resource(node, wanted.resource_type, wanted.resource_name)
            values = resource.check(changed(resource, wanted))
        except KafkaError as refused:
            report(wanted, refused)
            continue
        if request.validate_only:
            report(wanted, None)
        else:
            resource.replace(values, partial(report, wanted))
    arrived()


def _check_names(wanted: Any) -> None:
    names = [config.name for config in wanted.configs]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.invalid_request, "each setting may be named once")
