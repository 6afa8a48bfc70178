"""A client that sends much at once is read in pieces, a turn of the loop each, so that no other waits for all of it."""

from __future__ import annotations

import struct
from typing import Any

from support.sim_node import SimNode

from broker.server import LARGE_REQUEST_BYTES, LARGE_REST_MS, READ_AT_ONCE_BYTES, ClientProtocol, Server
from wire.apis import ApiKey

PIECE = bytes(READ_AT_ONCE_BYTES // 2)


class Transport:
    """As much of asyncio's as is asked for; reading is switched by turns, never twice to the same."""

    def __init__(self) -> None:
        self.reading = True
        self.aborted = False

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

    def get_extra_info(self, _: str) -> None:
        return None


def connected() -> tuple[SimNode, ClientProtocol, Transport]:
    world, transport = SimNode(), Transport()
    client = ClientProtocol(Server(world.node))
    client.connection_made(transport)  # type: ignore[arg-type]
    return world, client, transport


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
    world.scheduler.advance(LARGE_REST_MS)
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
