"""A client that sends much at once is read in pieces, a turn of the loop each, so that no other waits for all of it;
those that send large requests take turns, and what will be refused goes past."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.sim_node import SimNode

from broker.config import Limits
from broker.large_reading import REST_MS, LargeReading
from broker.server import (
    CAN_DISCARD,
    LARGE_REQUEST_BYTES,
    LATE_MS,
    READ_AT_ONCE_BYTES,
    ClientProtocol,
    Server,
    discard,
)
from wire import codec
from wire.apis import ApiKey
from wire.framing import FrameError

PIECE = bytes(READ_AT_ONCE_BYTES // 2)


class Transport:
    """As much of asyncio's as is asked for; reading is switched by turns, never twice to the same."""

    def __init__(self) -> None:
        self.reading = True
        self.aborted = False
        self.socket: socket.socket | None = None
        self.written = b""

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, **_: Any) -> None:
        return

    def get_extra_info(self, name: str) -> Any:
        return self.socket if name == "socket" else None

    def writelines(self, buffers: list[bytes]) -> None:
        self.written += b"".join(buffers)

    def get_write_buffer_size(self) -> int:
        return 0


def joined(to: Server) -> tuple[ClientProtocol, Transport]:
    client, transport = ClientProtocol(to), Transport()
    client.connection_made(transport)  # type: ignore[arg-type]
    return client, transport


def connected() -> tuple[SimNode, ClientProtocol, Transport]:
    world = SimNode()
    return world, *joined(Server(world.node))


def test_after_so_many_bytes_it_rests_for_a_turn() -> None:
    world, client, transport = connected()
    client.data_received(struct.pack(">i", 10 * len(PIECE)))
    for _ in range(4):
        client.data_received(PIECE)
        assert transport.reading
        client.data_received(PIECE)
        assert not transport.reading
        world.scheduler.run_ready()
        assert transport.reading


def test_in_a_large_request_the_rest_is_longer() -> None:
    world, client, transport = connected()
    begin = struct.pack(">ihh", 2 * LARGE_REQUEST_BYTES, ApiKey.PRODUCE, 9)
    client.data_received(begin + bytes(LARGE_REQUEST_BYTES - 4))
    world.scheduler.run_ready()
    assert transport.reading
    client.data_received(PIECE + PIECE)
    world.scheduler.run_ready()
    assert not transport.reading
    world.scheduler.advance(REST_MS)
    assert transport.reading


def test_a_session_that_wants_nothing_is_not_read_from_after_the_rest() -> None:
    world, client, transport = connected()
    client.data_received(struct.pack(">i", 10 * len(PIECE)) + PIECE + PIECE)
    client.set_reading(False)
    world.scheduler.run_ready()
    assert not transport.reading
    client.set_reading(True)
    assert transport.reading


def test_a_session_that_wants_to_read_on_waits_for_the_end_of_the_rest() -> None:
    world, client, transport = connected()
    client.data_received(struct.pack(">i", 10 * len(PIECE)) + PIECE + PIECE)
    client.set_reading(False)
    client.set_reading(True)
    assert not transport.reading
    world.scheduler.run_ready()
    assert transport.reading


def test_what_was_closed_meanwhile_is_left_alone() -> None:
    world, client, transport = connected()
    client.data_received(struct.pack(">i", 10 * len(PIECE)) + PIECE + PIECE)
    client.session.close("the test says so")
    world.scheduler.run_ready()
    assert transport.aborted
    assert not transport.reading
    _, client, transport = connected()
    client.data_received(struct.pack(">i", -1) + PIECE + PIECE)
    assert transport.aborted
    assert transport.reading


def test_large_requests_take_turns() -> None:
    """One rest, one turn, however many there are; each in its order, also one that comes again in its turn."""
    world = SimNode()
    reading = LargeReading(world.scheduler.call_later)
    turns: list[str] = []

    def turn(name: str) -> None:
        turns.append(name)
        if len(turns) < 7:
            reading.wait(lambda: turn(name))

    for name in "abc":
        reading.wait(lambda name=name: turn(name))  # type: ignore[misc]
    for count in range(1, 10):
        world.scheduler.advance(REST_MS)
        assert len(turns) == count
    assert "".join(turns) == "abcabcabc"
    reading.wait(lambda: turns.append("d"))
    assert turns[-1] == "c"
    world.scheduler.advance(REST_MS)
    assert turns[-1] == "d"


@contextmanager
def tcp() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = socket.create_connection(listening.getsockname())
        receiver, _ = listening.accept()
        receiver.setblocking(False)
        with sender, receiver:
            yield sender, receiver


def discarded(receiver: socket.socket, size: int) -> int:
    """Once something is there."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if gone := discard(receiver.fileno(), size):
            return gone
        time.sleep(0.001)
    raise AssertionError("nothing came")


needs_linux = pytest.mark.skipif(not CAN_DISCARD, reason="TCP discards by MSG_TRUNC on Linux alone")


@needs_linux
def test_what_is_discarded_is_so_many_bytes_and_no_more() -> None:
    with tcp() as (sender, receiver):
        assert discard(receiver.fileno(), 10) == 0, "nothing is there"
        sender.sendall(b"0123456789abc")
        left = 10
        while left:
            left -= discarded(receiver, left)
        receiver.settimeout(20)
        assert receiver.recv(10) == b"abc"
        sender.close()
        assert receiver.recv(10) == b""
        assert discard(receiver.fileno(), 10) == 0, "no more will come"
        assert receiver.fileno() >= 0


@needs_linux
def test_what_will_be_refused_goes_past_the_transport() -> None:
    """By rests, to its last byte; what follows it is left to the transport."""
    world = SimNode()
    to = Server(world.node)
    client, transport = joined(to)
    frame = codec.encode_request(
        ApiKey.PRODUCE,
        9,
        7,
        "c",
        codec.build_request(
            ApiKey.PRODUCE,
            9,
            None,
            transactional_id=None,
            acks=-1,
            timeout=1000,
            topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": bytes(6 << 20)}]}],
        ),
    )
    with tcp() as (sender, receiver):
        transport.socket = receiver
        client.data_received(frame[:1000])
        unwanted = client.session.unwanted_bytes
        assert unwanted > (6 << 20) - 1000
        assert not transport.reading
        sender.sendall(frame[1000 : 1000 + 50_000])
        end = time.monotonic() + 20
        while client.session.unwanted_bytes > unwanted - 50_000 and time.monotonic() < end:
            if transport.reading:  # less was there than could have been: it waits, as it does elsewhere
                transport.pause_reading()
                client._rests = True
                to.large_reading.wait(client._discard)
            world.scheduler.advance(REST_MS)
        assert client.session.unwanted_bytes == unwanted - 50_000
        world.scheduler.advance(REST_MS)
        assert transport.reading
    # The rest, which comes some other way, and what follows it.
    client.data_received(bytes(unwanted - 50_000))
    client.data_received(frame[1000 + unwanted :] + frame[:4])
    world.scheduler.run_ready()
    (length,) = struct.unpack_from(">i", transport.written)
    assert len(transport.written) == 4 + length
    assert not transport.aborted


def test_who_takes_too_long_makes_room_for_others() -> None:
    """Where all memory of large requests is claimed: the one that has been arriving longest, when clients give up."""
    world = SimNode(limits=Limits(large_requests_bytes=5 * LARGE_REQUEST_BYTES // 2))
    to = Server(world.node)
    begin = struct.pack(">ihh", LARGE_REQUEST_BYTES, ApiKey.PRODUCE, 9)
    first, first_transport = joined(to)
    first.data_received(begin)
    world.scheduler.advance(LATE_MS - 1000)
    second, second_transport = joined(to)
    second.data_received(begin)
    third, third_transport = joined(to)
    third.data_received(begin)
    assert third_transport.aborted
    assert not first_transport.aborted, "it is not late yet"
    first.data_received(b"\0")
    world.scheduler.advance(2000)
    with pytest.raises(FrameError):
        to.allocate_large(LARGE_REQUEST_BYTES)
    assert first_transport.aborted, "that it still sends a little changes nothing"
    assert not second_transport.aborted
