"""The compiled writer against kio's own: the same bytes for any message of any version."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.describe_topic_partitions.v0.request import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from wire_strategies import entities, kio_bytes, kio_response, served_versions

from wire.apis import ApiKey
from wire.building import build, build_request
from wire.codec import encode_response, respond
from wire.guard import guard_for
from wire.schema import message_class
from wire.writer import writer_for


def written(message: Any) -> bytes:
    out = bytearray()
    writer_for(type(message))(out, message)
    return bytes(out)


@given(st.data())
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
def test_byte_for_byte(data: st.DataObject) -> None:
    api_key, version = data.draw(st.sampled_from(served_versions()))
    kind = data.draw(st.sampled_from(["request", "response"]))
    message = data.draw(entities(message_class(api_key, version, kind)))
    assert written(message) == kio_bytes(message)


@pytest.mark.parametrize(("api_key", "version"), served_versions())
def test_byte_for_byte_from_nothing(api_key: int, version: int) -> None:
    assert respond(api_key, version, 3) == kio_response(api_key, version, 3)
    message = build_request(api_key, version, None)
    assert written(message) == kio_bytes(message)


@pytest.mark.parametrize("cursor", [None, Cursor(topic_name="t", partition_index=7)])
def test_structs_that_may_be_null(cursor: Cursor | None) -> None:
    """None of the messages served has one yet (KIP-893)."""
    message = DescribeTopicPartitionsRequest(topics=(TopicRequest(name="t"),), cursor=cursor)
    assert written(message) == kio_bytes(message)
    body = memoryview(written(message))
    assert guard_for(DescribeTopicPartitionsRequest)(body) is body


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 3_000_000])
def test_lengths_at_the_edges_of_varints(size: int) -> None:
    message = build(ApiKey.SYNC_GROUP, 5, None, assignment=b"x" * size)
    assert written(message) == kio_bytes(message)


@pytest.mark.parametrize(
    ("api_key", "version", "fields", "error"),
    [
        (ApiKey.END_TXN, 5, {"producer_epoch": 1 << 15}, struct.error),
        (ApiKey.METADATA, 9, {"brokers": None}, TypeError),
        (ApiKey.JOIN_GROUP, 5, {"member_id": None}, TypeError),
        (ApiKey.SYNC_GROUP, 5, {"assignment": None}, TypeError),
        (ApiKey.JOIN_GROUP, 5, {"member_id": "m" * 40_000}, ValueError),
        (ApiKey.END_TXN, 1, {"throttle_time": timedelta(days=30)}, struct.error),
    ],
)
def test_what_does_not_fit_does_not_go_out(
    api_key: int, version: int, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        encode_response(api_key, version, 1, build(api_key, version, None, **fields))
