"""Hypothesis strategies for any message of any version, drawn from its schema."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.serial import entity_writer
from kio.serial._serialize import get_writer
from kio.static.primitive import i32

from wire.apis import APIS
from wire.building import EPOCH, build
from wire.errors import ErrorCode
from wire.packing import pack_array_length, pack_tagged_fields
from wire.schema import EntityClass, FieldSchema, fields_of

_TEXT = st.text(max_size=12)
_MILLISECOND = timedelta(milliseconds=1)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "int32": _integers(32),
    "int64": _integers(64),
    "uint16": st.integers(0, 0xFFFF),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "string": _TEXT,
    "bytes": st.binary(max_size=200),
    "records": st.binary(max_size=200),
    "uuid": st.uuids().filter(lambda value: value.int != 0),
    "error_code": st.sampled_from(ErrorCode),
    "timedelta_i32": _integers(32).map(lambda ms: ms * _MILLISECOND),
    "timedelta_i64": st.integers(-(2**50), 2**50).map(lambda ms: ms * _MILLISECOND),
    "datetime_i64": st.integers(0, 2**40).map(lambda ms: EPOCH + ms * _MILLISECOND),
}


@cache
def entities(entity: EntityClass) -> st.SearchStrategy[Any]:
    """Instances of one generated message class."""
    return st.fixed_dictionaries({field.name: _values(field) for field in fields_of(entity)}).map(
        lambda values: entity(**values)
    )


def _values(field: FieldSchema) -> st.SearchStrategy[Any]:
    one = entities(field.entity) if field.entity is not None else _SCALARS[field.kafka_type]
    if field.kafka_type == "uuid":
        one = st.none() | one
    values = st.lists(one, max_size=3).map(tuple) if field.is_array else one
    # A tagged field is null by being absent, which is its default.
    if field.nullable and (field.tag is None or field.default is None):
        return st.none() | values
    return values


def served_versions() -> list[tuple[int, int]]:
    """Every (API key, version) that is answered."""
    return [
        (spec.key, version)
        for spec in APIS.values()
        if not spec.is_private
        for version in range(spec.min_served, spec.max_version + 1)
    ]


def topic_ids() -> st.SearchStrategy[UUID | None]:
    return st.none() | _SCALARS["uuid"]


def kio_bytes(message: Any) -> bytes:
    """A message as kio's own writer writes it."""
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def kio_response(api_key: int, version: int, correlation_id: int, **fields: Any) -> bytes:
    """A whole response frame of kio's own writing."""
    message = build(api_key, version, None, **fields)
    header_class = message.__header_schema__
    content = kio_bytes(header_class(correlation_id=i32(correlation_id))) + kio_bytes(message)
    return struct.pack(">i", len(content)) + content


def encode_with_extra_tags(message: Any, extra: list[tuple[int, bytes]]) -> bytes:
    """A flexible message with these tagged fields of the future wherever it may have any, nested ones too."""
    out = bytearray()
    tagged: list[tuple[int, bytes]] = []
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.tag is None:
            out += _encode_field(field, value, extra)
        elif value != field.default:
            tagged.append((field.tag, _encode_field(replace(field, nullable=False), value, extra)))
    return bytes(out) + pack_tagged_fields(sorted(tagged) + extra)


def _encode_field(field: FieldSchema, value: Any, extra: list[tuple[int, bytes]]) -> bytes:
    if field.is_array:
        if value is None:
            return b"\0"
        item = replace(field, is_array=False, nullable=False)
        return pack_array_length(len(value), True) + b"".join(
            _encode_field(item, one, extra) for one in value
        )
    if field.entity is not None:
        if field.nullable and value is None:
            return b"\xff"
        return (b"\1" if field.nullable else b"") + encode_with_extra_tags(value, extra)
    buffer = io.BytesIO()
    get_writer(field.kafka_type, True, field.nullable)(buffer, value)
    return buffer.getvalue()
