"""The API table against the message schemas."""

from __future__ import annotations

import pytest
from kio.static.constants import EntityType
from wire_strategies import served_versions

from wire.apis import APIS, ApiKey
from wire.schema import UnknownMessage, message_class


@pytest.mark.parametrize(("api_key", "version"), served_versions())
def test_every_version_served_has_its_messages(api_key: int, version: int) -> None:
    spec = APIS[api_key]
    for kind in ("request", "response"):
        cls = message_class(api_key, version, kind)
        assert cls.__api_key__ == api_key
        assert cls.__version__ == version
        assert cls.__flexible__ == spec.is_flexible(version)
        assert cls.__type__ is EntityType[kind]
    request = message_class(api_key, version, "request")
    assert request.__header_schema__.__version__ == (2 if spec.is_flexible(version) else 1)
    response = message_class(api_key, version, "response")
    assert response.__header_schema__.__version__ == int(spec.response_header_is_flexible(version))


def test_the_table_is_in_order_and_complete() -> None:
    assert list(APIS) == sorted(APIS)
    assert set(APIS) == set(ApiKey)
    for spec in APIS.values():
        assert spec.min_version <= spec.min_served <= spec.max_version
        assert spec.serves(spec.min_served)
        assert spec.serves(spec.max_version)
        assert not spec.serves(spec.min_served - 1)
        assert not spec.serves(spec.max_version + 1)


def test_produce_is_advertised_lower_than_served() -> None:
    assert APIS[ApiKey.PRODUCE][2:4] == (0, 13)
    assert APIS[ApiKey.PRODUCE].min_served == 3


@pytest.mark.parametrize(("api_key", "version"), [(ApiKey.PRODUCE, 2), (ApiKey.FETCH, 19), (4242, 0)])
def test_other_messages_are_unknown(api_key: int, version: int) -> None:
    with pytest.raises(UnknownMessage):
        message_class(api_key, version, "request")


def test_a_nested_message_by_name() -> None:
    assert message_class(ApiKey.METADATA, 12, "response", "MetadataResponseTopic").__name__ == (
        "MetadataResponseTopic"
    )
    with pytest.raises(UnknownMessage):
        message_class(ApiKey.METADATA, 12, "response", "Nonsense")
    with pytest.raises(UnknownMessage):
        message_class(ApiKey.METADATA, 12, "response", "ErrorCode")
