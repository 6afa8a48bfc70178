"""The two messages written and read by struct, against the generated schemas."""

import struct

import pytest

from pyspark_sealog.bulk_frames import FETCH_VERSION, PRODUCE_VERSION, fetched, produce_request
from wire import codec
from wire.apis import ApiKey
from wire.errors import ErrorCode


def test_a_produce_request_is_that_of_the_schema() -> None:
    batches = [
        ("a", 0, (b"head", b"x" * 300)),
        ("a", 7, (b"h", memoryview(b""))),
        ("b\u00e9", 1, (b"", b"yz")),
    ]
    entity = codec.build_request(
        ApiKey.PRODUCE,
        PRODUCE_VERSION,
        None,
        transactional_id="t",
        acks=-1,
        timeout=30_000,
        topic_data=[
            {
                "name": "a",
                "partition_data": [
                    {"index": 0, "records": b"head" + b"x" * 300},
                    {"index": 7, "records": b"h"},
                ],
            },
            {"name": "b\u00e9", "partition_data": [{"index": 1, "records": b"yz"}]},
        ],
    )
    expected = codec.encode_request(ApiKey.PRODUCE, PRODUCE_VERSION, 5, "client", entity)
    assert b"".join(produce_request(5, "client", "t", 30_000, batches)) == expected


def answer(
    error: ErrorCode = ErrorCode.none, records: bytes | None = b"r" * 500, aborted: int = 0
) -> memoryview:
    partition = {
        "partition_index": 3,
        "error_code": error,
        "high_watermark": 9,
        "last_stable_offset": 9,
        "log_start_offset": 0,
        "aborted_transactions": [{"producer_id": n, "first_offset": n} for n in range(aborted)],
        "preferred_read_replica": -1,
        "records": records,
    }
    frame = codec.respond(
        ApiKey.FETCH,
        FETCH_VERSION,
        5,
        throttle_time=0,
        error_code=ErrorCode.none,
        session_id=0,
        responses=[{"topic": "a topic", "partitions": [partition]}],
    )
    return memoryview(frame)[4:]


@pytest.mark.parametrize("aborted", [0, 3])
def test_a_fetch_answer_of_the_schema_is_read(aborted: int) -> None:
    assert fetched(answer(aborted=aborted)) == (ErrorCode.none, b"r" * 500)
    assert fetched(answer(records=None)) == (ErrorCode.none, b"")
    error, records = fetched(answer(ErrorCode.offset_out_of_range, b""))
    assert (error, bytes(records)) == (ErrorCode.offset_out_of_range, b"")


def test_an_answer_cut_off_anywhere_is_an_error_and_never_fewer_records() -> None:
    frame = answer(aborted=1, records=b"r" * 20)
    whole = fetched(frame)
    assert struct.unpack_from(">i", frame) == (5,)
    for size in range(4, len(frame)):
        try:
            assert fetched(frame[:size]) == whole, "only what follows the records is missing"
        except OSError:
            assert size < len(frame)
