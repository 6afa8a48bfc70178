"""sealog's own API: group transactions (design T10). One private API key; its messages are tagged msgpack maps.

Other clients never see it: they skip API keys that they do not know. Requests are decoded into the types below, checked
as they are; whatever does not fit is a MalformedRequest.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from wire.apis import ApiKey
from wire.errors import ErrorCode
from wire.guard import MalformedRequest

API_KEY: Final = ApiKey.SEALOG_GROUP_TRANSACTION

Name = Annotated[str, Meta(min_length=1, max_length=249)]
Batch = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Milliseconds = Annotated[int, Meta(ge=1, lt=1 << 53)]


class Member(Struct, frozen=True, array_like=True):
    """A producer's identity as it writes: what names a member."""

    transactional_id: str
    producer_id: int
    epoch: int


class Offset(Struct, frozen=True, array_like=True):
    """One consumer offset that is committed with the group."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class _Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    sink: Name
    batch: Batch = 0
    attempt: Name = "-"


class Enlist(_Request, frozen=True, kw_only=True, tag="enlist"):
    """Make a member's transaction part of an attempt. A higher generation supersedes a lower one."""

    member: Member
    timeout_ms: Milliseconds
    generation: Batch = 0


class Commit(_Request, frozen=True, kw_only=True, tag="commit"):
    """Commit exactly these members, with these offsets, and discard every other."""

    members: tuple[Member, ...]
    offsets: tuple[Offset, ...] = ()


class Abort(_Request, frozen=True, kw_only=True, tag="abort"):
    """Discard an attempt."""


class Extend(_Request, frozen=True, kw_only=True, tag="extend"):
    """More time for an undecided attempt, from now on."""

    timeout_ms: Milliseconds


class Describe(_Request, frozen=True, kw_only=True, tag="describe"):
    """What is known of a sink: its last batch, and the batches that are not decided."""


Request = Enlist | Commit | Abort | Extend | Describe


class Undecided(Struct, frozen=True, kw_only=True):
    """A batch that is not decided. `voted` of `members` have voted; `deadline_ms` is wall-clock time."""

    batch: int
    attempt: str
    members: int
    voted: int
    deadline_ms: int


class Response(Struct, frozen=True, kw_only=True):
    """`batch`, `attempt` and `members` are the recorded outcome's where `repeated`: decided before this call."""

    error: int = 0
    message: str | None = None
    batch: int = -1
    attempt: str = ""
    members: int = 0
    repeated: bool = False
    undecided: tuple[Undecided, ...] = ()

    @property
    def error_code(self) -> ErrorCode:
        return ErrorCode(self.error)


_REQUEST: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_RESPONSE: Final = msgspec.msgpack.Decoder(Response)
_ENCODER: Final = msgspec.msgpack.Encoder()
_REQUEST_HEADER: Final = struct.Struct(">ihhih")
_RESPONSE_HEADER: Final = struct.Struct(">ii")


def decode_request(body: bytes | memoryview) -> Request:
    """
    Raises:
        MalformedRequest: it is not one of the requests above; says what does not fit.
    """
    try:
        return _REQUEST.decode(body)
    except msgspec.MsgspecError as error:
        raise MalformedRequest(str(error)) from None


def encode_response(correlation_id: int, response: Response) -> bytes:
    """A whole response frame."""
    body = _ENCODER.encode(response)
    return _RESPONSE_HEADER.pack(4 + len(body), correlation_id) + body


def encode_request(correlation_id: int, client_id: str, request: Request) -> bytes:
    """A whole request frame, for clients."""
    name, body = client_id.encode(), _ENCODER.encode(request)
    size = _REQUEST_HEADER.size - 4 + len(name) + len(body)
    return _REQUEST_HEADER.pack(size, API_KEY, 0, correlation_id, len(name)) + name + body


def decode_response(frame: bytes | memoryview) -> tuple[int, Response]:
    """(correlation id, response) of a frame without its length prefix, for clients."""
    (correlation_id,) = struct.unpack_from(">i", frame)
    return correlation_id, _RESPONSE.decode(memoryview(frame)[4:])
