"""What compaction reads is what `wire.records` reads, and nothing malformed passes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.compaction_records import decode
from wire.batch import COMPRESSION_NONE, COMPRESSION_ZSTD, LOG_APPEND_TIME_BIT, pack_batch
from wire.compression import compress
from wire.errors import ErrorCode, KafkaError
from wire.records import DEFAULT_MAX_BYTES, Record, build_batch, iterate_records, write_varint

BYTES = st.none() | st.binary(max_size=100)
HEADERS = st.lists(st.tuples(st.text(max_size=8), BYTES), max_size=3).map(tuple)
TIMESTAMPS = st.integers(-1, 2**42) | st.integers(2**60, 2**61)
RECORDS = st.lists(st.builds(Record, BYTES, BYTES, HEADERS, TIMESTAMPS), max_size=20)


def same(records: object) -> list[Record]:
    return [record._replace(headers=tuple(record.headers)) for record in records]  # type: ignore[attr-defined]


@given(RECORDS, st.integers(COMPRESSION_NONE, COMPRESSION_ZSTD), st.integers(0, 2**60), st.booleans())
def test_the_records_of_every_batch_are_read_alike(
    records: list[Record], compression: int, base_offset: int, log_append_time: bool
) -> None:
    batch = build_batch(
        records,
        compression=compression,
        base_offset=base_offset,
        attributes=LOG_APPEND_TIME_BIT if log_append_time else 0,
        producer_id=7,
        producer_epoch=1,
        base_sequence=3,
    )
    assert same(decode(batch)) == same(iterate_records(batch))


def test_the_gaps_of_an_earlier_compaction_stay() -> None:
    records = [Record(b"a", b"1", (), 5, 12), Record(b"b", None, (), 6, 17)]
    batch = build_batch(records, base_offset=10, keep_offsets=True, last_offset=19)
    assert same(decode(batch)) == records


def record(body: bytes) -> bytes:
    out = bytearray()
    write_varint(out, len(body))
    return bytes(out) + body


WHOLE = record(b"\x00\x00\x00\x02k\x02v\x00")
"""Attributes, timestamp delta 0, offset delta 0, a key and a value of one byte, no headers."""


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        pytest.param(b"", 1, id="nothing"),
        pytest.param(WHOLE[:-1], 1, id="cut off"),
        pytest.param(WHOLE + b"\x00", 1, id="bytes left over"),
        pytest.param(WHOLE, 2, id="fewer records than claimed"),
        pytest.param(WHOLE + WHOLE, 2, id="an offset twice"),
        pytest.param(record(b"\x00\x00\x04\x02k\x02v\x00"), 1, id="an offset beyond the last"),
        pytest.param(record(b"\x00\x00\x01\x02k\x02v\x00"), 1, id="an offset before the first"),
        pytest.param(record(b"\x00\x00\x00\x7ek\x02v\x00"), 1, id="a key longer than the record"),
        pytest.param(record(b"\x00\x00\x00\x02k\x02v\x01"), 1, id="a negative number of headers"),
        pytest.param(record(b"\x00\x00\x00\x02k\x02v\x02\x01\x00"), 1, id="a header without a name"),
        pytest.param(record(b"\x00\x00\x00\x02k\x02v\x02\x02\xff\x00"), 1, id="a header that is no text"),
    ],
)
@pytest.mark.parametrize("compression", [COMPRESSION_NONE, COMPRESSION_ZSTD])
def test_what_is_malformed_is_an_error(payload: bytes, count: int, compression: int) -> None:
    batch = pack_batch(
        compress(compression, payload) if compression else payload,
        record_count=count,
        attributes=compression,
        last_offset_delta=1,
        base_timestamp=0,
        max_timestamp=0,
    )
    with pytest.raises(KafkaError) as caught:
        list(decode(batch))
    assert caught.value.code is ErrorCode.corrupt_message


def test_a_bomb_is_an_error() -> None:
    batch = pack_batch(
        compress(COMPRESSION_ZSTD, bytes(DEFAULT_MAX_BYTES + 1)),
        record_count=1,
        attributes=COMPRESSION_ZSTD,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
    )
    with pytest.raises(KafkaError) as caught:
        list(decode(batch))
    assert caught.value.code is ErrorCode.corrupt_message


def test_the_broker_itself_loads_no_client() -> None:
    """A client's library would cost every broker its start and its memory: only the worker has use for it."""
    program = "import broker.serve, broker.node, sys; print('aiokafka' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
