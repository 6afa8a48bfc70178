"""The columns of the source: their Spark types, and how they are made of decoded records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_sealog.cluster import TopicPartition
from pyspark_sealog.ddl import parse_schema
from pyspark_sealog.decode import Records
from pyspark_sealog.errors import OptionError
from pyspark_sealog.json_column import parse_json
from pyspark_sealog.options import ColumnOptions, Format

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_FIXED: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}


def schema_of(options: ColumnOptions) -> StructType:
    """The schema that these options give. Raises OptionError for a column that does not exist."""
    types: dict[str, DataType] = {
        "key": _type(options.key_format, options.key_schema, "keySchema"),
        "value": _type(options.value_format, options.value_schema, "valueSchema"),
        **_FIXED,
    }
    if options.include_headers:
        types["headers"] = HEADERS
    for name in options.columns:
        if name not in types:
            hint = " (includeHeaders=true brings it)" if name == "headers" else ""
            raise OptionError(f"option columns: {name!r} is none of {', '.join(types)}{hint}")
    return StructType([StructField(name, types[name]) for name in options.columns or types])


def _type(format_: Format, schema: str, option: str) -> DataType:
    if format_ == "binary":
        return BinaryType()
    if format_ == "string":
        return StringType()
    try:
        return parse_schema(schema)
    except (ValueError, KeyError) as error:
        raise OptionError(f"option {option}: {schema!r} is no schema: {error}") from None


class ColumnMaker:
    """Makes Arrow batches of one schema out of decoded records."""

    def __init__(self, options: ColumnOptions, schema: StructType) -> None:
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        makers: dict[str, Callable[[TopicPartition, Records], Any]] = {
            "key": lambda part, records: _formatted(records.keys, options.key_format, self._type("key")),
            "value": lambda part, records: _formatted(
                records.values, options.value_format, self._type("value")
            ),
            "topic": lambda part, records: pa.repeat(pa.scalar(part.topic, pa.string()), len(records)),
            "partition": lambda part, records: pa.array(
                np.full(len(records), part.partition, dtype=np.int32)
            ),
            "offset": lambda part, records: pa.array(records.offsets),
            "timestamp": lambda part, records: pa.array(records.timestamps * 1000).cast(
                self._type("timestamp")
            ),
            "timestampType": lambda part, records: pa.array(records.timestamp_types),
            "headers": lambda part, records: records.headers,
        }
        self._makers = [makers[name] for name in self._schema.names]
        self.needs_headers = "headers" in self._schema.names

    def _type(self, name: str) -> pa.DataType:
        return self._schema.field(name).type

    def __call__(self, part: TopicPartition, records: Records) -> pa.RecordBatch:
        columns = [make(part, records) for make in self._makers]
        return pa.RecordBatch.from_arrays(
            [
                column if column.type == field.type else column.cast(field.type)
                for column, field in zip(columns, self._schema, strict=True)
            ],
            schema=self._schema,
        )


def _formatted(column: pa.BinaryArray, format_: Format, type_: pa.DataType) -> Any:
    if format_ == "json":
        return parse_json(column, type_)
    if format_ == "string":
        return _as_strings(column)
    return column


def _as_strings(column: pa.BinaryArray) -> pa.StringArray:
    """UTF-8 text; bytes that are none become U+FFFD, as in Spark's own cast and decode."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if one is None else one.decode(errors="replace") for one in column.to_pylist()]
        return pa.array(texts, type=pa.string())
