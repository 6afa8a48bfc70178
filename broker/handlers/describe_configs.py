"""DescribeConfigs (key 32): the settings of topics and of this broker, with where each value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from broker import topic_config
from broker.call import Call
from broker.config import BrokerConfig
from broker.topic_config import ConfigType
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node

_TOPIC, _BROKER = 2, 4
_SOURCE_TOPIC, _SOURCE_STATIC, _SOURCE_DEFAULT = 1, 4, 5

_BROKER_TYPES = {bool: ConfigType.BOOLEAN, int: ConfigType.LONG, str: ConfigType.STRING}


def handle(node: Node, call: Call, request: Any) -> None:
    call.answer(results=tuple(_resource(node, call, request, resource) for resource in request.resources))


def _resource(node: Node, call: Call, request: Any, resource: Any) -> Any:
    documented = getattr(request, "include_documentation", False)
    try:
        if resource.resource_type == _TOPIC:
            configs = list(_topic_configs(node, call, resource.resource_name, documented=documented))
        elif resource.resource_type == _BROKER:
            configs = list(_broker_configs(node, call, resource.resource_name))
        else:
            raise KafkaError(
                ErrorCode.invalid_request, f"resource type {resource.resource_type} is not served"
            )
    except KafkaError as refused:
        return call.build(
            "DescribeConfigsResult",
            error_code=refused.code,
            error_message=refused.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=(),
        )
    names = resource.configuration_keys
    return call.build(
        "DescribeConfigsResult",
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(config for config in configs if names is None or config.name in names),
    )


def _topic_configs(node: Node, call: Call, name: str, *, documented: bool) -> Iterator[Any]:
    topic = node.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
    for setting in topic_config.SETTINGS.values():
        yield _config(
            call,
            setting.name,
            topic.setting(setting.name),
            setting.type,
            _SOURCE_TOPIC if setting.name in topic.config else _SOURCE_DEFAULT,
            setting.documentation if documented else None,
        )


def _broker_configs(node: Node, call: Call, name: str) -> Iterator[Any]:
    if name not in ("", str(node.config.node_id)):
        raise KafkaError(ErrorCode.invalid_request, f"this broker is {node.config.node_id}, not {name!r}")
    defaults = BrokerConfig()
    for key in BrokerConfig.__struct_fields__:
        value = getattr(node.config, key)
        kind = _BROKER_TYPES.get(type(value))
        if kind is None:
            continue  # a table of its own, such as the limits
        yield _config(
            call,
            key.replace("_", "."),
            str(value).lower() if isinstance(value, bool) else str(value),
            kind,
            _SOURCE_DEFAULT if value == getattr(defaults, key) else _SOURCE_STATIC,
            None,
            read_only=True,
        )


def _config(
    call: Call,
    name: str,
    value: str,
    kind: ConfigType,
    source: int,
    text: str | None,
    *,
    read_only: bool = False,
) -> Any:
    return call.build(
        "DescribeConfigsResourceResult",
        name=name,
        value=value,
        read_only=read_only,
        config_source=source,
        is_sensitive=False,
        synonyms=(),
        config_type=int(kind),
        documentation=text,
    )
