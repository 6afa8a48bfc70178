"""Schemas written as in SQL: "id bigint, name string, tags array<string>, at struct<lat: double, lon: double>".

Spark's own parser lives in the JVM, and a data source runs where there is none. Schemas as JSON (`schema.json()`) are
read too.
"""

from __future__ import annotations

import json
import re
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_SIMPLE: Final[dict[str, type[DataType]]] = {
    "string": StringType,
    "boolean": BooleanType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}
_TOKEN: Final = re.compile(r"\s*(?:(?P<word>\w+)|`(?P<quoted>[^`]+)`|(?P<mark>[<>(),:]))")


def parse_schema(text: str) -> StructType:
    """Raises ValueError, which says what is wrong where."""
    if text.lstrip().startswith("{"):
        return StructType.fromJson(json.loads(text))
    parser = _Parser(text)
    schema = parser.fields(end="")
    if not schema.fields:
        raise ValueError("it has no fields")
    return schema


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []
        """Each token, and whether it is a word."""
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"{text[position:].strip()!r} cannot be read")
            word = match["word"] or match["quoted"]
            self._tokens.append((word or match["mark"], word is not None))
            position = match.end()
        self._tokens.append(("", False))
        self._at = 0

    def fields(self, end: str) -> StructType:
        fields: list[StructField] = []
        while True:
            name = self._word("a field's name")
            self._skip(":")
            type_ = self.type()
            nullable = not (self._skip("not") and self._expect("null"))
            fields.append(StructField(name, type_, nullable))
            if not self._skip(","):
                self._expect(end)
                return StructType(fields)

    def type(self) -> DataType:
        name = self._word("a type").lower()
        if name == "array":
            self._expect("<")
            element = self.type()
            self._expect(">")
            return ArrayType(element)
        if name == "struct":
            self._expect("<")
            return self.fields(end=">")
        if name in ("decimal", "numeric", "dec"):
            precision, scale = 10, 0
            if self._skip("("):
                precision = int(self._word("a precision"))
                scale = int(self._word("a scale")) if self._skip(",") else 0
                self._expect(")")
            return DecimalType(precision, scale)
        if name not in _SIMPLE:
            raise ValueError(f"{name!r} is none of {', '.join([*_SIMPLE, 'decimal', 'array', 'struct'])}")
        return _SIMPLE[name]()

    def _word(self, what: str) -> str:
        token, is_word = self._tokens[self._at]
        if not is_word:
            raise ValueError(
                f"{token!r} stands where {what} should" if token else f"{what} is missing at its end"
            )
        self._at += 1
        return token

    def _skip(self, wanted: str) -> bool:
        if self._tokens[self._at][0].lower() != wanted:
            return False
        self._at += 1
        return True

    def _expect(self, wanted: str) -> bool:
        token = self._tokens[self._at][0]
        if token.lower() != wanted:
            raise ValueError(f"{token!r} stands where {wanted or 'its end'!r} should")
        self._at += 1
        return True
