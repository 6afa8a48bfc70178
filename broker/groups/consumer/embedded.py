"""The messages that classic consumers put into JoinGroup and SyncGroup, and that classic groups never look into.

A group of the new protocol has to: it reads the subscriptions and assignments of classic members and writes
assignments for them. Guarantee: whatever the bytes, reading gives a value or MalformedProtocol, and takes memory
in proportion to them.

Source: Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0-3; later ones begin alike.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of groups whose members speak this."""

HIGHEST_VERSION: Final = 3
_OWNED_SINCE, _GENERATION_SINCE, _RACK_SINCE = 1, 2, 3

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class MalformedProtocol(ValueError):
    """Bytes that are no such message."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a classic consumer asks for. `version` is that of the message, and of the assignment it can read."""

    version: int
    topics: frozenset[str]
    owned: Mapping[str, frozenset[int]]
    """Partitions that it still holds, by topic name; cooperative consumers say so."""
    rack_id: str | None


def read_subscription(data: bytes) -> Subscription:
    """Raises MalformedProtocol."""
    reader = _Reader(data)
    version = reader.version()
    topics = frozenset(reader.string() for _ in range(reader.count(2)))
    reader.nullable_bytes()  # user data
    owned = reader.partitions() if version >= _OWNED_SINCE else {}
    if version >= _GENERATION_SINCE:
        reader.int32()
    rack_id = reader.nullable_string() if version >= _RACK_SINCE else None
    return Subscription(min(version, HIGHEST_VERSION), topics, owned, rack_id)


def read_assignment(data: bytes) -> tuple[dict[str, frozenset[int]], bytes]:
    """(partitions by topic name, user data). Raises MalformedProtocol."""
    reader = _Reader(data)
    reader.version()
    partitions = reader.partitions()
    return partitions, reader.nullable_bytes() or b""


def write_assignment(version: int, partitions: Mapping[str, frozenset[int]]) -> bytes:
    """An assignment without user data."""
    out = bytearray(_INT16.pack(min(version, HIGHEST_VERSION)))
    out += _INT32.pack(len(partitions))
    for topic in sorted(partitions):
        name = topic.encode()
        out += _INT16.pack(len(name)) + name
        numbers = sorted(partitions[topic])
        out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    out += _INT32.pack(-1)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise MalformedProtocol(f"{size} bytes wanted at {self._at} of {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def int16(self) -> int:
        (value,) = _INT16.unpack(self._take(2))
        return int(value)

    def int32(self) -> int:
        (value,) = _INT32.unpack(self._take(4))
        return int(value)

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise MalformedProtocol(f"version {version}")
        return version

    def count(self, item_bytes: int) -> int:
        """The length of an array whose items take at least so many bytes each."""
        count = self.int32()
        if count < 0 or count * item_bytes > len(self._data) - self._at:
            raise MalformedProtocol(f"{count} items at {self._at} of {len(self._data)}")
        return count

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedProtocol("null for a string that may not be null")
        return value

    def nullable_string(self) -> str | None:
        size = self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedProtocol(str(error)) from None

    def nullable_bytes(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self._take(size)

    def partitions(self) -> dict[str, frozenset[int]]:
        found: dict[str, frozenset[int]] = {}
        for _ in range(self.count(6)):
            topic = self.string()
            numbers = struct.unpack(f">{(count := self.count(4))}i", self._take(4 * count))
            found[topic] = found.get(topic, frozenset()) | frozenset(numbers)
        return found
