"""JSON texts to a column of structs, by Arrow's own parser.

Guarantee: one row for each text, whatever it is; what is not a JSON object that fits the schema is null, as with
Spark's from_json in its permissive mode.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj


def parse_json(texts: pa.BinaryArray, type_: pa.StructType) -> pa.StructArray:
    if not len(texts):
        return pa.array([], type=type_)
    missing = pc.is_null(texts)
    lines = pc.binary_join_element_wise(pc.fill_null(texts, b"{}"), b"", pa.scalar(b"\n", pa.binary()))
    try:
        parsed = _parse(b"".join(lines.to_pylist()), type_)
    except pa.ArrowException:
        return _one_by_one(texts, type_)
    if len(parsed) != len(texts):
        return _one_by_one(texts, type_)
    if not missing.true_count:
        return parsed
    return pa.StructArray.from_arrays(parsed.flatten(), fields=list(type_), mask=missing)


def _parse(lines: bytes, type_: pa.StructType) -> pa.StructArray:
    """One object per line. Raises pa.ArrowException."""
    readable = _readable(type_)
    table = pj.read_json(
        pa.BufferReader(lines),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema(list(readable)), unexpected_field_behavior="ignore"
        ),
    )
    columns = [pa.concat_arrays(table.column(field.name).chunks).cast(field.type) for field in type_]
    return pa.StructArray.from_arrays(columns, fields=list(type_))


def _readable(type_: pa.DataType) -> pa.DataType:
    """The type as Arrow's parser knows it: it reads no dates, but the timestamps that they begin."""
    if pa.types.is_date(type_):
        return pa.timestamp("us")
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_readable(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_readable(type_.value_type)))
    return type_


def _one_by_one(texts: pa.BinaryArray, type_: pa.StructType) -> pa.StructArray:
    """Slower, but a text that does not fit spoils its own row alone."""
    return pa.concat_arrays([_row(text, type_) for text in texts.to_pylist()])


def _row(text: bytes | None, type_: pa.StructType) -> pa.StructArray:
    if text is not None:
        try:
            value = json.loads(text)
            if isinstance(value, dict):
                return _parse(json.dumps(value).encode() + b"\n", type_)
        except (ValueError, pa.ArrowException, RecursionError):
            pass
    return pa.nulls(1, type_)
