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
        table = pj.read_json(
            pa.BufferReader(b"".join(lines.to_pylist())),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema(list(type_)), unexpected_field_behavior="ignore"
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _one_by_one(texts, type_)
    if table.num_rows != len(texts):
        return _one_by_one(texts, type_)
    flat = [pa.concat_arrays(table.column(field.name).chunks) for field in type_]
    return pa.StructArray.from_arrays(flat, fields=list(type_), mask=missing if missing.true_count else None)


def _one_by_one(texts: pa.BinaryArray, type_: pa.StructType) -> pa.StructArray:
    """Slower, but a text that does not fit spoils its own row alone."""
    return pa.concat_arrays([_row(text, type_) for text in texts.to_pylist()])


def _row(text: bytes | None, type_: pa.StructType) -> pa.StructArray:
    if text is not None:
        try:
            value = json.loads(text)
            if isinstance(value, dict):
                one_line = json.dumps(value).encode()
                return parse_json_strictly(one_line, type_)
        except (ValueError, pa.ArrowException, RecursionError):
            pass
    return pa.nulls(1, type_)


def parse_json_strictly(line: bytes, type_: pa.StructType) -> pa.StructArray:
    table = pj.read_json(
        pa.BufferReader(line + b"\n"),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema(list(type_)), unexpected_field_behavior="ignore"
        ),
    )
    return pa.StructArray.from_arrays(
        [table.column(field.name).chunk(0) for field in type_], fields=list(type_)
    )
