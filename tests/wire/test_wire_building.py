"""Building messages: one call for every version."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.apis import ApiKey
from wire.building import build, build_request, timestamp_ms, to_ms
from wire.errors import ErrorCode
from wire.schema import UnknownMessage

TOPIC_ID = UUID(int=5)


@pytest.mark.parametrize("version", range(14))
def test_one_call_builds_every_version(version: int) -> None:
    message = build(
        ApiKey.METADATA,
        version,
        None,
        throttle_time=12,
        cluster_id="c",
        controller_id=1,
        brokers=[{"node_id": 1, "host": "h", "port": 9092, "rack": None}],
        topics=[
            build(
                ApiKey.METADATA,
                version,
                "MetadataResponseTopic",
                error_code=3,
                name="t",
                topic_id=TOPIC_ID,
                partitions=[{"partition_index": 0, "leader_id": 1, "leader_epoch": 4, "replica_nodes": [1]}],
            )
        ],
    )
    (broker,) = message.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "h", 9092)
    (topic,) = message.topics
    assert topic.error_code is ErrorCode.unknown_topic_or_partition
    assert topic.name == "t"
    (partition,) = topic.partitions
    assert partition.replica_nodes == (1,)
    assert partition.isr_nodes == ()
    assert hasattr(message, "throttle_time") == (version >= 3)
    assert hasattr(message, "cluster_id") == (version >= 2)
    assert hasattr(topic, "topic_id") == (version >= 10)
    assert hasattr(partition, "leader_epoch") == (version >= 7)
    if version >= 3:
        assert message.throttle_time == timedelta(milliseconds=12)
    if version >= 10:
        assert topic.topic_id == TOPIC_ID


def test_a_field_no_version_has_is_a_mistake() -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match="'throtle_time' in any version"):
            build(ApiKey.METADATA, 1, None, throtle_time=0)
    with pytest.raises(TypeError, match="MetadataResponseTopic has no field 'topic'"):
        build(ApiKey.METADATA, 1, None, topics=[{"topic": "t"}])


def test_a_field_only_middle_versions_have_is_dropped_elsewhere() -> None:
    """Metadata 8 to 10 had the cluster's authorized operations."""
    fields = {"cluster_authorized_operations": 1}
    assert build(ApiKey.METADATA, 10, None, **fields).cluster_authorized_operations == 1
    assert not hasattr(build(ApiKey.METADATA, 11, None, **fields), "cluster_authorized_operations")
    assert not hasattr(build(ApiKey.METADATA, 7, None, **fields), "cluster_authorized_operations")


def test_a_message_this_version_lacks() -> None:
    assert build(ApiKey.FIND_COORDINATOR, 4, "Coordinator", key="k").key == "k"
    with pytest.raises(UnknownMessage):
        build(ApiKey.FIND_COORDINATOR, 3, "Coordinator", key="k")


def test_the_schema_s_own_defaults_hold() -> None:
    end = build(ApiKey.END_TXN, 5, None)
    assert (end.producer_id, end.producer_epoch, end.error_code) == (-1, -1, ErrorCode.none)
    assert end.throttle_time == timedelta(0)
    commit = build_request(ApiKey.OFFSET_COMMIT, 9, None)
    assert (commit.group_id, commit.group_instance_id, commit.topics) == ("", None, ())
    fetched = build(ApiKey.FETCH, 12, "PartitionData", aborted_transactions=None)
    assert (fetched.records, fetched.aborted_transactions, fetched.current_leader.leader_id) == (
        None,
        None,
        -1,
    )


def test_times_are_accepted_in_milliseconds() -> None:
    response = build(ApiKey.PRODUCE, 9, "PartitionProduceResponse", log_append_time=1_700_000_000_123)
    assert response.log_append_time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert timestamp_ms(response.log_append_time) == 1_700_000_000_123
    for none in (None, -1):
        assert (
            build(ApiKey.PRODUCE, 9, "PartitionProduceResponse", log_append_time=none).log_append_time is None
        )
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert (
        build(ApiKey.PRODUCE, 9, "PartitionProduceResponse", log_append_time=moment).log_append_time is moment
    )
    request = build_request(ApiKey.CREATE_TOPICS, 5, None, timeout=timedelta(seconds=3))
    assert to_ms(request.timeout) == 3000


@given(st.integers(-(2**31), 2**31 - 1))
def test_durations_round_trip(duration_ms: int) -> None:
    assert to_ms(build(ApiKey.END_TXN, 1, None, throttle_time=duration_ms).throttle_time) == duration_ms


def test_a_nested_struct_from_a_dict() -> None:
    response = build(
        ApiKey.PRODUCE, 10, "PartitionProduceResponse", current_leader={"leader_id": 3, "leader_epoch": 9}
    )
    assert (response.current_leader.leader_id, response.current_leader.leader_epoch) == (3, 9)


def test_null_arrays_stay_null() -> None:
    assert build_request(ApiKey.METADATA, 9, None, topics=None).topics is None
    assert build_request(ApiKey.METADATA, 9, None, topics=iter([{"name": "a"}])).topics[0].name == "a"
    fetched = build(ApiKey.FETCH, 12, "PartitionData", aborted_transactions=None)
    assert fetched.aborted_transactions is None


def test_names_of_fields_do_not_clash_with_those_of_arguments() -> None:
    assert build_request(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name="n").name == "n"
    versions = build(ApiKey.API_VERSIONS, 0, "ApiVersion", api_key=3, min_version=0, max_version=9)
    assert (versions.api_key, versions.max_version) == (3, 9)
