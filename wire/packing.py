"""The few Kafka types that are read and written by hand.

Guarantee: byte for byte what the generated schemas write; a string too long for its field is a ValueError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT32_PAIR: Final = struct.Struct(">ii")
_MAX_STRING_BYTES: Final = 0x7FFF
_MAX_UNSIGNED_VARINT: Final = 0x7FFFFFFF


@dataclass(slots=True)
class NodeEndpoint:
    """Where the leader lives that an error NOT_LEADER_OR_FOLLOWER points to (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class VarintTooLong(ValueError):
    """An unsigned varint of more than 5 bytes or 31 bits."""


def read_unsigned_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint and the position behind it.

    Raises IndexError where the data ends inside it, VarintTooLong for more than any field may have.
    """
    result = 0
    for shift in (0, 7, 14, 21, 28):
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result > _MAX_UNSIGNED_VARINT:
                break
            return result, position
    raise VarintTooLong(f"unsigned varint of more than 31 bits at {position}")


def pack_unsigned_varint(value: int) -> bytes:
    """An unsigned varint, seven bits a byte, lowest first."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def pack_string(value: str | None, flexible: bool) -> bytes:
    """A string behind its length (flexible: a varint of one more than it; else two bytes). None is null."""
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    encoded = value.encode()
    if flexible:
        return pack_unsigned_varint(len(encoded) + 1) + encoded
    if len(encoded) > _MAX_STRING_BYTES:
        raise ValueError(f"a string of {len(encoded)} bytes")
    return _INT16.pack(len(encoded)) + encoded


def pack_array_length(count: int, flexible: bool) -> bytes:
    return pack_unsigned_varint(count + 1) if flexible else _INT32.pack(count)


def pack_tagged_fields(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """A section of tagged fields (tag, encoded value), which must come in the order of tags."""
    if not fields:
        return b"\0"
    out = bytearray(pack_unsigned_varint(len(fields)))
    for tag, value in fields:
        out += pack_unsigned_varint(tag)
        out += pack_unsigned_varint(len(value))
        out += value
    return bytes(out)


def pack_current_leader(leader_id: int, leader_epoch: int) -> bytes:
    """The value of a CurrentLeader field (LeaderIdAndEpoch), without its tag."""
    return _INT32_PAIR.pack(leader_id, leader_epoch) + b"\0"


def pack_node_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The value of a NodeEndpoints field, without its tag."""
    out = bytearray(pack_array_length(len(endpoints), True))
    for endpoint in endpoints:
        out += _INT32.pack(endpoint.node_id)
        out += pack_string(endpoint.host, True)
        out += _INT32.pack(endpoint.port)
        out += pack_string(endpoint.rack, True)
        out += b"\0"
    return bytes(out)
