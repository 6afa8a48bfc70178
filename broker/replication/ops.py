"""Changes of a tree of files, as the payloads of log entries. Pure.

A file goes by a number that is given once and never again, so that doing a run of changes once more, over files that
have seen all or part of it, ends in the same bytes: that is how a node starts after a crash. Names are a table of their
own (`tree`), which a checkpoint holds as of one index.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import msgpack


class Code(IntEnum):
    CREATE = 1
    """path, number"""
    WRITE = 2
    """number, position, bytes"""
    ALLOCATE = 3
    """number, position, size"""
    TRUNCATE = 4
    """number, size"""
    REMOVE = 5
    """path"""
    RENAME = 6
    """old path, new path; what had the new name is removed"""
    MAKE_DIR = 7
    """path, whose parent is there"""
    REMOVE_DIR = 8
    """path"""
    PEER = 9
    """number of a node, where the others reach it (HOST:PORT)"""


Change = Sequence[Any]
"""A code and its arguments."""

_ARGUMENTS: Final[dict[Code, tuple[type, ...]]] = {
    Code.CREATE: (str, int),
    Code.WRITE: (int, int, bytes),
    Code.ALLOCATE: (int, int, int),
    Code.TRUNCATE: (int, int),
    Code.REMOVE: (str,),
    Code.RENAME: (str, str),
    Code.MAKE_DIR: (str,),
    Code.REMOVE_DIR: (str,),
    Code.PEER: (int, str),
}

OF_CONTENT: Final = frozenset({Code.WRITE, Code.ALLOCATE, Code.TRUNCATE})

OVERHEAD_BYTES: Final = 64
"""At most, of a change without its bytes and paths."""


class BadChange(ValueError):
    """A payload that no leader of this version proposes."""


def encode(changes: Sequence[Change]) -> bytes:
    packed: bytes = msgpack.packb(changes)
    return packed


def decode(payload: bytes) -> list[Change]:
    """Raises `BadChange`."""
    try:
        changes: list[Change] = [
            (Code(change[0]), *change[1:]) for change in msgpack.unpackb(payload, use_list=False)
        ]
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise BadChange(f"not a list of changes: {error}") from error
    for code, *arguments in changes:
        if tuple(map(type, arguments)) != _ARGUMENTS[code] or any(
            type(one) is int and one < 0 for one in arguments
        ):
            raise BadChange(f"{code.name} of {[type(one).__name__ for one in arguments]}")
    return changes
