"""The parts that need neither Spark nor a broker: ranges, schemas, settings."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DecimalType, LongType, StringType, StructField, StructType

from pyspark_sealog.cluster import TopicPartition
from pyspark_sealog.ddl import parse_schema
from pyspark_sealog.json_column import parse_json
from pyspark_sealog.ranges import OffsetRange, from_json, limited, split, to_json

A, B, C = (TopicPartition("t", n) for n in range(3))


def test_a_limit_is_shared_by_what_waits_and_nobody_starves() -> None:
    start, end = {A: 0, B: 0, C: 10}, {A: 900, B: 99, C: 11}
    taken = limited(start, end, 100)
    assert taken == {A: 90, B: 9, C: 11}
    assert limited(start, end, 1_000) == end
    assert limited(start, {A: 900, B: 0, C: 10}, 1) == {A: 1, B: 0, C: 10}


def test_a_limit_is_reached_in_the_end_whatever_its_size() -> None:
    for limit in (1, 2, 7, 100):
        at, end, turns = {A: 0, B: 5}, {A: 50, B: 60, C: 3}, 0
        at[C] = 0
        while at != end:
            new = limited(at, end, limit)
            assert all(at[part] <= new[part] <= end[part] for part in end)
            assert new != at
            at, turns = new, turns + 1
        assert turns >= 108 // (limit + 3)


@pytest.mark.parametrize(("at_least", "longest"), [(0, 0), (2, 0), (7, 0), (0, 10), (5, 33), (500, 0)])
def test_split_ranges_are_the_same_records(at_least: int, longest: int) -> None:
    ranges = [OffsetRange(A, 5, 105), OffsetRange(B, 0, 0), OffsetRange(C, 7, 17)]
    pieces = split(ranges, at_least, longest)
    for one in ranges:
        own = [piece for piece in pieces if piece.part == one.part]
        assert [n for piece in own for n in range(piece.start, piece.end)] == [*range(one.start, one.end)]
    assert all(len(piece) for piece in pieces)
    assert not longest or all(len(piece) <= longest for piece in pieces)
    assert len(pieces) >= min(at_least - 1, 110)
    assert split([], at_least, longest) == []


def test_offsets_are_written_as_the_kafka_connector_writes_them() -> None:
    offsets = {TopicPartition("b", 0): 4, TopicPartition("a", 10): 3, TopicPartition("a", 2): 1}
    assert str(to_json(offsets)) == "{'a': {'2': 1, '10': 3}, 'b': {'0': 4}}"
    assert from_json(to_json(offsets)) == offsets


def test_schemas_as_sql_and_as_json() -> None:
    schema = parse_schema("id BIGINT NOT NULL, `a b` array<struct<x: decimal(5, 2), y string>>, z decimal")
    inner = StructType([StructField("x", DecimalType(5, 2)), StructField("y", StringType())])
    expected = StructType(
        [
            StructField("id", LongType(), nullable=False),
            StructField("a b", ArrayType(inner)),
            StructField("z", DecimalType(10, 0)),
        ]
    )
    assert schema == expected
    assert parse_schema(expected.json()) == expected


@pytest.mark.parametrize(
    "text", ["", "id", "id bigint,", "id blob", "a array<int", "a int b int", "a int; b int"]
)
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_schema(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("date", '"2013-01-02"', date(2013, 1, 2)),
        ("array<date>", '["2013-01-02", null]', [date(2013, 1, 2), None]),
        ("struct<d: date>", '{"d": "2013-01-02"}', {"d": date(2013, 1, 2)}),
        ("timestamp", '"2013-01-02T03:04:05.678Z"', datetime(2013, 1, 2, 3, 4, 5, 678_000, UTC)),
        ("timestamp", '"2013-01-02T03:04:05+02:00"', datetime(2013, 1, 2, 1, 4, 5, 0, UTC)),
        ("decimal(10, 2)", "1.5", Decimal("1.50")),
        ("double", "3", 3.0),
        ("int", "-3", -3),
        ("boolean", "true", True),
        ("string", '"\\u00e9\\n"', "\u00e9\n"),
        ("array<int>", "[1, null]", [1, None]),
    ],
)
def test_json_becomes_what_its_schema_says_also_beside_rows_that_are_none(
    kind: str, text: str, value: object
) -> None:
    type_ = to_arrow_schema(
        StructType([StructField("x", parse_schema(f"x {kind}")["x"].dataType)]), timezone="UTC"
    )
    struct = pa.struct(list(type_))
    good = b'{"more": 1, "x": %s}' % text.encode()
    assert parse_json(pa.array([good, None, b"{}"], pa.binary()), struct).to_pylist() == [
        {"x": value},
        None,
        {"x": None},
    ]
    for bad in (b"no", b'{"x": {}}', b"[]", good + good):
        assert parse_json(pa.array([bad, good], pa.binary()), struct).to_pylist()[1] == {"x": value}
