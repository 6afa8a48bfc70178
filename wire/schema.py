"""The message schemas, as the codec needs them: which fields a message of a version has, and of what kind.

Guarantee: one reading of kio's generated classes, shared by everything that depends on their layout. Modules
are imported when a version is first met and kept: start-up does not pay for messages nobody sends.
"""

from __future__ import annotations

import dataclasses
import importlib
from functools import cache
from types import EllipsisType, ModuleType, NoneType, UnionType
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin

from wire.apis import APIS

Kind = Literal["request", "response"]

EntityClass: TypeAlias = Any
"""A generated message class, whole or nested. (`type[Any]` is not Hashable to the type checker.)"""

MISSING: Final = dataclasses.MISSING


class UnknownMessage(LookupError):
    """No message of this API, version and name exists."""


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSchema:
    """One field of a message. Untagged fields lie on the wire in the order of `fields_of`."""

    name: str
    kafka_type: str
    """Kafka's name of the (item) type; "entity" for a nested message."""
    entity: EntityClass | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any
    """MISSING where the schema has none."""


@cache
def message_module(api_key: int, version: int, kind: Kind) -> ModuleType:
    """The generated module of one message version. Raises UnknownMessage."""
    spec = APIS.get(api_key)
    if spec is None or not spec.serves(version):
        raise UnknownMessage(f"API {api_key} version {version} is not served")
    return importlib.import_module(f"kio.schema.{spec.module}.v{version}.{kind}")


@cache
def message_class(api_key: int, version: int, kind: Kind, name: str | None = None) -> EntityClass:
    """A class of that module by its name, or the whole message's. Raises UnknownMessage."""
    module = message_module(api_key, version, kind)
    for candidate in vars(module).values():
        if (
            isinstance(candidate, type)
            and candidate.__module__ == module.__name__
            and (candidate.__name__ == name if name else candidate.__dict__["__type__"].name == kind)
        ):
            return candidate
    raise UnknownMessage(f"{module.__name__} has no {name}")


@cache
def fields_of(entity: EntityClass) -> tuple[FieldSchema, ...]:
    """The fields of a generated message class, in its order."""
    return tuple(_field_schema(field) for field in dataclasses.fields(entity))


def _field_schema(field: dataclasses.Field[Any]) -> FieldSchema:
    inner: Any = field.type
    nullable = False
    if get_origin(inner) is UnionType:
        (inner,) = (part for part in get_args(inner) if part is not NoneType)
        nullable = True
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, rest = get_args(inner)
        if not isinstance(rest, EllipsisType):
            raise TypeError(f"{field.name} is a tuple of fixed length")
    entity: EntityClass = inner if dataclasses.is_dataclass(inner) else None
    return FieldSchema(
        name=field.name,
        kafka_type="entity" if entity is not None else field.metadata["kafka_type"],
        entity=entity,
        is_array=is_array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        default=field.default,
    )
