"""Produce responses: byte for byte what the schema writes, in every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import kio_response, topic_ids

from wire.apis import APIS, ApiKey
from wire.codec import decode_response
from wire.errors import ErrorCode
from wire.packing import NodeEndpoint
from wire.produce_codec import ProducePartitionResult, ProduceTopicResult, encode_produce_response

VERSIONS = st.integers(APIS[ApiKey.PRODUCE].min_served, APIS[ApiKey.PRODUCE].max_version)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MESSAGES = st.none() | st.text(max_size=20) | st.text("x", min_size=120, max_size=140)

PARTITIONS = st.builds(
    ProducePartitionResult,
    partition=INT32,
    error=st.sampled_from(ErrorCode),
    base_offset=INT64,
    log_append_time=st.just(-1) | st.integers(0, 2**45),
    log_start_offset=INT64,
    error_message=MESSAGES,
    record_errors=st.lists(st.tuples(INT32, MESSAGES), max_size=3),
    leader_id=st.just(-1) | INT32,
    leader_epoch=st.just(-1) | INT32,
)
PLAIN_PARTITIONS = st.builds(ProducePartitionResult, INT32, st.just(ErrorCode.none), INT64)
TOPICS = st.builds(
    ProduceTopicResult, st.text(max_size=20), topic_ids(), st.lists(PARTITIONS | PLAIN_PARTITIONS, max_size=4)
)
ENDPOINTS = st.builds(NodeEndpoint, INT32, st.text(max_size=20), INT32, st.none() | st.text(max_size=5))


def as_fields(result: ProducePartitionResult) -> dict[str, Any]:
    return {
        "index": result.partition,
        "error_code": result.error,
        "base_offset": result.base_offset,
        "log_append_time": result.log_append_time,
        "log_start_offset": result.log_start_offset,
        "error_message": result.error_message,
        "record_errors": [
            {"batch_index": index, "batch_index_error_message": message}
            for index, message in result.record_errors
        ],
        "current_leader": {"leader_id": result.leader_id, "leader_epoch": result.leader_epoch},
    }


@given(
    VERSIONS, INT32, st.lists(TOPICS, max_size=3), st.integers(0, 2**31 - 1), st.lists(ENDPOINTS, max_size=2)
)
def test_byte_for_byte(
    version: int,
    correlation_id: int,
    topics: list[ProduceTopicResult],
    throttle_time_ms: int,
    endpoints: list[NodeEndpoint],
) -> None:
    ours = encode_produce_response(
        version, correlation_id, topics, throttle_time_ms=throttle_time_ms, node_endpoints=endpoints
    )
    theirs = kio_response(
        ApiKey.PRODUCE,
        version,
        correlation_id,
        responses=[
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partition_responses": [as_fields(result) for result in topic.partitions],
            }
            for topic in topics
        ],
        throttle_time=throttle_time_ms,
        node_endpoints=[
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in endpoints
        ],
    )
    assert ours == theirs


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("count", [1, 126, 127, 128, 300])
def test_long_arrays(version: int, count: int) -> None:
    topics = [
        ProduceTopicResult(f"topic {index}", None, [ProducePartitionResult(p) for p in range(count)])
        for index in range(3)
    ]
    frame = encode_produce_response(version, 1, topics)
    correlation_id, message = decode_response(ApiKey.PRODUCE, version, frame[4:])
    assert correlation_id == 1
    assert [len(topic.partition_responses) for topic in message.responses] == [count] * 3
    assert [result.index for result in message.responses[2].partition_responses] == list(range(count))


def test_a_name_no_string_can_hold() -> None:
    with pytest.raises(ValueError, match="40000 bytes"):
        encode_produce_response(3, 1, [ProduceTopicResult("n" * 40_000, None, [])])
