"""A shortcut through the guard for Produce requests as clients send them.

Guarantee: a body that the shortcut passes is one that the general guard passes unchanged. Whatever it does
not recognise at once (tagged fields, more than 126 topics or partitions of one, anything malformed) it leaves
to the general guard to decide.
"""

from __future__ import annotations

import struct
from typing import Final

from wire.guard import Body, Guard

_INT16: Final = struct.Struct(">h").unpack_from
_INT32: Final = struct.Struct(">i").unpack_from
_INDEX_AND_SIZE: Final = struct.Struct(">ii").unpack_from

# acks (2 bytes) and timeout (4 bytes) follow the transactional id.
_ACKS_AND_TIMEOUT: Final = 6
_TOPIC_ID: Final = 16
_NULL: Final = -1
_MANY: Final = 0x7F
"""No count above this takes the shortcut: counts stay in one byte, and loops short."""


def produce_guard(version: int, general: Guard) -> Guard:
    """The guard for Produce requests of one version, backed by the general one."""
    if version < 9:
        return _legacy_guard(general)
    return _flexible_guard(general, topic_ids=version >= 13)


def _legacy_guard(general: Guard) -> Guard:
    def guard(body: Body) -> Body:
        try:
            (size,) = _INT16(body, 0)
            position = 2 + _ACKS_AND_TIMEOUT
            if size > 0:
                position += size
            elif size < _NULL:
                return general(body)
            (topics,) = _INT32(body, position)
            position += 4
            if not 0 <= topics <= _MANY:
                return general(body)
            for _ in range(topics):
                (size,) = _INT16(body, position)
                position += 2
                if size > 0:
                    position += size
                elif size < _NULL:
                    return general(body)
                (partitions,) = _INT32(body, position)
                position += 4
                if not 0 <= partitions <= _MANY:
                    return general(body)
                for _ in range(partitions):
                    _, size = _INDEX_AND_SIZE(body, position)
                    position += 8
                    if size > 0:
                        position += size
                    elif size < _NULL:
                        return general(body)
        except struct.error:
            return general(body)
        return body if position == len(body) else general(body)

    return guard


def _flexible_guard(general: Guard, *, topic_ids: bool) -> Guard:
    def guard(body: Body) -> Body:
        try:
            # A compact length is one more than the bytes, so it counts for the byte it takes itself.
            size = body[0]
            position = (size or 1) + _ACKS_AND_TIMEOUT
            topics = body[position]
            if size > _MANY or not 0 < topics <= _MANY:
                return general(body)
            position += 1
            for _ in range(topics - 1):
                if topic_ids:
                    position += _TOPIC_ID
                else:
                    size = body[position]
                    if size > _MANY:
                        return general(body)
                    position += size or 1
                partitions = body[position]
                if not 0 < partitions <= _MANY:
                    return general(body)
                position += 1
                for _ in range(partitions - 1):
                    position += 4
                    size = body[position]
                    if size > _MANY:
                        size &= 0x7F
                        for shift in (7, 14, 21, 28):
                            position += 1
                            byte = body[position]
                            size |= (byte & 0x7F) << shift
                            if byte < 0x80:
                                break
                        else:
                            return general(body)
                    position += size or 1
                    if body[position]:
                        return general(body)
                    position += 1
                if body[position]:
                    return general(body)
                position += 1
            if body[position]:
                return general(body)
        except IndexError:
            return general(body)
        return body if position + 1 == len(body) else general(body)

    return guard
