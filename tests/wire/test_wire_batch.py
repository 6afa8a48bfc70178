"""Batch headers: what passes, what is refused and with which code, and what may be rewritten."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from wire.batch import (
    BATCH_HEADER_SIZE,
    COMPRESSION_GZIP,
    COMPRESSION_NONE,
    COMPRESSION_ZSTD,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    assign,
    batch_crc,
    check_crc,
    control_batch,
    pack_batch,
    parse_header,
    validate_produced,
    with_append_time,
)
from wire.errors import ErrorCode, KafkaError
from wire.records import Record, build_batch, iterate_records

THREE = [Record(b"a", b"1", (), 100), Record(None, b"2", (), 90), Record(b"c", None, (), 110)]


def refused(records: bytes | None, **options: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        validate_produced(records, **options)
    return caught.value.code


def with_crc(batch: bytearray) -> bytes:
    """Makes the CRC right again after a field was changed."""
    struct.pack_into(">I", batch, 17, batch_crc(batch))
    return bytes(batch)


def changed(field_format: str, position: int, value: int, batch: bytes | None = None) -> bytes:
    out = bytearray(build_batch(THREE) if batch is None else batch)
    struct.pack_into(field_format, out, position, value)
    return with_crc(out)


def test_header_fields_are_read_where_kafka_has_them() -> None:
    batch = build_batch(
        THREE,
        base_offset=1 << 40,
        leader_epoch=7,
        producer_id=1 << 50,
        producer_epoch=12,
        base_sequence=99,
        attributes=TRANSACTIONAL_BIT,
        compression=COMPRESSION_GZIP,
    )
    header = parse_header(b"xyz" + batch, 3)
    assert header == BatchHeader(
        base_offset=1 << 40,
        size_bytes=len(batch),
        leader_epoch=7,
        magic=2,
        crc=batch_crc(batch),
        attributes=TRANSACTIONAL_BIT | COMPRESSION_GZIP,
        last_offset_delta=2,
        base_timestamp=100,
        max_timestamp=110,
        producer_id=1 << 50,
        producer_epoch=12,
        base_sequence=99,
        record_count=3,
    )
    assert header.compression == COMPRESSION_GZIP
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_log_append_time
    assert header.last_offset == (1 << 40) + 2
    assert header.last_sequence == 101


def test_sequences_wrap_to_zero() -> None:
    batch = build_batch(THREE, producer_id=1, producer_epoch=0, base_sequence=(1 << 31) - 2)
    assert parse_header(batch).last_sequence == 0
    assert parse_header(build_batch(THREE)).last_sequence == -1


def test_the_header_alone_is_enough() -> None:
    batch = build_batch(THREE)
    assert parse_header(batch[:BATCH_HEADER_SIZE]) == parse_header(batch)


@pytest.mark.parametrize("size", range(BATCH_HEADER_SIZE))
def test_a_short_header_is_corrupt(size: int) -> None:
    with pytest.raises(KafkaError) as caught:
        parse_header(build_batch(THREE)[:size])
    assert caught.value.code is ErrorCode.corrupt_message


@pytest.mark.parametrize(
    ("magic", "code"),
    [
        (0, ErrorCode.unsupported_for_message_format),
        (1, ErrorCode.unsupported_for_message_format),
        (3, ErrorCode.corrupt_message),
        (-1, ErrorCode.corrupt_message),
    ],
)
@pytest.mark.parametrize("size", [17, 40, 61])
def test_other_formats_are_told_apart(magic: int, code: ErrorCode, size: int) -> None:
    batch = changed(">b", 16, magic)[:size]
    with pytest.raises(KafkaError) as caught:
        parse_header(batch)
    assert caught.value.code is code


@pytest.mark.parametrize(
    "batch",
    [
        changed(">i", 8, 48),
        changed(">i", 8, -1),
        changed(">i", 23, -1),
        changed(">i", 57, -1),
        changed(">i", 57, 4),
    ],
    ids=["length below header", "negative length", "negative delta", "negative count", "count above range"],
)
def test_impossible_headers_are_corrupt(batch: bytes) -> None:
    with pytest.raises(KafkaError) as caught:
        parse_header(batch)
    assert caught.value.code is ErrorCode.corrupt_message


def test_a_compacted_batch_may_have_gaps() -> None:
    batch = build_batch([THREE[0]._replace(offset=3)], keep_offsets=True, base_offset=1, last_offset=9)
    header = parse_header(batch)
    assert (header.record_count, header.last_offset) == (1, 9)
    assert [record.offset for record in iterate_records(batch)] == [3]


@given(st.binary(max_size=200))
def test_no_bytes_make_the_header_parser_fail_otherwise(data: bytes) -> None:
    try:
        header = parse_header(data)
    except KafkaError:
        return
    assert header.size_bytes >= BATCH_HEADER_SIZE


def test_a_good_batch_passes() -> None:
    batch = build_batch(THREE, producer_id=4, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_BIT)
    assert validate_produced(batch) == parse_header(batch)
    assert validate_produced(memoryview(batch)) == parse_header(batch)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.invalid_record),
        (b"", ErrorCode.invalid_record),
        (build_batch(THREE) * 2, ErrorCode.invalid_record),
        (build_batch(THREE) + b"x", ErrorCode.invalid_record),
        (build_batch(THREE)[:-1], ErrorCode.corrupt_message),
        (build_batch(THREE)[:-1] + b"x", ErrorCode.corrupt_message),
        (changed(">b", 16, 1), ErrorCode.unsupported_for_message_format),
        (changed(">i", 57, 2), ErrorCode.invalid_record),
        (changed(">i", 23, 3), ErrorCode.invalid_record),
        (build_batch([]), ErrorCode.invalid_record),
        (build_batch(THREE, attributes=CONTROL_BIT), ErrorCode.invalid_record),
        (control_batch(0, 0, 1, 0, 0), ErrorCode.invalid_record),
        (build_batch(THREE, attributes=LOG_APPEND_TIME_BIT), ErrorCode.invalid_timestamp),
        (build_batch(THREE, attributes=TRANSACTIONAL_BIT), ErrorCode.invalid_record),
        (build_batch(THREE, producer_id=1, producer_epoch=0), ErrorCode.invalid_record),
        (build_batch(THREE, producer_id=1, base_sequence=0), ErrorCode.invalid_record),
        (build_batch(THREE, producer_id=-2, producer_epoch=0, base_sequence=0), ErrorCode.invalid_record),
        (changed(">h", 21, 5), ErrorCode.unsupported_compression_type),
    ],
)
def test_what_a_producer_may_not_send(records: bytes | None, code: ErrorCode) -> None:
    assert refused(records) is code


def test_a_count_that_the_bytes_cannot_hold_is_refused() -> None:
    """Otherwise a batch of 61 bytes would move the log's end by two billion offsets."""
    huge = pack_batch(
        b"x" * 20, record_count=1 << 30, last_offset_delta=(1 << 30) - 1, base_timestamp=0, max_timestamp=0
    )
    assert refused(huge) is ErrorCode.invalid_record


def test_the_smallest_records_are_not_refused() -> None:
    assert validate_produced(build_batch([Record(None, None)] * 1000)).record_count == 1000


def test_zstd_is_refused_where_the_version_lacks_it() -> None:
    batch = build_batch(THREE, compression=COMPRESSION_ZSTD)
    assert validate_produced(batch).compression == COMPRESSION_ZSTD
    assert refused(batch, allow_zstd=False) is ErrorCode.unsupported_compression_type


def test_what_is_too_large_is_refused_before_its_crc_is_computed() -> None:
    batch = bytearray(build_batch(THREE))
    assert validate_produced(bytes(batch), max_bytes=len(batch)).record_count == 3
    batch[-1] ^= 1
    assert refused(bytes(batch), max_bytes=len(batch)) is ErrorCode.corrupt_message
    assert refused(bytes(batch), max_bytes=len(batch) - 1) is ErrorCode.message_too_large


@given(st.data())
def test_any_flipped_bit_is_noticed_or_harmless(data: st.DataObject) -> None:
    batch = bytearray(build_batch(THREE))
    bit = data.draw(st.integers(0, len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << bit % 8
    try:
        validate_produced(bytes(batch))
    except KafkaError:
        return
    # Only base offset and leader epoch, which the broker sets anyway, lie outside every check.
    assert bit // 8 in {*range(8), *range(12, 16)}


@given(st.integers(0, 2**63 - 10), st.integers(-1, 2**31 - 1))
def test_assigning_keeps_everything_else(base_offset: int, leader_epoch: int) -> None:
    batch = build_batch(THREE, producer_id=4, producer_epoch=1, base_sequence=0)
    prefix, rest = assign(batch, base_offset, leader_epoch)
    assert len(prefix) == 16
    assert rest.obj is batch, "a copy was made"
    assigned = prefix + rest
    before, after = parse_header(batch), parse_header(assigned)
    assert after == before._replace(base_offset=base_offset, leader_epoch=leader_epoch)
    check_crc(assigned, after)


def test_the_control_batch_is_the_one_clients_were_tried_with() -> None:
    batch = control_batch(offset=77, leader_epoch=3, producer_id=5, producer_epoch=6, timestamp=1234)
    # length, attributes, timestamp delta, offset delta, key (4 bytes), value (6 bytes), no headers
    record = bytes.fromhex("20 00 00 00 08 00000000 0c 0000 00000000 00".replace(" ", ""))
    assert batch[BATCH_HEADER_SIZE:] == record
    header = parse_header(batch)
    check_crc(batch, header)
    assert header.attributes == 0x30
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (77, 0, 1)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch) == (3, 5, 6)
    assert (header.base_timestamp, header.max_timestamp, header.base_sequence) == (1234, 1234, -1)
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert theirs.is_control_batch
    (read,) = list(theirs)
    assert read.abort


def test_errors_say_code_and_message() -> None:
    error = KafkaError(ErrorCode.corrupt_message, "bad")
    assert str(error) == "corrupt_message: bad"
    assert str(KafkaError(ErrorCode.none)) == "none"
    assert error.retriable


@pytest.mark.parametrize("compression", [COMPRESSION_NONE, COMPRESSION_ZSTD])
def test_append_time_is_written_into_a_copy_and_the_crc_holds(compression: int) -> None:
    records = [Record(b"k", b"v%d" % number, timestamp=1_000 + number) for number in range(3)]
    produced = build_batch(records, compression=compression, producer_id=7, producer_epoch=1, base_sequence=5)
    header = parse_header(produced)
    stamped_header, stamped = with_append_time(produced, header, 999_999)
    assert stamped_header == parse_header(stamped)
    assert parse_header(produced) == header, "the original stays"
    assert stamped_header.has_log_append_time
    assert (
        stamped_header._replace(
            attributes=header.attributes, max_timestamp=header.max_timestamp, crc=header.crc
        )
        == header
    )
    read = list(iterate_records(stamped, verify_crc=True))
    assert [record.timestamp for record in read] == [999_999] * 3
    assert [(record.key, record.value) for record in read] == [(r.key, r.value) for r in records]
