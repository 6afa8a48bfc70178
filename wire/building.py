"""Messages built from keyword arguments and plain dicts, the same way for every version.

Guarantee: a field that this version lacks is dropped, one that is not given gets its default, and a name that
no version has is an error at once, so that a typing mistake never becomes a missing field. Nested messages
may be given as dicts, times in milliseconds, errors as numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from wire.apis import APIS
from wire.errors import NO_ERROR, ErrorCode
from wire.schema import MISSING, EntityClass, FieldSchema, Kind, UnknownMessage, fields_of, message_class

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_ZERO: Final = timedelta(0)

_EMPTY_VALUES: Final[Mapping[str, Any]] = {
    "string": "",
    "bytes": b"",
    "records": None,
    "bool": False,
    "float64": 0.0,
    "uuid": None,
    "error_code": NO_ERROR,
    "timedelta_i32": _ZERO,
    "timedelta_i64": _ZERO,
    "datetime_i64": EPOCH,
}

_Convert = Callable[[Any], Any]


def build(api_key: int, version: int, name: str | None, /, **fields: Any) -> Any:
    """A response message, or with a `name` one of its nested messages, as a kio dataclass.

    Raises UnknownMessage where this version has no message of that name, TypeError for a field that no
    version has.
    """
    return _builder(api_key, version, "response", name)(fields)


def build_request(api_key: int, version: int, name: str | None, /, **fields: Any) -> Any:
    """The same for requests."""
    return _builder(api_key, version, "request", name)(fields)


def to_ms(duration: timedelta) -> int:
    """A decoded duration in milliseconds."""
    return duration // _MILLISECOND


def timestamp_ms(moment: datetime | None) -> int:
    """A decoded time in milliseconds since the epoch; -1 for none, as on the wire."""
    return -1 if moment is None else (moment - EPOCH) // _MILLISECOND


def _duration(value: int | timedelta) -> timedelta:
    if isinstance(value, timedelta):
        return value
    return timedelta(milliseconds=value) if value else _ZERO


def _moment(value: int | datetime | None) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    return EPOCH + value * _MILLISECOND if value >= 0 else None


def _error_code(value: int) -> ErrorCode:
    return value if isinstance(value, ErrorCode) else ErrorCode(value)


def _tuple(value: Any) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value)


_CONVERSIONS: Final[Mapping[str, _Convert]] = {
    "timedelta_i32": _duration,
    "timedelta_i64": _duration,
    "datetime_i64": _moment,
    "error_code": _error_code,
}


class _Builder:
    """Builds one message class of one version. Made once and kept."""

    __slots__ = ("_conversions", "_defaults", "_dropped", "_entity", "_key")

    def __init__(self, api_key: int, version: int, kind: Kind, entity: EntityClass) -> None:
        self._entity = entity
        self._key = (api_key, kind)
        self._defaults: dict[str, Any] = {}
        self._conversions: dict[str, _Convert | None] = {}
        self._dropped: set[str] = set()
        for field in fields_of(entity):
            nested = None
            if field.entity is not None:
                nested = _builder(api_key, version, kind, field.entity.__name__)
            self._defaults[field.name] = _default(field, nested)
            self._conversions[field.name] = _conversion(field, nested)

    def __call__(self, fields: Mapping[str, Any]) -> Any:
        values = self._defaults.copy()
        conversions = self._conversions
        for name, value in fields.items():
            if name in values:
                convert = conversions[name]
                values[name] = value if convert is None else convert(value)
            elif name not in self._dropped:
                self._drop(name)
        return self._entity(**values)

    def nested(self, value: Any) -> Any:
        """A nested message from a dict; what is built already passes."""
        return self(value) if isinstance(value, dict) else value

    def _drop(self, name: str) -> None:
        api_key, kind = self._key
        if not _exists_somewhere(api_key, kind, self._entity.__name__, name):
            raise TypeError(f"{self._entity.__name__} has no field {name!r} in any version")
        self._dropped.add(name)


@cache
def _builder(api_key: int, version: int, kind: Kind, name: str | None) -> _Builder:
    return _Builder(api_key, version, kind, message_class(api_key, version, kind, name))


def _default(field: FieldSchema, nested: _Builder | None) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.nullable:
        return None
    if field.is_array:
        return ()
    if nested is not None:
        return nested({})
    return _EMPTY_VALUES.get(field.kafka_type, 0)


def _conversion(field: FieldSchema, nested: _Builder | None) -> _Convert | None:
    if nested is None:
        return _tuple if field.is_array else _CONVERSIONS.get(field.kafka_type)
    build_one = nested.nested
    if not field.is_array:
        return build_one

    def convert(items: Any) -> tuple[Any, ...] | None:
        return None if items is None else tuple([build_one(item) for item in items])

    return convert


def _exists_somewhere(api_key: int, kind: Kind, class_name: str, field_name: str) -> bool:
    spec = APIS[api_key]
    # Fields come with the newest versions or left with the oldest: those two settle nearly every case, and
    # each version looked at is a module imported.
    versions = (spec.max_version, *range(spec.min_served, spec.max_version))
    for version in versions:
        try:
            entity = message_class(api_key, version, kind, class_name)
        except UnknownMessage:
            continue
        if any(field.name == field_name for field in fields_of(entity)):
            return True
    return False
