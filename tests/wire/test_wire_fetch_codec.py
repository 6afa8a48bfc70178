"""Fetch responses: byte for byte what the schema writes, in every version, with the records passed through."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer
from wire_strategies import kio_response, topic_ids

from wire.apis import APIS, ApiKey
from wire.codec import decode_response
from wire.errors import ErrorCode
from wire.fetch_codec import FetchPartitionResult, FetchTopicResult, encode_fetch_response
from wire.packing import NodeEndpoint

VERSIONS = st.integers(APIS[ApiKey.FETCH].min_served, APIS[ApiKey.FETCH].max_version)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
BUFFERS = st.binary(max_size=100) | st.binary(max_size=100).map(memoryview) | st.just(bytes(20_000))

PARTITIONS = st.builds(
    FetchPartitionResult,
    partition=INT32,
    error=st.sampled_from(ErrorCode),
    high_watermark=INT64,
    last_stable_offset=INT64,
    log_start_offset=INT64,
    preferred_read_replica=INT32,
    records=st.lists(BUFFERS, max_size=3),
    leader_id=st.just(-1) | INT32,
    leader_epoch=st.just(-1) | INT32,
)
EMPTY_PARTITIONS = st.builds(FetchPartitionResult, INT32, st.just(ErrorCode.none), INT64, INT64, INT64)
TOPICS = st.builds(
    FetchTopicResult, st.text(max_size=20), topic_ids(), st.lists(PARTITIONS | EMPTY_PARTITIONS, max_size=4)
)
ENDPOINTS = st.builds(NodeEndpoint, INT32, st.text(max_size=20), INT32, st.none() | st.text(max_size=5))


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(bytes(memoryview(buffer)) for buffer in buffers)


@given(
    VERSIONS,
    INT32,
    st.lists(TOPICS, max_size=3),
    st.integers(0, 2**31 - 1),
    st.sampled_from(ErrorCode),
    INT32,
    st.lists(ENDPOINTS, max_size=2),
)
def test_byte_for_byte(
    version: int,
    correlation_id: int,
    topics: list[FetchTopicResult],
    throttle_time_ms: int,
    error: ErrorCode,
    session_id: int,
    endpoints: list[NodeEndpoint],
) -> None:
    ours = encode_fetch_response(
        version,
        correlation_id,
        topics,
        throttle_time_ms=throttle_time_ms,
        error=error,
        session_id=session_id,
        node_endpoints=endpoints,
    )
    theirs = kio_response(
        ApiKey.FETCH,
        version,
        correlation_id,
        throttle_time=throttle_time_ms,
        error_code=error,
        session_id=session_id,
        responses=[
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": result.partition,
                        "error_code": result.error,
                        "high_watermark": result.high_watermark,
                        "last_stable_offset": result.last_stable_offset,
                        "log_start_offset": result.log_start_offset,
                        "aborted_transactions": (),
                        "preferred_read_replica": result.preferred_read_replica,
                        "records": joined(list(result.records)),
                        "current_leader": {
                            "leader_id": result.leader_id,
                            "leader_epoch": result.leader_epoch,
                        },
                    }
                    for result in topic.partitions
                ],
            }
            for topic in topics
        ],
        node_endpoints=[
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in endpoints
        ],
    )
    assert joined(ours) == theirs
    assert all(len(memoryview(buffer)) for buffer in ours if not isinstance(buffer, bytes | memoryview))


@pytest.mark.parametrize("version", range(4, 19))
def test_records_are_passed_through_not_copied(version: int) -> None:
    records = [memoryview(b"a" * 1000), memoryview(b"b" * 2000), memoryview(b"c" * 3000)]
    topics = [
        FetchTopicResult(
            "t",
            None,
            [
                FetchPartitionResult(0),
                FetchPartitionResult(1, records=records[:2]),
                FetchPartitionResult(2),
                FetchPartitionResult(3, records=records[2:]),
            ],
        )
    ]
    buffers = encode_fetch_response(version, 1, topics)
    assert [buffer for buffer in buffers if isinstance(buffer, memoryview)] == records
    assert all(any(buffer is record for buffer in buffers) for record in records)
    # Head, two records, what lies between, one record, and what the version has behind it.
    assert len(buffers) == (6 if version >= 12 else 5)


@pytest.mark.parametrize("version", range(4, 19))
def test_empty_answers_are_one_buffer_with_empty_records(version: int) -> None:
    topics = [FetchTopicResult("t", None, [FetchPartitionResult(index) for index in range(200)])]
    (frame,) = encode_fetch_response(version, 3, topics)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 3)
    _, message = decode_response(ApiKey.FETCH, version, bytes(frame)[4:])
    (topic,) = message.responses
    assert [partition.partition_index for partition in topic.partitions] == list(range(200))
    for partition in topic.partitions:
        assert partition.records == b"", "librdkafka fails on null"
        assert partition.aborted_transactions == ()


def test_no_topics_at_all() -> None:
    for version in range(4, 19):
        assert joined(encode_fetch_response(version, 1, [])) == kio_response(ApiKey.FETCH, version, 1)
