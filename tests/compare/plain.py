"""Messages as plain data: dicts, lists, numbers and strings, as they came."""

import datetime
import enum
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

Plain = Any
"""dict[str, Plain] | list[Plain] | int | float | str | bytes | bool | None"""


def plain(value: Any) -> Plain:
    """Error codes as their names, times in ms, ids as text."""
    if isinstance(value, ErrorCode):
        return value.name
    if isinstance(value, enum.Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, datetime.timedelta):
        return int(value / datetime.timedelta(milliseconds=1))
    if isinstance(value, datetime.datetime):
        return int(value.timestamp() * 1000)
    if isinstance(value, UUID):
        return str(value)
    for kind in (bool, int, str, bytes):  # kio's own kinds of these
        if isinstance(value, kind):
            return kind(value)
    return value


@cache
def nested(entity: type) -> Mapping[str, type | None]:
    """The fields of a message by name, with the message that is nested in each, if one is."""
    found: dict[str, type | None] = {}
    for name, kind in typing.get_type_hints(entity).items():
        if name.startswith("__"):
            continue
        if typing.get_origin(kind) in (typing.Union, UnionType):
            kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
        if typing.get_origin(kind) is tuple:
            kind = typing.get_args(kind)[0]
        found[name] = kind if is_dataclass(kind) else None
    return found


def field_names(entity: type) -> set[str]:
    """The names of all fields at any depth."""
    names: set[str] = set()
    for name, kind in nested(entity).items():
        names.add(name)
        if kind is not None:
            names |= field_names(kind)
    return names
