"""The parts that need neither Spark nor a broker: ranges, schemas, settings."""

import pytest
from pyspark.sql.types import ArrayType, DecimalType, LongType, StringType, StructField, StructType

from pyspark_sealog.cluster import TopicPartition
from pyspark_sealog.ddl import parse_schema
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
