"""Records inside a batch: round trips, against another implementation, and hostile contents."""

from __future__ import annotations

import struct
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from wire.batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_NONE,
    COMPRESSION_SNAPPY,
    COMPRESSION_ZSTD,
    LOG_APPEND_TIME_BIT,
    pack_batch,
)
from wire.errors import ErrorCode, KafkaError
from wire.records import Record, build_batch, iterate_records, read_varint, write_varint

BYTES = st.none() | st.binary(max_size=100)
HEADERS = st.lists(st.tuples(st.text(max_size=8), BYTES), max_size=3).map(tuple)
RECORDS = st.lists(st.builds(Record, BYTES, BYTES, HEADERS, st.integers(0, 2**42)), max_size=20)
COMPRESSIONS = st.integers(COMPRESSION_NONE, COMPRESSION_ZSTD)


def corrupt(payload: bytes, record_count: int = 1) -> str:
    batch = pack_batch(
        payload,
        record_count=record_count,
        last_offset_delta=max(record_count - 1, 0),
        base_timestamp=0,
        max_timestamp=0,
    )
    with pytest.raises(KafkaError) as caught:
        list(iterate_records(batch))
    assert caught.value.code is ErrorCode.corrupt_message
    return caught.value.message or ""


@given(RECORDS, COMPRESSIONS, st.integers(0, 2**60))
def test_what_is_built_is_read(records: list[Record], compression: int, base_offset: int) -> None:
    batch = build_batch(records, compression=compression, base_offset=base_offset)
    expected = [record._replace(offset=base_offset + index) for index, record in enumerate(records)]
    assert list(iterate_records(batch, verify_crc=True)) == expected
    assert list(iterate_records(batch + b"next batch")) == expected


@given(RECORDS, st.sampled_from([COMPRESSION_NONE, 1]))
def test_another_implementation_reads_what_is_built(records: list[Record], compression: int) -> None:
    batch = build_batch(records, compression=compression, base_offset=5)
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    read = [
        Record(record.key, record.value, tuple(record.headers), record.timestamp, record.offset)
        for record in theirs
    ]
    assert read == list(iterate_records(batch))
    assert len(read) == len(records)


@given(RECORDS.filter(bool), st.sampled_from([COMPRESSION_NONE, 1]))
def test_what_another_implementation_builds_is_read(records: list[Record], compression: int) -> None:
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    for offset, record in enumerate(records):
        headers = [(name, value) for name, value in record.headers]
        assert builder.append(offset, record.timestamp, record.key, record.value, headers)
    batch = bytes(builder.build())
    assert list(iterate_records(batch, verify_crc=True)) == [
        record._replace(offset=offset) for offset, record in enumerate(records)
    ]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(0, 100))
def test_own_offsets_are_kept(steps: list[int], before: int) -> None:
    offsets = list(accumulate(steps))
    records = [Record(None, b"v", (), 0, offset) for offset in offsets]
    base_offset = max(offsets[0] - before, 0)
    batch = build_batch(records, base_offset=base_offset, keep_offsets=True, last_offset=offsets[-1] + 3)
    assert [record.offset for record in iterate_records(batch)] == offsets


def test_own_offsets_must_increase() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        build_batch([Record(None, None, (), 0, 4), Record(None, None, (), 0, 4)], keep_offsets=True)
    with pytest.raises(ValueError, match="does not follow"):
        build_batch([Record(None, None, (), 0, 4)], base_offset=5, keep_offsets=True)


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = build_batch(
        [Record(b"a", b"", (), 5), Record(b"b", b"", (), 9), Record(b"c", b"", (), 7)],
        attributes=LOG_APPEND_TIME_BIT,
    )
    assert [record.timestamp for record in iterate_records(batch)] == [9, 9, 9]


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(value: int) -> None:
    out = bytearray()
    write_varint(out, value)
    assert len(out) <= 10
    assert read_varint(bytes(out), 0) == (value, len(out))


@pytest.mark.parametrize("data", [b"\xff" * 9 + b"\x02", b"\x80" * 10, b"\xff" * 12])
def test_varints_are_64_bits(data: bytes) -> None:
    with pytest.raises(KafkaError):
        read_varint(data, 0)


def test_a_checksum_that_does_not_hold() -> None:
    batch = bytearray(build_batch([Record(b"key", b"value")]))
    batch[-2] ^= 1
    with pytest.raises(KafkaError):
        iterate_records(bytes(batch), verify_crc=True)


def test_a_batch_cut_off() -> None:
    batch = build_batch([Record(b"key", b"value")])
    with pytest.raises(KafkaError, match="cut off"):
        iterate_records(batch[:-1])


def test_hostile_payloads_are_refused() -> None:
    good = build_batch([Record(b"key", b"value", (("h", b"x"),))])[BATCH_HEADER_SIZE:]
    for size in range(len(good)):
        corrupt(good[:size])
    assert "follow" in corrupt(good + b"\0")
    assert "record of" in corrupt(b"\x01")
    # body: attributes, timestamp delta, offset delta, key -1, value -1, then a count of headers
    huge = bytearray()
    write_varint(huge, 1 << 40)
    body = b"\0\0\0\x01\x01" + bytes(huge)
    assert "headers" in corrupt(bytes([2 * len(body)]) + body)
    assert "field of" in corrupt(b"\x0c\0\0\0" + b"\x03" + b"\x01\0")
    assert "offset delta" in corrupt(b"\x0c\0\0\x04\x01\x01\0")
    assert "without a key" in corrupt(b"\x10\0\0\0\x01\x01\x02\x01\x01")
    assert "UTF-8" in corrupt(b"\x12\0\0\0\x01\x01\x02\x02\xff\x01")


def test_a_count_of_records_ends_with_the_bytes() -> None:
    assert corrupt(b"", record_count=1 << 30) == "the records end inside a number"


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    delta = bytearray()
    write_varint(delta, 2**63 - 1)
    body = b"\0" + bytes(delta) + b"\0\x01\x01\0"
    batch = pack_batch(
        bytes([2 * len(body)]) + body, record_count=1, last_offset_delta=0, base_timestamp=1, max_timestamp=1
    )
    with pytest.raises(KafkaError, match="64 bits"):
        list(iterate_records(batch))


@given(st.binary(max_size=60), st.integers(0, 4), st.integers(0, 3))
def test_random_payloads_give_records_or_an_error(payload: bytes, compression: int, count: int) -> None:
    batch = pack_batch(
        payload,
        record_count=count,
        last_offset_delta=max(count - 1, 0),
        base_timestamp=0,
        max_timestamp=0,
        attributes=compression,
    )
    try:
        records = list(iterate_records(batch, max_bytes=1 << 20))
    except KafkaError as error:
        code = error.code
    else:
        assert len(records) == count
        return
    assert code is ErrorCode.corrupt_message


def test_snappy_from_the_java_client_is_read() -> None:
    """Blocks behind snappy-java's header, and raw snappy as other clients send it."""
    import cramjam

    records = [Record(None, bytes([65 + index]) * 5000) for index in range(20)]
    plain = build_batch(records)[BATCH_HEADER_SIZE:]
    raw = bytes(cramjam.snappy.compress_raw(plain))
    blocks = b"".join(
        struct.pack(">i", len(block)) + block
        for block in (
            bytes(cramjam.snappy.compress_raw(plain[start : start + 30_000]))
            for start in range(0, len(plain), 30_000)
        )
    )
    for payload in (raw, b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + blocks):
        batch = pack_batch(
            payload,
            record_count=20,
            last_offset_delta=19,
            base_timestamp=-1,
            max_timestamp=-1,
            attributes=COMPRESSION_SNAPPY,
        )
        assert [record.value for record in iterate_records(batch)] == [record.value for record in records]
