"""The guard: what it must pass, what it must refuse before the decoder sees it, and what it cuts out."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_strategies import encode_with_extra_tags, entities, served_versions

from wire import guard
from wire.apis import APIS, ApiKey
from wire.codec import MalformedRequest, build_request, decode_request, encode_request
from wire.guard import guard_for
from wire.guard_produce import produce_guard
from wire.schema import fields_of, message_class

FLEXIBLE = [api for api in served_versions() if APIS[api[0]].is_flexible(api[1])]
PRODUCE_VERSIONS = range(3, 14)
HUGE_LEGACY = [b"\x7f\xff\xff\xff", b"\x00\x10\x00\x00"]
HUGE_COMPACT = [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\x7f"]
MUTATIONS = [
    *HUGE_LEGACY,
    *HUGE_COMPACT,
    b"",
    b"\0",
    b"\xff",
    b"\x80\0",
    b"\xff\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xfe",
]


def body_of(api_key: int, version: int, message: Any) -> bytes:
    header_size = 4 + 8 + 2 + APIS[api_key].is_flexible(version)
    return encode_request(api_key, version, 0, None, message)[header_size:]


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_requests_are_refused_or_decoded_whole(data: st.DataObject) -> None:
    """Counts and lengths overwritten, bytes inserted and cut: an error, or a message; never the process' end."""
    api_key, version = data.draw(st.sampled_from(served_versions()))
    message = data.draw(entities(message_class(api_key, version, "request")))
    body = body_of(api_key, version, message)
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(30):
        damaged = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            start = chance.randrange(len(damaged) + 1)
            damaged[start : start + chance.randint(0, 5)] = chance.choice(MUTATIONS)
        try:
            decode_request(api_key, version, bytes(damaged))
        except MalformedRequest as error:
            reason = str(error)
        else:
            reason = ""
        assert "bytes read of" not in reason, "guard and decoder disagree on the layout"


@given(st.sampled_from(served_versions()), st.binary(max_size=80))
@settings(max_examples=300)
def test_random_bytes_are_refused_or_decoded_whole(api: tuple[int, int], body: bytes) -> None:
    try:
        decode_request(*api, body)
    except MalformedRequest as error:
        reason = str(error)
    else:
        reason = ""
    assert "bytes read of" not in reason


@pytest.mark.parametrize(
    ("api_key", "version", "before", "after"),
    [
        (ApiKey.METADATA, 1, b"", b""),
        (ApiKey.METADATA, 9, b"", b"\0\0\0\0"),
        (ApiKey.PRODUCE, 3, b"\xff\xff" + bytes(6), b""),
        (ApiKey.PRODUCE, 9, bytes(7), b""),
        (ApiKey.PRODUCE, 13, bytes(7) + b"\x02" + bytes(16), b"\0\0"),
        (ApiKey.FETCH, 4, bytes(17), b""),
        (ApiKey.FETCH, 12, bytes(25), b"\x01\x01\0"),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 0, b"\0\0" + bytes(10) + b"\0\0\0\x01\0\0", b""),
        (ApiKey.DELETE_TOPICS, 1, b"", b"\0\0\0\0"),
        (ApiKey.OFFSET_FETCH, 8, b"", b"\0\0"),
    ],
)
def test_a_hostile_count_allocates_nothing(api_key: int, version: int, before: bytes, after: bytes) -> None:
    counts = HUGE_COMPACT if APIS[api_key].is_flexible(version) else HUGE_LEGACY
    guard_for(message_class(api_key, version, "request"))
    tracemalloc.start()
    try:
        for count in counts:
            with pytest.raises(MalformedRequest):
                decode_request(api_key, version, before + count + after)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000_000


NO_NULL_ARRAYS = [
    (key, version, field.name)
    for key, version in served_versions()
    for field in fields_of(message_class(key, version, "request"))
    if field.is_array and not field.nullable and field.tag is None
]


@pytest.mark.parametrize(("api_key", "version", "name"), NO_NULL_ARRAYS)
def test_null_is_no_array_where_there_must_be_one(api_key: int, version: int, name: str) -> None:
    """Handlers walk over it. Found by fuzzing: kio reads null for any array."""
    body = bytearray(body_of(api_key, version, build_request(api_key, version, None, **{name: ()})))
    assert getattr(decode_request(api_key, version, bytes(body)), name) == ()
    null, empty = (b"\0", b"\1") if APIS[api_key].is_flexible(version) else (b"\xff" * 4, bytes(4))
    refused = 0
    for at in range(len(body)):
        if body[at : at + len(empty)] == empty:
            damaged = bytes(body[:at] + null + body[at + len(empty) :])
            try:
                assert getattr(decode_request(api_key, version, damaged), name) == ()
            except MalformedRequest:
                refused += 1
    assert refused


def test_many_small_items_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item of three bytes becomes an object of a hundred: the frame limit alone would not bound memory."""
    monkeypatch.setattr(guard, "MAX_ITEMS", 1000)
    body = struct.pack(">i", 1000) + b"\0\0" * 1000
    assert len(decode_request(ApiKey.METADATA, 0, body).topics) == 1000
    with pytest.raises(MalformedRequest, match="1001 items"):
        decode_request(ApiKey.METADATA, 0, struct.pack(">i", 1001) + b"\0\0" * 1001)
    # The limit is for the whole message, not for each array.
    topics = b"".join(b"\0\0" + struct.pack(">i", 600) + bytes(2400) for _ in range(2))
    with pytest.raises(MalformedRequest, match="600 items"):
        decode_request(ApiKey.ADD_PARTITIONS_TO_TXN, 0, b"\0\0" + bytes(10) + struct.pack(">i", 2) + topics)


def test_many_tagged_fields_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_ITEMS", 100)
    with pytest.raises(MalformedRequest, match="101 tagged fields"):
        decode_request(ApiKey.METADATA, 9, bytes(4) + b"\x65" + b"\x09\0" * 101)


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_unknown_tagged_fields_are_ignored(data: st.DataObject) -> None:
    """A client of tomorrow may add tagged fields to a version of today (KIP-482)."""
    api_key, version = data.draw(st.sampled_from(FLEXIBLE))
    message = data.draw(entities(message_class(api_key, version, "request")))
    body = body_of(api_key, version, message)
    assert encode_with_extra_tags(message, []) == body, "the test's own encoder is wrong"
    tags = data.draw(st.lists(st.integers(100, 100_000), min_size=1, max_size=3, unique=True))
    extra = [(tag, data.draw(st.binary(max_size=200))) for tag in sorted(tags)]
    assert decode_request(api_key, version, encode_with_extra_tags(message, extra)) == message


def test_known_tagged_fields_must_have_the_size_they_claim() -> None:
    fetch = struct.pack(">iiibii", 1, 1, 1, 0, 0, -1) + b"\x01\x01\x01"
    assert decode_request(ApiKey.FETCH, 17, fetch + b"\x01\x00\x03\x03ab").cluster_id == "ab"
    for tags in (b"\x01\x00\x02\x03ab", b"\x01\x00\x04\x03abx", b"\x01\x00\x05\x03ab"):
        with pytest.raises(MalformedRequest, match="tagged field 0"):
            decode_request(ApiKey.FETCH, 17, fetch + tags)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_the_shortcut_for_produce_agrees_with_the_general_guard(data: st.DataObject) -> None:
    """Valid and damaged bodies alike: what the shortcut passes without asking, the general guard passes too."""
    version = data.draw(st.sampled_from(PRODUCE_VERSIONS))
    cls = message_class(ApiKey.PRODUCE, version, "request")
    general = guard_for(cls)
    asked = []

    def general_spy(body: guard.Body) -> guard.Body:
        asked.append(body)
        return general(body)

    shortcut = produce_guard(version, general_spy)
    body = body_of(ApiKey.PRODUCE, version, data.draw(entities(cls)))
    shortcut(body)
    assert not asked, "a plain request did not take the shortcut"
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    for _ in range(30):
        damaged = bytearray(body)
        start = chance.randrange(len(damaged) + 1)
        damaged[start : start + chance.randint(0, 5)] = chance.choice(MUTATIONS)
        asked.clear()
        try:
            shortcut(bytes(damaged))
        except MalformedRequest:
            assert asked
            continue
        if not asked:
            assert general(bytes(damaged)) == damaged


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("topics", [1, 126, 127, 200])
def test_large_produce_requests_take_the_long_way(version: int, topics: int) -> None:
    message = build_request(
        ApiKey.PRODUCE,
        version,
        None,
        acks=-1,
        timeout=1000,
        transactional_id="t" * 200,
        topic_data=[
            {
                "name": "n" * (index % 200),
                "partition_data": [{"index": p, "records": b"r" * 20_000} for p in range(2)],
            }
            for index in range(topics)
        ],
    )
    assert decode_request(ApiKey.PRODUCE, version, body_of(ApiKey.PRODUCE, version, message)) == message
