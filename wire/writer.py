"""Messages to bytes, compiled from their schemas.

Guarantee: byte for byte what kio's own writer gives for the same message, several times faster: a run of fields of
fixed size is one struct, an array of numbers another. A value that does not fit its field raises (struct.error,
TypeError or ValueError) before anything goes out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from wire.building import timestamp_ms, to_ms
from wire.packing import pack_array_length, pack_string, pack_tagged_fields
from wire.schema import MISSING, EntityClass, FieldSchema, fields_of

Write = Callable[[bytearray, Any], None]
"""Appends a message, or one value, to the bytes."""

_CODES: Final = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float64": "d",
}
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_NO_UUID: Final = bytes(16)


@cache
def writer_for(entity: EntityClass) -> Write:
    """The writer of one message class, its nested messages and tagged fields included."""
    flexible: bool = entity.__flexible__
    steps: list[Write] = []
    run: list[FieldSchema] = []
    tagged: list[FieldSchema] = []
    for field in fields_of(entity):
        if field.tag is not None:
            tagged.append(field)
        elif field.kafka_type in _CODES and not field.is_array:
            run.append(field)
        else:
            if run:
                steps.append(_run_writer(run))
                run = []
            steps.append(_field_writer(field.name, _value_writer(field, flexible)))
    if run:
        steps.append(_run_writer(run))
    if flexible:
        steps.append(_tags_writer(sorted(tagged, key=attrgetter("tag"))))
    return steps[0] if len(steps) == 1 else _sequence_writer(steps)


def _sequence_writer(steps: list[Write]) -> Write:
    def write(out: bytearray, message: Any) -> None:
        for step in steps:
            step(out, message)

    return write


def _run_writer(run: list[FieldSchema]) -> Write:
    """Fields of fixed size, one after the other, as one struct."""
    pack = struct.Struct(">" + "".join(_CODES[field.kafka_type] for field in run)).pack
    values_of = attrgetter(*(field.name for field in run))
    if len(run) == 1:

        def write_one(out: bytearray, message: Any) -> None:
            out += pack(values_of(message))

        return write_one

    def write(out: bytearray, message: Any) -> None:
        out += pack(*values_of(message))

    return write


def _field_writer(name: str, write_value: Write) -> Write:
    value_of = attrgetter(name)

    def write(out: bytearray, message: Any) -> None:
        write_value(out, value_of(message))

    return write


def _value_writer(field: FieldSchema, flexible: bool) -> Write:
    if field.is_array:
        return _array_writer(field, flexible)
    if field.entity is not None:
        write_entity = writer_for(field.entity)
        return _nullable_entity_writer(write_entity) if field.nullable else write_entity
    code = _CODES.get(field.kafka_type)
    if code is not None:
        return _number_writer(struct.Struct(">" + code))
    match field.kafka_type:
        case "string":
            return _string_writer(flexible, field.nullable)
        case "bytes" | "records":
            return _bytes_writer(flexible, field.nullable)
        case "uuid":
            return _write_uuid
        case "timedelta_i32":
            return _write_short_duration
        case "timedelta_i64":
            return _write_long_duration
        case "datetime_i64":
            return _write_moment
        case other:
            raise TypeError(f"{field.name} is of unknown type {other}")


def _number_writer(layout: struct.Struct) -> Write:
    def write(out: bytearray, value: Any) -> None:
        out += layout.pack(value)

    return write


def _string_writer(flexible: bool, nullable: bool) -> Write:
    def write(out: bytearray, value: str | None) -> None:
        if value is None and not nullable:
            raise TypeError("null for a string that may not be null")
        out += pack_string(value, flexible)

    return write


def _bytes_writer(flexible: bool, nullable: bool) -> Write:
    def write(out: bytearray, value: bytes | None) -> None:
        if value is None:
            if not nullable:
                raise TypeError("null for bytes that may not be null")
            out += b"\0" if flexible else b"\xff\xff\xff\xff"
            return
        out += pack_array_length(len(value), flexible)
        out += value

    return write


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _NO_UUID if value is None else value.bytes


def _write_short_duration(out: bytearray, value: Any) -> None:
    out += _INT32.pack(to_ms(value))


def _write_long_duration(out: bytearray, value: Any) -> None:
    out += _INT64.pack(to_ms(value))


def _write_moment(out: bytearray, value: Any) -> None:
    out += _INT64.pack(timestamp_ms(value))


def _nullable_entity_writer(write_entity: Write) -> Write:
    def write(out: bytearray, value: Any) -> None:
        # A marker byte precedes a nullable struct: -1 for null, 1 for one that is there (KIP-893).
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write_entity(out, value)

    return write


def _array_writer(field: FieldSchema, flexible: bool) -> Write:
    code = _CODES.get(field.kafka_type)
    write_item = _value_writer(replace(field, is_array=False, nullable=False), flexible)
    nullable = field.nullable

    def write(out: bytearray, items: Sequence[Any] | None) -> None:
        if items is None:
            if not nullable:
                raise TypeError(f"null for the array {field.name}, which may not be null")
            out += pack_array_length(-1, flexible)
            return
        count = len(items)
        out += pack_array_length(count, flexible)
        if code is not None:
            out += struct.pack(f">{count}{code}", *items)
        else:
            for item in items:
                write_item(out, item)

    return write


def _tags_writer(tagged: list[FieldSchema]) -> Write:
    """Tagged fields that differ from their defaults; the others are absent, which means the default."""
    if not tagged:

        def write_none(out: bytearray, message: Any) -> None:
            out.append(0)

        return write_none

    known: list[tuple[int, Callable[[Any], Any], Write, Any]] = []
    for field in tagged:
        if field.default is MISSING or field.tag is None:
            raise TypeError(f"the tagged field {field.name} has no default")
        write_value = _value_writer(replace(field, nullable=False), True)
        known.append((field.tag, attrgetter(field.name), write_value, field.default))

    def write(out: bytearray, message: Any) -> None:
        present: list[tuple[int, bytes]] = []
        for tag, value_of, write_value, default in known:
            value = value_of(message)
            if value != default:
                encoded = bytearray()
                write_value(encoded, value)
                present.append((tag, bytes(encoded)))
        out += pack_tagged_fields(present)

    return write
