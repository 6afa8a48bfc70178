"""Messages of every API and version: round trips, truncation, headers, and the special answer of ApiVersions."""

from __future__ import annotations

import struct
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_strategies import entities, served_versions

import wire
from wire.apis import APIS, ApiKey
from wire.codec import (
    MalformedRequest,
    UnknownMessage,
    build,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    respond,
    response_class,
    unsupported_api_versions,
)
from wire.connection import Connection
from wire.errors import ErrorCode
from wire.schema import message_class

ALL_VERSIONS = settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])


@given(st.data())
@ALL_VERSIONS
def test_requests_round_trip_through_a_connection(data: st.DataObject) -> None:
    api_key, version = data.draw(st.sampled_from(served_versions()))
    message = data.draw(entities(message_class(api_key, version, "request")))
    (request,) = Connection().receive(encode_request(api_key, version, 42, "client", message))
    assert (request.api_key, request.api_version, request.correlation_id) == (api_key, version, 42)
    assert decode_request(api_key, version, request.body) == message


@given(st.data())
@ALL_VERSIONS
def test_responses_round_trip(data: st.DataObject) -> None:
    api_key, version = data.draw(st.sampled_from(served_versions()))
    message = data.draw(entities(message_class(api_key, version, "response")))
    frame = encode_response(api_key, version, -5, message)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, -5)
    assert decode_response(api_key, version, frame[4:]) == (-5, message)


@given(st.data())
@ALL_VERSIONS
def test_messages_cut_off_are_refused_and_what_follows_one_is_ignored(data: st.DataObject) -> None:
    api_key, version = data.draw(st.sampled_from(served_versions()))
    message = data.draw(entities(message_class(api_key, version, "request")))
    (request,) = Connection().receive(encode_request(api_key, version, 1, None, message))
    body = bytes(request.body)
    assert decode_request(api_key, version, body + b"\0\1\2") == message, (
        "as Kafka does: some clients send more"
    )
    for size in data.draw(st.lists(st.integers(0, max(len(body) - 1, 0)), max_size=5)) if body else ():
        with pytest.raises(MalformedRequest):
            decode_request(api_key, version, body[:size])


@pytest.mark.parametrize(("api_key", "version"), served_versions())
def test_every_response_can_be_built_from_nothing(api_key: int, version: int) -> None:
    frame = respond(api_key, version, 7)
    correlation_id, message = decode_response(api_key, version, frame[4:])
    assert correlation_id == 7
    assert message == build(api_key, version, None)


def test_values_that_the_guard_lets_pass_are_refused_by_the_decoder() -> None:
    for body in (b"\0\0\0\x02\xff", b"\0\x05\0\0\0", b"\x02\0\0\0\0\0"):
        with pytest.raises(MalformedRequest):
            decode_request(ApiKey.METADATA, 9, body)
    heartbeat = b"\0\x01\xff" + bytes(4) + b"\0\0"
    with pytest.raises(MalformedRequest, match="Unicode"):
        decode_request(ApiKey.HEARTBEAT, 0, heartbeat)


def test_a_retention_time_no_duration_can_hold_is_refused() -> None:
    body = b"\0\0" + bytes(4) + b"\0\0" + struct.pack(">q", 2**63 - 1) + bytes(4)
    with pytest.raises(MalformedRequest):
        decode_request(ApiKey.OFFSET_COMMIT, 2, body)


def test_versions_not_served_are_unknown() -> None:
    with pytest.raises(UnknownMessage):
        decode_request(ApiKey.PRODUCE, 2, b"")
    with pytest.raises(UnknownMessage):
        response_class(ApiKey.METADATA, 99)


def test_the_response_module_has_the_nested_classes() -> None:
    assert response_class(ApiKey.METADATA, 12).MetadataResponseTopic.__version__ == 12


def test_response_headers_are_flexible_except_for_api_versions() -> None:
    assert respond(ApiKey.HEARTBEAT, 4, 7)[4:9] == struct.pack(">ib", 7, 0)
    assert respond(ApiKey.HEARTBEAT, 3, 7)[4:] == struct.pack(">iih", 7, 0, 0)
    # ApiVersions 3: correlation id, error code, an empty compact array, throttle time, no tagged fields.
    assert respond(ApiKey.API_VERSIONS, 3, 7)[4:] == struct.pack(">ihbib", 7, 0, 1, 0, 0)


def test_damaged_response_headers_are_refused() -> None:
    for frame in (b"", b"\0\0\0", b"\0\0\0\x01", b"\0\0\0\x01\x01\x05\0"):
        with pytest.raises(MalformedRequest):
            decode_response(ApiKey.HEARTBEAT, 4, frame)
    with pytest.raises(MalformedRequest):
        decode_response(ApiKey.HEARTBEAT, 0, b"\0\0\0")


def test_the_answer_to_an_unknown_version_of_api_versions() -> None:
    frame = unsupported_api_versions(77)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 77)
    correlation_id, message = decode_response(ApiKey.API_VERSIONS, 0, frame[4:])
    assert correlation_id == 77
    assert message.error_code is ErrorCode.unsupported_version
    (only,) = message.api_keys
    spec = APIS[ApiKey.API_VERSIONS]
    assert (only.api_key, only.min_version, only.max_version) == (18, spec.min_version, spec.max_version)


def test_values_out_of_range_do_not_go_out() -> None:
    with pytest.raises(struct.error):
        respond(ApiKey.END_TXN, 5, 1, producer_epoch=1 << 15)


def test_schemas_are_loaded_when_they_are_needed() -> None:
    """The broker is up in a second; 200 schema modules would take longer."""
    code = (
        "import sys, wire.codec, wire.connection, wire.produce_codec, wire.fetch_codec\n"
        "print(sum('.response' in name or '.request' in name for name in sys.modules"
        " if name.startswith('kio.schema.') and '_header' not in name))\n"
        "wire.codec.respond(12, 4, 1)\n"
        "print('kio.schema.heartbeat.v4.response' in sys.modules)\n"
        "print('kio.schema.heartbeat.v3.response' in sys.modules)\n"
    )
    root = Path(wire.__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert ran.stdout.split() == ["0", "True", "False"]


def test_durations_decode_to_milliseconds() -> None:
    body = b"\xff\xff" + struct.pack(">hii", 1, 1500, 0)
    assert decode_request(ApiKey.PRODUCE, 3, body).timeout == timedelta(milliseconds=1500)
