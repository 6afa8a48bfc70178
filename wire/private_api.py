"""sealog's own APIs: private API keys whose messages are tagged msgpack maps.

Other clients never see them: they skip API keys that they do not know. Requests are decoded into the types of
`wire.group_transactions`, `wire.layouts` and `wire.cluster`, and checked; whatever does not fit is a MalformedRequest.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from wire import cluster, group_transactions, layouts
from wire.apis import ApiKey
from wire.guard import MalformedRequest

Request = group_transactions.Request | layouts.Request | cluster.Request
Response = group_transactions.Response | layouts.Response | cluster.Response

_REQUESTS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    ApiKey.SEALOG_GROUP_TRANSACTION: msgspec.msgpack.Decoder(group_transactions.Request),
    ApiKey.SEALOG_LAYOUT: msgspec.msgpack.Decoder(layouts.Request),
    ApiKey.SEALOG_CLUSTER: msgspec.msgpack.Decoder(cluster.Request),
}
_RESPONSES: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    ApiKey.SEALOG_GROUP_TRANSACTION: msgspec.msgpack.Decoder(group_transactions.Response),
    ApiKey.SEALOG_LAYOUT: msgspec.msgpack.Decoder(layouts.Response),
    ApiKey.SEALOG_CLUSTER: msgspec.msgpack.Decoder(cluster.Response),
}
_ENCODER: Final = msgspec.msgpack.Encoder()
_REQUEST_HEADER: Final = struct.Struct(">ihhih")
_RESPONSE_HEADER: Final = struct.Struct(">ii")


def decode_request(api_key: int, body: bytes | memoryview) -> Any:
    """
    Raises:
        MalformedRequest: it is not one of that API's requests; says what does not fit.
    """
    try:
        return _REQUESTS[api_key].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(str(error)) from None


def encode_response(correlation_id: int, response: Response) -> bytes:
    """A whole response frame."""
    body = _ENCODER.encode(response)
    return _RESPONSE_HEADER.pack(4 + len(body), correlation_id) + body


def encode_request(api_key: int, correlation_id: int, client_id: str, request: Request) -> bytes:
    """A whole request frame, for clients."""
    name, body = client_id.encode(), _ENCODER.encode(request)
    size = _REQUEST_HEADER.size - 4 + len(name) + len(body)
    return _REQUEST_HEADER.pack(size, api_key, 0, correlation_id, len(name)) + name + body


def decode_response(api_key: int, frame: bytes | memoryview) -> tuple[int, Any]:
    """(correlation id, response) of a frame without its length prefix, for clients."""
    (correlation_id,) = struct.unpack_from(">i", frame)
    return correlation_id, _RESPONSES[api_key].decode(memoryview(frame)[4:])
