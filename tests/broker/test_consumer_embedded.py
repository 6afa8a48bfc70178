"""The messages inside JoinGroup and SyncGroup, against kio's: read, written, and refused when they are none."""

from __future__ import annotations

import importlib
import struct
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from broker.groups.consumer.embedded import (
    MalformedProtocol,
    read_assignment,
    read_subscription,
    write_assignment,
)

names = st.text("abc.-_é", min_size=1, max_size=8)
shares = st.dictionaries(names, st.frozensets(st.integers(0, 1_000), max_size=5), max_size=4)


def schema(message: str, version: int) -> Any:
    return importlib.import_module(f"kio.schema.consumer_protocol_{message}.v{version}.data")


def encode(version: int, entity: Any) -> bytes:
    out = BytesIO()
    entity_writer(type(entity))(out, entity)
    return struct.pack(">h", version) + out.getvalue()


def listed(module: Any, partitions: dict[str, frozenset[int]]) -> tuple[Any, ...]:
    return tuple(
        module.TopicPartition(topic=name, partitions=tuple(numbers)) for name, numbers in partitions.items()
    )


@given(
    version=st.integers(0, 3),
    topics=st.frozensets(names, max_size=4),
    owned=shares,
    user_data=st.none() | st.binary(max_size=9),
    rack=st.none() | names,
)
def test_subscriptions(
    version: int,
    topics: frozenset[str],
    owned: dict[str, frozenset[int]],
    user_data: bytes | None,
    rack: str | None,
) -> None:
    module = schema("subscription", version)
    fields: dict[str, Any] = {"topics": tuple(topics), "user_data": user_data}
    if version >= 1:
        fields["owned_partitions"] = listed(module, owned)
    if version >= 2:
        fields["generation_id"] = 7
    if version >= 3:
        fields["rack_id"] = rack
    read = read_subscription(encode(version, module.ConsumerProtocolSubscription(**fields)))
    assert (read.version, read.topics) == (version, topics)
    assert read.owned == (owned if version >= 1 else {})
    assert read.rack_id == (rack if version >= 3 else None)


@given(version=st.integers(0, 3), partitions=shares, user_data=st.none() | st.binary(max_size=9))
def test_assignments(version: int, partitions: dict[str, frozenset[int]], user_data: bytes | None) -> None:
    module = schema("assignment", version)
    entity = module.ConsumerProtocolAssignment(
        assigned_partitions=listed(module, partitions), user_data=user_data
    )
    assert read_assignment(encode(version, entity)) == (partitions, user_data or b"")


@given(version=st.integers(0, 3), partitions=shares)
def test_assignments_that_are_written(version: int, partitions: dict[str, frozenset[int]]) -> None:
    data = write_assignment(version, partitions)
    assert struct.unpack_from(">h", data) == (version,)
    read, size = entity_reader(schema("assignment", version).ConsumerProtocolAssignment)(data, 2)
    assert size == len(data) - 2
    assert {each.topic: frozenset(each.partitions) for each in read.assigned_partitions} == partitions
    assert read.user_data is None


def test_versions_of_the_future_are_read_as_the_last_one_known() -> None:
    module = schema("subscription", 3)
    entity = module.ConsumerProtocolSubscription(topics=("a",), user_data=None, owned_partitions=())
    read = read_subscription(encode(9, entity) + b"more")
    assert (read.version, read.topics) == (3, frozenset({"a"}))
    assert write_assignment(9, {})[:2] == b"\0\3"


def test_a_topic_that_is_named_twice() -> None:
    twice = b"\0\1" + struct.pack(">i", 2) + 2 * (b"\0\1a" + struct.pack(">ii", 1, 5)) + struct.pack(">i", -1)
    assert read_assignment(twice) == ({"a": frozenset({5})}, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\xff\xff" + bytes(20),
        b"\0\0" + struct.pack(">i", -1) + bytes(9),
        b"\0\0" + struct.pack(">i", 1 << 30) + bytes(9),
        b"\0\0" + struct.pack(">ih", 1, -1) + bytes(9),
        b"\0\0" + struct.pack(">ih", 1, -2) + bytes(9),
        b"\0\0" + struct.pack(">ih", 1, 2) + b"\xff\xfe" + bytes(9),
        b"\0\0" + struct.pack(">ii", 0, -2),
    ],
)
def test_what_is_none(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        with pytest.raises(MalformedProtocol):
            read(data)


@given(data=st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        try:
            read(data)
        except MalformedProtocol:
            continue
