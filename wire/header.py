"""The header of a request.

Guarantee: parsing looks at the header's bytes only, allocates nothing by a claimed length, and fails with
ProtocolError on anything but a header of an API and version that are served.

Source: Kafka's RequestHeader, versions 1 and 2; the client id is a plain string in both (KIP-511).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from wire.apis import APIS, ApiKey
from wire.framing import LargeFrame
from wire.packing import VarintTooLong, read_unsigned_varint

_FIXED: Final = struct.Struct(">hhih")
_MAX_HEADER_TAGS: Final = 64
_API: Final = struct.Struct(">hh")
MAX_OTHER_REQUEST_BYTES: Final = 16 << 20
"""Of requests that carry no records: what decoding one may cost others is bounded by that."""


class ProtocolError(Exception):
    """The peer does not speak the protocol, or a version nobody serves. Close this connection, no other."""


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    flexible: bool
    """Whether it was a version 2 header."""
    size_bytes: int


def parse_request_header(frame: memoryview) -> RequestHeader:
    """Read the header at the start of a frame.

    ApiVersions passes in any version, since it must be answered in any; every other API only in those served.
    Raises ProtocolError.
    """
    try:
        api_key, api_version, correlation_id, client_id_size = _FIXED.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a request of {len(frame)} bytes") from None
    spec = APIS.get(api_key)
    if spec is None:
        raise ProtocolError(f"unknown API key {api_key}")
    if not spec.serves(api_version) and (api_key != ApiKey.API_VERSIONS or api_version < 0):
        raise ProtocolError(f"{spec.name} version {api_version} is not served")
    position = _FIXED.size
    client_id = None
    if client_id_size >= 0:
        stop = position + client_id_size
        if stop > len(frame):
            raise ProtocolError("the client id is cut off")
        client_id = str(frame[position:stop], "utf-8", "replace")
        position = stop
    elif client_id_size != -1:
        raise ProtocolError(f"a client id of {client_id_size} bytes")
    flexible = spec.is_flexible(api_version)
    if flexible:
        try:
            if frame[position]:
                position = _skip_tagged_fields(frame, position)
            else:
                position += 1
        except (IndexError, VarintTooLong):
            raise ProtocolError("the header's tagged fields are malformed") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, flexible, position)


def check_large_request(frame: LargeFrame) -> None:
    """Refuse a large request by its beginning, before all the rest has come. Raises ProtocolError."""
    if len(frame) < _API.size:
        return
    api_key, api_version = _API.unpack_from(frame.view)
    if api_key != ApiKey.PRODUCE and len(frame.view) > MAX_OTHER_REQUEST_BYTES:
        raise ProtocolError(
            f"{len(frame.view)} bytes of a request of API {api_key}, which carries no records"
        )
    if api_key not in APIS or not APIS[api_key].serves(api_version):
        raise ProtocolError(
            f"{len(frame.view)} bytes of version {api_version} of API {api_key}, which is not served"
        )


def _skip_tagged_fields(frame: memoryview, position: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    if count > _MAX_HEADER_TAGS:
        raise ProtocolError(f"{count} tagged fields in a header")
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
    if position > len(frame):
        raise IndexError
    return position
