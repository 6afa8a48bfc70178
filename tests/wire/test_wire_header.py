"""Request headers: both versions, every API, and hostile ones."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32
from wire_strategies import served_versions

from wire.apis import APIS, ApiKey
from wire.header import ProtocolError, parse_request_header

CLIENT_IDS = st.none() | st.text(max_size=20)


def kio_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    cls = HeaderV2 if APIS[api_key].is_flexible(version) else HeaderV1
    header = cls(
        request_api_key=i16(api_key),
        request_api_version=i16(version),
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    buffer = io.BytesIO()
    entity_writer(cls)(buffer, header)
    return buffer.getvalue()


@given(st.sampled_from(served_versions()), st.integers(-(2**31), 2**31 - 1), CLIENT_IDS)
def test_headers_are_read_as_the_schema_writes_them(
    api: tuple[int, int], correlation_id: int, client_id: str | None
) -> None:
    data = kio_header(*api, correlation_id, client_id)
    header = parse_request_header(memoryview(data + b"body"))
    assert header[:4] == (*api, correlation_id, client_id)
    assert header.flexible == APIS[api[0]].is_flexible(api[1])
    assert header.size_bytes == len(data)


def test_tagged_fields_of_a_header_are_skipped() -> None:
    data = kio_header(ApiKey.METADATA, 12, 1, "c")[:-1] + b"\x02\x05\x03abc\x81\x01\x00"
    assert parse_request_header(memoryview(data + b"body")).size_bytes == len(data)


def test_a_client_id_of_other_bytes_is_no_error() -> None:
    data = struct.pack(">hhih", ApiKey.HEARTBEAT, 0, 1, 3) + b"a\xffb"
    assert parse_request_header(memoryview(data)).client_id == "a\ufffdb"


@pytest.mark.parametrize("version", [5, 6, 100, 32767])
def test_api_versions_passes_in_any_higher_version(version: int) -> None:
    data = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 9, -1) + b"\0whatever"
    header = parse_request_header(memoryview(data))
    assert (header.api_version, header.correlation_id, header.flexible) == (version, 9, True)


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (ApiKey.API_VERSIONS, -1),
        (ApiKey.PRODUCE, 2),
        (ApiKey.PRODUCE, 14),
        (ApiKey.FETCH, 3),
        (ApiKey.FETCH, 19),
        (ApiKey.METADATA, -1),
        (4, 0),
        (-1, 0),
        (9999, 0),
    ],
)
def test_what_is_not_served_is_refused(api_key: int, version: int) -> None:
    with pytest.raises(ProtocolError):
        parse_request_header(memoryview(struct.pack(">hhih", api_key, version, 9, -1) + b"\0"))


def test_truncated_headers_are_refused() -> None:
    data = kio_header(ApiKey.METADATA, 12, 1, "client")
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            parse_request_header(memoryview(data[:size]))


@pytest.mark.parametrize(
    "tail",
    [
        struct.pack(">h", -2),
        struct.pack(">h", 32767) + b"short",
        struct.pack(">h", -1) + b"\xff\xff\xff\xff\x07",
        struct.pack(">h", -1) + b"\xff\xff\xff\xff\xff\x01",
        struct.pack(">h", -1) + b"\x01\x00\xff\xff\xff\xff\x07",
        struct.pack(">h", -1) + b"\x41" + b"\0\0" * 65,
    ],
)
def test_hostile_headers_are_refused(tail: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_request_header(memoryview(struct.pack(">hhi", ApiKey.METADATA, 12, 1) + tail))


@given(st.sampled_from([key for key, _ in served_versions()]), st.integers(0, 20), st.binary(max_size=40))
def test_random_bytes_give_a_header_or_a_protocol_error(api_key: int, version: int, tail: bytes) -> None:
    frame = memoryview(struct.pack(">hh", api_key, version) + tail)
    try:
        header = parse_request_header(frame)
    except ProtocolError:
        return
    assert header.size_bytes <= len(frame)
