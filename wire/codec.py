"""Messages to and from bytes, for every API and version served.

Guarantee: decoding refuses (MalformedRequest) anything that is not exactly one message of the version named,
and never allocates by a number it read; unknown tagged fields are ignored. Encoding gives whole frames:
length prefix, header and message. Schemas are loaded when first needed.

Produce and Fetch responses have encoders of their own (`wire.produce_codec`, `wire.fetch_codec`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, Final

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from wire import large_produce, private_api
from wire.apis import APIS, ApiKey
from wire.building import build, build_request, timestamp_ms, to_ms
from wire.errors import ErrorCode
from wire.framing import LARGE_FRAME_BYTES
from wire.guard import Body, Guard, MalformedRequest, guard_for
from wire.guard_produce import produce_guard
from wire.packing import pack_string
from wire.schema import Kind, UnknownMessage, message_class, message_module
from wire.writer import writer_for

__all__ = (
    "MalformedRequest",
    "UnknownMessage",
    "build",
    "build_request",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "respond",
    "response_class",
    "timestamp_ms",
    "to_ms",
    "unsupported_api_versions",
)

_RESPONSE_HEADER: Final = struct.Struct(">ii")
_FLEXIBLE_RESPONSE_HEADER: Final = struct.Struct(">iib")
_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">ihhi")
_UNSUPPORTED_API_VERSIONS: Final = struct.Struct(">iihihhh")

# What kio raises for values that the guard lets pass: nulls, UTF-8, booleans, durations out of range.
_DECODE_ERRORS: Final = (SerialError, ValueError, OverflowError)

_Read = Callable[[Body, int], tuple[Any, int]]


def response_class(api_key: int, version: int) -> ModuleType:
    """The kio module with the dataclasses of one response version. Raises UnknownMessage."""
    return message_module(api_key, version, "response")


def decode_request(api_key: int, version: int, body: Body) -> Any:
    """A request's body as kio's dataclass, or as a type of one of sealog's own. `body` must be read-only.

    The records of a large Produce are views of `body`. Raises MalformedRequest.
    """
    if len(body) > LARGE_FRAME_BYTES and api_key == ApiKey.PRODUCE:
        try:
            return large_produce.decode(version, body)
        except _DECODE_ERRORS as error:
            raise MalformedRequest(f"{type(error).__name__}: {error}") from None
    if APIS[api_key].is_private:
        return private_api.decode_request(api_key, body)
    return _decode(_decoder(api_key, version, "request"), body)


def decode_response(api_key: int, version: int, frame: Body) -> tuple[int, Any]:
    """For tests and tools: (correlation id, response) of a frame without its length prefix."""
    if APIS[api_key].is_private:
        return private_api.decode_response(api_key, frame)
    size = 4
    if APIS[api_key].response_header_is_flexible(version):
        if len(frame) < 5 or frame[4]:
            raise MalformedRequest("a response header with tagged fields")
        size = 5
    if len(frame) < size:
        raise MalformedRequest("a response header cut off")
    (correlation_id,) = _LENGTH.unpack_from(frame)
    return correlation_id, _decode(_decoder(api_key, version, "response"), memoryview(frame)[size:])


@cache
def _decoder(api_key: int, version: int, kind: Kind) -> tuple[Guard, _Read]:
    entity = message_class(api_key, version, kind)
    guard = guard_for(entity)
    if api_key == ApiKey.PRODUCE and kind == "request":
        guard = produce_guard(version, guard)
    return guard, entity_reader(entity)


def _decode(decoder: tuple[Guard, _Read], body: Body) -> Any:
    guard, read = decoder
    safe = guard(body)
    try:
        message, size = read(safe, 0)
    except _DECODE_ERRORS as error:
        raise MalformedRequest(f"{type(error).__name__}: {error}") from None
    if size != len(safe):
        raise MalformedRequest(f"{size} bytes read of {len(safe)}")
    return message


def encode_response(api_key: int, version: int, correlation_id: int, entity: Any) -> bytes:
    """A whole response frame. Values that do not fit their field raise struct.error, TypeError or ValueError."""
    if APIS[api_key].response_header_is_flexible(version):
        header = _FLEXIBLE_RESPONSE_HEADER.pack(0, correlation_id, 0)
    else:
        header = _RESPONSE_HEADER.pack(0, correlation_id)
    return _frame(header, entity)


def respond(api_key: int, version: int, correlation_id: int, /, **fields: Any) -> bytes:
    """Build and encode a response at once; nested messages may be dicts (see `build`)."""
    return encode_response(api_key, version, correlation_id, build(api_key, version, None, **fields))


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, entity: Any
) -> bytes:
    """For tests and tools: a whole request frame."""
    header = _REQUEST_HEADER.pack(0, api_key, version, correlation_id) + pack_string(client_id, False)
    return _frame(header + b"\0" if APIS[api_key].is_flexible(version) else header, entity)


def _frame(header: bytes, entity: Any) -> bytes:
    out = bytearray(header)
    writer_for(entity.__class__)(out, entity)
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return bytes(out)


def unsupported_api_versions(correlation_id: int) -> bytes:
    """The answer to an ApiVersions request of a version that is not served, as a whole frame.

    In the form of version 0 with UNSUPPORTED_VERSION, and listing ApiVersions alone: given more keys, some
    clients go on without asking again (KIP-511).
    """
    spec = APIS[ApiKey.API_VERSIONS]
    return _UNSUPPORTED_API_VERSIONS.pack(
        _UNSUPPORTED_API_VERSIONS.size - _LENGTH.size,
        correlation_id,
        ErrorCode.unsupported_version,
        1,
        spec.key,
        spec.min_version,
        spec.max_version,
    )
