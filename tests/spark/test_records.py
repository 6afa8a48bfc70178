"""Columns against `wire.records`, which reads and writes the same bytes one record at a time. No Spark here."""

import random

import numpy as np
import pyarrow as pa
import pytest

import pyspark_sealog.decode as decoding
from pyspark_sealog.decode import HEADERS_TYPE, cut, decode
from pyspark_sealog.encode import encode
from pyspark_sealog.partitioner import partition_of_keys
from pyspark_sealog.varints import read_varints, varint_table
from wire.batch import TRANSACTIONAL_BIT
from wire.errors import KafkaError
from wire.records import Record, build_batch, iterate_records, write_varint

COMPRESSIONS = range(5)


def some_records(rng: random.Random, count: int, *, time_ms: int = 1_700_000_000_000) -> list[Record]:
    def field() -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.choice((0, 1, 63, 64, 200, 9_000)))

    def headers() -> tuple[tuple[str, bytes | None], ...]:
        return tuple(("h\u00e9"[: rng.randrange(3)], field()) for _ in range(rng.choice((0, 0, 1, 3))))

    return [
        Record(field(), field(), headers(), time_ms + rng.randrange(-(1 << 35), 1 << 35))
        for _ in range(count)
    ]


def as_records(data: bytes, first: int = 0, stop: int = 1 << 62) -> list[Record]:
    out = []
    for group in decode(cut(data, check_crcs=True), first, stop, with_headers=True):
        columns = (group.keys, group.values, group.headers)
        for key, value, headers, time_ms, offset in zip(
            *(column.to_pylist() for column in columns), group.timestamps, group.offsets, strict=True
        ):
            pairs = tuple((one["key"], one["value"]) for one in headers or ())
            out.append(Record(key, value, pairs, int(time_ms), int(offset)))
    return out


@pytest.fixture(params=["side by side", "one after the other"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to find out where records begin."""
    fewest = 0 if request.param == "side by side" else 1 << 40
    monkeypatch.setattr(decoding, "_FEWEST_SIDE_BY_SIDE", fewest)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_columns_hold_what_the_record_by_record_reader_reads(compression: int) -> None:
    rng = random.Random(compression)
    data, expected, offset = b"", [], 0
    for count in (1, 70, 300, 1):
        batch = build_batch(some_records(rng, count), base_offset=offset, compression=compression)
        data, expected, offset = data + batch, expected + list(iterate_records(batch)), offset + count
    assert as_records(data) == expected
    assert as_records(data, 5, 200) == expected[5:200]
    assert as_records(data + data[:100]) == expected, "a batch cut off at the end is left out"


def test_gaps_control_batches_and_broker_times() -> None:
    rng = random.Random(1)
    records = [one._replace(offset=at) for one, at in zip(some_records(rng, 3), (2, 5, 9), strict=True)]
    gaps = build_batch(records, keep_offsets=True, last_offset=12)
    control = build_batch([Record(b"\0\0\0\0", b"")], base_offset=13, attributes=0x30)
    by_broker = build_batch([Record(b"k", b"v", (), 5)], base_offset=14, attributes=0x08)
    got = as_records(gaps + control + by_broker)
    assert [one.offset for one in got] == [2, 5, 9, 14]
    assert got[-1].timestamp == 5


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("seed", range(150))
def test_damage_is_an_error_and_never_a_wrong_record_where_the_other_reader_sees_one(seed: int) -> None:
    """Any byte of the records changed, the CRC not looked at: both readers refuse it, or both read the same."""
    rng = random.Random(seed)
    data = bytearray(build_batch(some_records(rng, 20)))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(61, len(data))] = rng.randrange(256)

    def outcome(read: object) -> object:
        try:
            return read()  # type: ignore[operator]
        except KafkaError:
            return "refused"

    def columns() -> list[Record]:
        out = []
        for group in decode(cut(bytes(data), check_crcs=False), 0, 1 << 62, with_headers=True):
            for key, value, headers, time_ms, offset in zip(
                group.keys.to_pylist(),
                group.values.to_pylist(),
                group.headers.to_pylist(),
                group.timestamps,
                group.offsets,
                strict=True,
            ):
                pairs = tuple((one["key"], one["value"]) for one in headers or ())
                out.append(Record(key, value, pairs, int(time_ms), int(offset)))
        return out

    expected = outcome(lambda: list(iterate_records(bytes(data))))
    if isinstance(expected, list) and [one.offset for one in expected] != sorted(
        {one.offset for one in expected}
    ):
        expected = "refused"
    assert outcome(columns) == expected


def test_varints_both_ways() -> None:
    numbers = [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)]
    data = bytearray()
    starts = []
    for number in numbers:
        starts.append(len(data))
        write_varint(data, number)
    table, used = varint_table(np.array(numbers))
    assert table[used].tobytes() == bytes(data)
    values, ends = read_varints(np.frombuffer(bytes(data), dtype=np.uint8), np.array(starts, dtype=np.int64))
    assert values.tolist() == numbers
    assert ends.tolist() == [*starts[1:], len(data)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_encoded_rows_are_the_bytes_of_the_record_by_record_writer(compression: int) -> None:
    rng = random.Random(compression)
    records = [one._replace(timestamp=7) for one in some_records(rng, 400)]
    headers = pa.array(
        [[{"key": name, "value": value} for name, value in one.headers] for one in records], type=HEADERS_TYPE
    )
    keys = pa.array([one.key for one in records], type=pa.binary())
    values = pa.array([one.value for one in records], type=pa.binary())
    encoded = encode(keys, values, headers, 50_000)
    at = 0
    batches = list(
        encoded.batches(compression=compression, timestamp_ms=7, producer_id=3, epoch=1, sequence=0x7FFFFFF0)
    )
    assert len(batches) > 3
    for head, packed, count in batches:
        batch = head + bytes(packed)
        expected = build_batch(
            records[at : at + count],
            compression=compression,
            attributes=TRANSACTIONAL_BIT,
            producer_id=3,
            producer_epoch=1,
            base_sequence=(0x7FFFFFF0 + at) & 0x7FFFFFFF,
        )
        assert batch == expected
        at += count
    assert at == len(records)


def test_rows_without_keys_and_headers() -> None:
    encoded = encode(None, pa.array([b"a", None, b""], type=pa.binary()), None, 1_000)
    ((head, packed, count),) = encoded.batches(
        compression=0, timestamp_ms=1, producer_id=1, epoch=0, sequence=0
    )
    assert count == 3
    assert [(one.key, one.value) for one in iterate_records(head + bytes(packed))] == [
        (None, b"a"),
        (None, None),
        (None, b""),
    ]


def test_keys_go_where_kafkas_own_clients_send_them() -> None:
    from kafka.partitioner.default import murmur2  # kafka-python's

    rng = random.Random(2)
    keys = [rng.randbytes(size) for size in [*range(20), 63, 64, 65, 1000]]
    column = pa.array([b"before", *keys], type=pa.binary()).slice(1)
    assert partition_of_keys(column, 7).tolist() == [(murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
