"""A connection: pipelined requests, answers in order whatever the order of completion, and its accounts."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.apis import ApiKey
from wire.codec import build_request, decode_request, encode_request
from wire.connection import Connection, ProtocolError, Request, RequestState
from wire.framing import FrameError


def heartbeat(correlation_id: int, member: str = "m", version: int = 0) -> bytes:
    entity = build_request(
        ApiKey.HEARTBEAT, version, None, group_id="g", generation_id=correlation_id, member_id=member
    )
    return encode_request(ApiKey.HEARTBEAT, version, correlation_id, "client", entity)


def joined(buffers: list[bytes]) -> bytes:
    return b"".join(buffers)


def test_a_request_as_it_comes_out() -> None:
    connection = Connection()
    frame = heartbeat(7, version=4)
    (request,) = connection.receive(frame)
    assert request.correlation == 0
    assert (request.api_key, request.api_version) == (ApiKey.HEARTBEAT, 4)
    assert (request.correlation_id, request.client_id, request.header_flexible) == (7, "client", True)
    assert request.size_bytes == len(frame)
    assert request.state is RequestState.WAITING
    assert request.body.readonly
    assert decode_request(ApiKey.HEARTBEAT, 4, request.body).generation_id == 7
    assert "v4" in repr(request)


@given(st.lists(st.integers(0, 10_000), max_size=10), st.integers(1, 6))
def test_any_split_gives_the_same_requests(cuts: list[int], count: int) -> None:
    stream = b"".join(heartbeat(index, "m" * index) for index in range(count))
    edges = [0, *sorted(cut % len(stream) for cut in cuts), len(stream)]
    connection = Connection()
    requests = [
        request for start, stop in pairwise(edges) for request in connection.receive(stream[start:stop])
    ]
    assert [request.correlation_id for request in requests] == list(range(count))
    assert [request.correlation for request in requests] == list(range(count))
    decoded = [decode_request(request.api_key, request.api_version, request.body) for request in requests]
    assert [message.member_id for message in decoded] == ["m" * index for index in range(count)]
    assert connection.buffered_bytes == 0


@given(st.permutations(range(7)), st.sets(st.integers(0, 6)))
def test_answers_leave_in_the_order_of_requests(order: list[int], unanswered: set[int]) -> None:
    """Any order of completion; some requests (acks=0) get no answer at all."""
    connection = Connection()
    requests = connection.receive(b"".join(heartbeat(index) for index in range(7)))
    out = b""
    completed: set[int] = set()
    for index in order:
        answer = None if index in unanswered else [b"<%d" % index, b">"]
        out += joined(connection.complete(requests[index], answer))
        completed.add(index)
        first_open = next((open_ for open_ in range(7) if open_ not in completed), 7)
        ready = [index for index in range(first_open) if index not in unanswered]
        assert out == b"".join(b"<%d>" % index for index in ready), "an answer was late or out of turn"
        assert connection.pending_requests == 7 - first_open
    assert all(request.state is RequestState.SENT for request in requests)


def test_a_lone_unanswered_request_leaves_nothing() -> None:
    connection = Connection()
    (request,) = connection.receive(heartbeat(0))
    assert connection.complete(request, None) == []
    assert (connection.pending_requests, connection.queued_bytes) == (0, 0)


def test_no_request_is_completed_twice() -> None:
    connection = Connection()
    first, second, third = connection.receive(heartbeat(0) + heartbeat(1) + heartbeat(2))
    connection.complete(second, [b"x"])
    with pytest.raises(ValueError, match="does not wait"):
        connection.complete(second, [b"x"])
    connection.complete(first, [b"x"])
    with pytest.raises(ValueError, match="does not wait"):
        connection.complete(first, [b"x"])
    connection.complete(third, None)
    with pytest.raises(ValueError, match="does not wait"):
        connection.complete(third, None)


def test_no_request_is_completed_elsewhere() -> None:
    one, other = Connection(), Connection()
    (mine,) = one.receive(heartbeat(0))
    with pytest.raises(ValueError, match="does not wait"):
        other.complete(mine, [b"x"])
    other.receive(heartbeat(0))
    with pytest.raises(ValueError, match="another connection"):
        other.complete(mine, [b"x"])
    assert one.complete(mine, [b"x"]) == [b"x"]


def test_the_body_is_let_go() -> None:
    connection = Connection()
    first, second = connection.receive(heartbeat(0) + heartbeat(1))
    first.release_body()
    assert len(first.body) == 0
    connection.complete(second, [b"x"])
    assert len(second.body) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from(["receive", "complete", "write"]), st.integers(0, 100)),
        max_size=60,
    )
)
def test_the_accounts_always_add_up(steps: list[tuple[str, int]]) -> None:
    connection = Connection(pause_bytes=300, resume_bytes=100, max_pending_requests=6)
    waiting: list[Request] = []
    unsent: list[Request] = []
    held = 0
    handed_out = 0
    for what, number in steps:
        if what == "receive":
            (request,) = connection.receive(heartbeat(number, "m" * number))
            waiting.append(request)
            unsent.append(request)
        elif what == "complete" and waiting:
            request = waiting.pop(number % len(waiting))
            answer = None if number % 3 == 0 else [b"a" * number, memoryview(b"b" * 5)]
            held += 0 if answer is None else number + 5
            out = len(joined([bytes(buffer) for buffer in connection.complete(request, answer)]))
            held -= out
            handed_out += out
        elif what == "write" and handed_out:
            size = number % handed_out + 1
            connection.note_written(size)
            handed_out -= size
        unsent = [request for request in unsent if request.state is not RequestState.SENT]
        queued = sum(request.size_bytes for request in unsent) + held + handed_out
        assert connection.queued_bytes == queued
        assert connection.pending_requests == len(unsent)
        assert connection.should_pause == (queued > 300 or len(unsent) >= 6)
        assert connection.may_resume == (queued <= 100 and len(unsent) <= 3)


def test_more_written_than_handed_out_is_a_bug() -> None:
    connection = Connection()
    (request,) = connection.receive(heartbeat(0))
    connection.complete(request, [b"abc"])
    with pytest.raises(ValueError, match="4 bytes"):
        connection.note_written(4)
    with pytest.raises(ValueError, match="-1 bytes"):
        connection.note_written(-1)
    connection.note_written(3)
    assert connection.queued_bytes == 0


def test_a_frame_larger_than_the_pause_limit_gets_through() -> None:
    connection = Connection(pause_bytes=100)
    frame = heartbeat(1, "m" * 1000)
    assert connection.receive(frame[:900]) == []
    assert not connection.should_pause
    (request,) = connection.receive(frame[900:])
    assert connection.should_pause
    connection.complete(request, None)
    assert connection.may_resume


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">i", -5), b"\x16\x03\x01\x02\x00\x01"]
)
def test_other_protocols_are_refused(data: bytes) -> None:
    with pytest.raises((FrameError, ProtocolError)):
        Connection(max_frame_bytes=1 << 20).receive(data + bytes(100))


def test_an_unknown_api_closes() -> None:
    with pytest.raises(ProtocolError):
        Connection().receive(struct.pack(">ihhih", 10, 777, 0, 1, -1))


def test_api_versions_of_the_future_gets_through() -> None:
    data = struct.pack(">hhih", ApiKey.API_VERSIONS, 5, 3, -1) + b"\0" + b"fields of tomorrow"
    (request,) = Connection().receive(struct.pack(">i", len(data)) + data)
    assert (request.api_key, request.api_version, request.correlation_id) == (ApiKey.API_VERSIONS, 5, 3)


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_random_bytes_give_requests_or_a_protocol_error(pieces: list[bytes]) -> None:
    connection = Connection(max_frame_bytes=1000)
    try:
        for piece in pieces:
            connection.receive(piece)
    except (FrameError, ProtocolError):
        return
