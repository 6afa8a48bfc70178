"""DescribeConfigs (key 32): the settings of topics and of this broker, with where each value comes from (KIP-226)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from broker import topic_config
from broker.broker_settings import Entry, Level, Source, broker_level
from broker.call import Call
from broker.handlers.config_resources import BROKER_RESOURCE, TOPIC_RESOURCE, find_topic
from broker.topic_config import Setting
from wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.node import Node


def handle(node: Node, call: Call, request: Any) -> None:
    call.answer(results=tuple(_resource(node, call, request, resource) for resource in request.resources))


def _resource(node: Node, call: Call, request: Any, resource: Any) -> Any:
    try:
        entries = list(_entries(node, resource.resource_type, resource.resource_name))
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
        configs=tuple(
            _config(call, request, entry, chain)
            for entry, chain in entries
            if not names or entry.name in names  # none named: all of them, as in Kafka
        ),
    )


_DEFAULT_IS_NO_SYNONYM = frozenset({"retention.ms"})
"""Settings whose default is not that of the broker's setting in Apache Kafka, so that no synonym names it there."""

_Chain = tuple[tuple[Source, str, str], ...]
"""(source, name there, value) of every place that has a value, the one in force first."""


def _entries(node: Node, kind: int, name: str) -> Iterator[tuple[Entry, _Chain]]:
    if kind == TOPIC_RESOURCE:
        config = find_topic(node, name).config
        for setting in topic_config.SETTINGS.values():
            yield topic_entry(node, setting, config)
    elif kind == BROKER_RESOURCE:
        level = broker_level(node.config.node_id, name)
        entries = node.settings.entries() if level is Level.BROKER else node.settings.set_for_all()
        for entry in entries:
            yield entry, tuple((source, entry.name, value) for source, value in entry.chain)
    else:
        raise KafkaError(ErrorCode.invalid_request, f"resources of type {kind} have no settings here")


def topic_entry(node: Node, setting: Setting, config: Mapping[str, str]) -> tuple[Entry, _Chain]:
    """A setting of a topic that sets `config`, with the broker's settings that are its default."""
    chain: list[tuple[Source, str, str]] = []
    if setting.name in config:
        chain.append((Source.TOPIC, setting.name, config[setting.name]))
    server_name = setting.server_name or setting.name
    if setting.field is None:
        chain.append((Source.DEFAULT, server_name, setting.default))
    else:
        chain += [(source, server_name, value) for source, value in node.settings.entry(server_name).chain]
    values = tuple((source, value) for source, _, value in chain)
    if setting.name in _DEFAULT_IS_NO_SYNONYM:
        chain = [each for each in chain if each[0] is not Source.DEFAULT]
    return Entry(setting.name, setting.type, False, values, setting.documentation), tuple(chain)


def _config(call: Call, request: Any, entry: Entry, chain: _Chain) -> Any:
    return call.build(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=False,
        synonyms=tuple(
            call.build("DescribeConfigsSynonym", name=name, value=value, source=int(source))
            for source, name, value in chain
        )
        if request.include_synonyms
        else (),
        config_type=int(entry.type),
        documentation=entry.documentation if getattr(request, "include_documentation", False) else None,
    )
