"""A walk over a message before it is decoded, which makes decoding safe on hostile bytes.

Guarantee: a message that its guard passed has no array count that its own bytes could not back, at most
`MAX_ITEMS` array items and tagged fields in all, and ends where its body ends; nothing was allocated to find
that out; nor has it null for an array that may not be null. kio's native reader trusts counts (a count of 2^34 aborts
the process) and refuses tagged fields it does not know, which KIP-482 wants ignored; so those are cut out here.

The walk is compiled once per message class into closures. Lengths and counts are all it looks at; whether
values make sense is left to the decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Final

from wire.packing import VarintTooLong, pack_unsigned_varint, read_unsigned_varint
from wire.schema import EntityClass, FieldSchema, fields_of

MAX_ITEMS: Final = 250_000
"""Array items and tagged fields in one message: an item of three bytes decodes to an object of a hundred."""

Body = bytes | memoryview
"""A message's bytes, read-only: kio takes no others."""

_INT16: Final = struct.Struct(">h").unpack_from
_INT32: Final = struct.Struct(">i").unpack_from

_FIXED_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}


class MalformedRequest(Exception):
    """Bytes that cannot be the message they should be. Close the connection they came from."""


class _State:
    """What one walk carries along: the items still allowed, and what to cut out."""

    __slots__ = ("cuts", "items_left", "lifted")

    def __init__(self, lifted: list[Body] | None = None) -> None:
        self.items_left = MAX_ITEMS
        self.lifted = lifted
        """Where records are to be left out of the message, and kept as views of it: those so far, in order."""
        self.cuts: list[tuple[int, int, bytes]] = []
        """(start, stop, what stands there instead), for tagged fields the schema does not know."""


Walk = Callable[[Body, int, _State], int]
"""Takes body, position and state; returns the position behind what it walked over."""


Guard = Callable[[Body], Body]
"""Returns the message body, or where it held unknown tagged fields a copy without them."""


@cache
def guard_for(entity: EntityClass) -> Guard:
    """The guard of one message class. It raises MalformedRequest."""
    guard = _guard(entity)
    return lambda body: guard(body, _State())


@cache
def lifting_guard_for(entity: EntityClass) -> Callable[[Body], tuple[Body, list[Body]]]:
    """The guard of a message that is too large to be copied: (the message with every record field that is not null
    left empty, what stood in those fields, as views). It raises MalformedRequest."""
    guard = _guard(entity)

    def lifting(body: Body) -> tuple[Body, list[Body]]:
        lifted: list[Body] = []
        return guard(memoryview(body), _State(lifted)), lifted

    return lifting


def _guard(entity: EntityClass) -> Callable[[Body, _State], Body]:
    walk = _entity_walk(entity)
    name: str = entity.__name__

    def guard(body: Body, state: _State) -> Body:
        try:
            position = walk(body, 0, state)
        except (IndexError, VarintTooLong, struct.error):
            raise MalformedRequest(f"{name} is malformed") from None
        if position > len(body):
            raise MalformedRequest(f"{name} takes {position} bytes, {len(body)} are there")
        if state.cuts:
            body = _without_cuts(body[:position], state.cuts)
        elif position < len(body):
            # As Kafka does: librdkafka 2.16 puts three bytes too many behind its Metadata v13.
            body = body[:position]
        return body

    return guard


def _without_cuts(body: Body, cuts: list[tuple[int, int, bytes]]) -> Body:
    out = bytearray()
    position = 0
    for start, stop, instead in sorted(cuts):
        out += body[position:start]
        out += instead
        position = stop
    out += body[position:]
    return memoryview(out).toreadonly()


@cache
def _entity_walk(entity: EntityClass) -> Walk:
    """The walk over one message or nested message, its tagged fields included."""
    flexible: bool = entity.__flexible__
    skip = 0
    steps: list[Walk] = []
    for field in fields_of(entity):
        if field.tag is not None:
            continue
        size = _FIXED_SIZES.get(field.kafka_type)
        if size is not None and not field.is_array:
            skip += size
        else:
            steps.append(_field_walk(field, flexible, skip))
            skip = 0
    if flexible:
        steps.append(_tags_walk(entity, skip))
    elif skip or not steps:
        steps.append(_fixed_walk(skip))
    return steps[0] if len(steps) == 1 else _sequence_walk(steps)


def _sequence_walk(steps: list[Walk]) -> Walk:
    def walk(body: Body, position: int, state: _State) -> int:
        for step in steps:
            position = step(body, position, state)
        return position

    return walk


def _field_walk(field: FieldSchema, flexible: bool, skip: int) -> Walk:
    """The walk over one field that follows `skip` bytes of fields of fixed size."""
    if field.is_array:
        return _array_walk(field, flexible, skip)
    if field.entity is not None:
        return _nested_walk(_entity_walk(field.entity), skip, field.nullable and field.tag is None)
    size = _FIXED_SIZES.get(field.kafka_type)
    if size is not None:
        return _fixed_walk(skip + size)
    if flexible:
        walk = _compact_bytes_walk(skip)
    else:
        walk = _legacy_bytes_walk(skip, *((_INT16, 2) if field.kafka_type == "string" else (_INT32, 4)))
    return _records_walk(walk, flexible, skip) if field.kafka_type == "records" else walk


def _records_walk(walk: Walk, flexible: bool, skip: int) -> Walk:
    empty = b"\x01" if flexible else bytes(4)

    def walk_records(body: Body, position: int, state: _State) -> int:
        stop = walk(body, position, state)
        if state.lifted is not None and stop <= len(body):
            position += skip
            if flexible:
                size, start = read_unsigned_varint(body, position)
                size -= 1
            else:
                (size,) = _INT32(body, position)
                start = position + 4
            if size >= 0:
                state.lifted.append(body[start:stop])
                state.cuts.append((position, stop, empty))
        return stop

    return walk_records


def _fixed_walk(size: int) -> Walk:
    return lambda body, position, state: position + size


def _nested_walk(walk: Walk, skip: int, nullable: bool) -> Walk:
    def walk_nested(body: Body, position: int, state: _State) -> int:
        position += skip
        if nullable:
            # A marker byte precedes a nullable struct: -1 for null (KIP-893).
            if body[position] > 0x7F:
                return position + 1
            position += 1
        return walk(body, position, state)

    return walk_nested


def _legacy_bytes_walk(skip: int, unpack: Callable[[Body, int], tuple[Any, ...]], size_bytes: int) -> Walk:
    def walk(body: Body, position: int, state: _State) -> int:
        position += skip
        (size,) = unpack(body, position)
        if size >= 0:
            return position + size_bytes + int(size)
        if size == -1:
            return position + size_bytes
        raise MalformedRequest(f"a length of {size}")

    return walk


def _compact_bytes_walk(skip: int) -> Walk:
    def walk(body: Body, position: int, state: _State) -> int:
        position += skip
        size = body[position]
        if size > 0x7F:
            size, position = read_unsigned_varint(body, position)
            return position + size - 1 if size else position
        # The length is one more than the bytes: it counts for the byte it takes itself.
        return position + (size or 1)

    return walk


def _array_walk(field: FieldSchema, flexible: bool, skip: int) -> Walk:
    if field.entity is not None:
        walk_item = _entity_walk(field.entity)
        fixed_size, tagged = _stride(field.entity)
        smallest = _smallest_size(field.entity)
    else:
        walk_item = _field_walk(replace(field, is_array=False), flexible, 0)
        fixed_size, tagged = _FIXED_SIZES.get(field.kafka_type, 0), False
        smallest = fixed_size or _smallest_field_size(field.kafka_type, flexible)

    def walk(body: Body, position: int, state: _State) -> int:
        position += skip
        if flexible:
            count = body[position]
            if count > 0x7F:
                count, position = read_unsigned_varint(body, position)
            else:
                position += 1
            count -= 1
        else:
            (count,) = _INT32(body, position)
            position += 4
        if count <= 0:
            # kio reads null for any array, also where no handler expects it.
            if count < -1 or (count == -1 and not field.nullable):
                raise MalformedRequest(f"{field.name}: an array of {count} items")
            return position
        state.items_left -= count
        if state.items_left < 0 or count * smallest > len(body) - position:
            raise MalformedRequest(f"{field.name} claims {count} items in {len(body) - position} bytes")
        if fixed_size:
            stop = position + count * fixed_size
            # Where every item's count of tagged fields is 0, all items have the same size.
            if not tagged or not any(body[position + fixed_size - 1 : stop : fixed_size]):
                return stop
        for _ in range(count):
            position = walk_item(body, position, state)
        return position

    return walk


def _stride(entity: EntityClass) -> tuple[int, bool]:
    """The size of an item whose fields are all of fixed size, its tag count included; else 0. And whether it
    has a tag count."""
    size = 0
    for field in fields_of(entity):
        if field.tag is None:
            field_size = 0 if field.is_array else _FIXED_SIZES.get(field.kafka_type, 0)
            if not field_size:
                return 0, False
            size += field_size
    flexible: bool = entity.__flexible__
    return size + flexible, flexible


def _smallest_size(entity: EntityClass) -> int:
    flexible: bool = entity.__flexible__
    size = int(flexible)
    for field in fields_of(entity):
        if field.tag is None:
            if field.is_array:
                size += 1 if flexible else 4
            elif field.entity is not None:
                size += 1
            else:
                size += _FIXED_SIZES.get(field.kafka_type) or _smallest_field_size(field.kafka_type, flexible)
    return size


def _smallest_field_size(kafka_type: str, flexible: bool) -> int:
    if flexible:
        return 1
    return 2 if kafka_type == "string" else 4


def _tags_walk(entity: EntityClass, skip: int) -> Walk:
    known = {field.tag: _field_walk(field, True, 0) for field in fields_of(entity) if field.tag is not None}

    def walk(body: Body, position: int, state: _State) -> int:
        position += skip
        if not body[position]:
            return position + 1
        return _walk_tagged_fields(known, body, position, state)

    return walk


def _walk_tagged_fields(known: dict[int, Walk], body: Body, position: int, state: _State) -> int:
    start = position
    count, position = read_unsigned_varint(body, position)
    count_stop = position
    state.items_left -= count
    if state.items_left < 0:
        raise MalformedRequest(f"{count} tagged fields")
    unknown = 0
    for _ in range(count):
        field_start = position
        tag, position = read_unsigned_varint(body, position)
        size_start = position
        size, position = read_unsigned_varint(body, position)
        value_start = position
        position += size
        if position > len(body):
            raise MalformedRequest(f"tagged field {tag} is cut off")
        walk = known.get(tag)
        if walk is None:
            unknown += 1
            state.cuts.append((field_start, position, b""))
            continue
        cuts_before = len(state.cuts)
        if walk(body, value_start, state) != position:
            raise MalformedRequest(f"tagged field {tag} is not {size} bytes long")
        if len(state.cuts) > cuts_before:
            size += sum(len(new) - stop + begin for begin, stop, new in state.cuts[cuts_before:])
            state.cuts.append((size_start, value_start, pack_unsigned_varint(size)))
    if unknown:
        state.cuts.append((start, count_stop, pack_unsigned_varint(count - unknown)))
    return position
