"""Streams and datagrams over real sockets on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
import uvloop

from raftish.codec import encode
from raftish.datagram import Sender
from raftish.entries import Entry, Kind
from raftish.handshake import CHALLENGE_BYTES, Acceptor, Initiator
from raftish.messages import AppendRequest, Heartbeat, TimeoutNow
from raftish.transport import Transport, TransportLimits
from tests.support.broker_process import free_port

SECRET = b"a secret"
FAST = TransportLimits(first_backoff_ms=5, max_backoff_ms=20, handshake_ms=2000)


class Heard:
    def __init__(self):
        self.messages = []
        self.beats = []

    def received(self, number, message):
        self.messages.append((number, message))

    def received_beats(self, peer, beats):
        self.beats.append((peer, beats))


class Node:
    def __init__(self, node, *, secret=SECRET, limits=FAST, incarnation=1):
        self.heard = Heard()
        self.lines = []
        self.transport = Transport(
            node,
            secret,
            incarnation,
            self.heard,
            lambda size: bytes(range(size)),
            lambda: 0.0,
            limits=limits,
            report=self.lines.append,
        )


async def until(condition, timeout_s=20):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def nodes(*some):
    addresses = {node.transport.node: ("127.0.0.1", free_port()) for node in some}
    try:
        for node in some:
            await node.transport.start(addresses[node.transport.node], addresses)
        yield addresses
    finally:
        for node in some:
            await node.transport.close()


def append(source, target, size=10, index=1):
    return AppendRequest(source, target, 1, index - 1, 1, 0, (Entry(1, index, Kind.NORMAL, b"x" * size),))


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """The loop of the standard library and the one that the broker runs on."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner.run


def test_messages_and_heartbeats_arrive(run):
    async def go():
        one, two = Node(1), Node(2)
        async with nodes(one, two):
            await until(lambda: one.transport.connected(2) and two.transport.connected(1))
            said = [(group, append(1, 2, 100_000, group + 1)) for group in range(20)]
            one.transport.send(2, said)
            two.transport.send(1, [(5, TimeoutNow(2, 1, 3))])
            beats = [(group, Heartbeat(1, 2, 1, 1, 0)) for group in range(100)]
            one.transport.send_beats(2, beats)
            await until(lambda: len(two.heard.messages) == 20 and one.heard.messages)
            assert two.heard.messages == said
            assert one.heard.messages == [(5, TimeoutNow(2, 1, 3))]
            await until(lambda: sum(len(b) for _, b in two.heard.beats) == 100)
            assert [beat for _, some in two.heard.beats for beat in some] == beats
            assert (one.transport.dropped, two.transport.dropped) == (0, 0)

    run(go())


def test_a_peer_that_comes_back_is_found_again(run):
    async def go():
        one, two = Node(1), Node(2)
        async with nodes(one, two) as addresses:
            await until(lambda: one.transport.connected(2))
            await two.transport.close()
            await until(lambda: not one.transport.connected(2))
            one.transport.send(2, [(1, append(1, 2))])
            assert one.transport.dropped == 1
            again = Node(2, incarnation=2)
            await again.transport.start(addresses[2], addresses)
            await until(lambda: one.transport.connected(2))
            one.transport.send(2, [(1, append(1, 2))])
            await until(lambda: again.heard.messages)
            await again.transport.close()

    run(go())


def test_a_node_with_another_secret_gets_nowhere(run):
    async def go():
        one, stranger = Node(1), Node(2, secret=b"another")
        async with nodes(one, stranger):
            await until(lambda: any("secret" in line for line in one.lines))
            assert not one.transport.connected(2)
            assert not stranger.transport.connected(1)
            assert one.heard.messages == []

    run(go())


async def shake_hands(address, node, peer):
    reader, writer = await asyncio.open_connection(*address)
    initiator = Initiator(SECRET, node, peer, b"n" * 32)
    writer.write(initiator.hello())
    writer.write(initiator.prove(await reader.readexactly(CHALLENGE_BYTES)))
    return reader, writer


@pytest.mark.parametrize(
    "data",
    [
        encode(1, TimeoutNow(3, 1, 1)),
        encode(1, TimeoutNow(2, 3, 1)),
        b"\xff\xff\xff\xff",
        b"\0\0\0\5hello",
    ],
    ids=["in another's name", "for another", "too long", "garbage"],
)
def test_a_peer_that_sends_what_it_should_not_is_cut_off(data):
    async def go():
        one = Node(1)
        async with nodes(one) as addresses:
            reader, writer = await shake_hands(addresses[1], 2, 1)
            writer.write(encode(9, TimeoutNow(2, 1, 1)) + data)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            assert one.heard.messages == [(9, TimeoutNow(2, 1, 1))]
            assert any("node 2" in line for line in one.lines)
            writer.close()

    asyncio.run(go())


def test_strangers_are_few_and_do_not_stay(run):
    async def go():
        one = Node(1, limits=TransportLimits(max_strangers=2, handshake_ms=200))
        async with nodes(one) as addresses:
            streams = [await asyncio.open_connection(*addresses[1]) for _ in range(4)]
            await until(lambda: one.transport.strangers == 2)
            for reader, writer in streams:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
            await until(lambda: one.transport.strangers == 0)
            _, writer = await shake_hands(addresses[1], 2, 1)
            writer.write(encode(1, TimeoutNow(2, 1, 1)))
            await until(lambda: one.heard.messages)
            writer.close()

    run(go())


def test_what_a_peer_does_not_take_is_dropped_and_never_waited_for(run):
    """It shakes hands and then reads nothing more, as a stopped process."""

    async def go():
        one = Node(1, limits=TransportLimits(max_queued_bytes=1 << 20, first_backoff_ms=5))

        async def accept(reader, writer):
            acceptor = Acceptor(SECRET, 2, b"n" * 32)
            writer.write(acceptor.challenge(await reader.readexactly(48)))
            acceptor.accept(await reader.readexactly(32))
            await asyncio.sleep(3600)

        address = ("127.0.0.1", free_port())
        server = await asyncio.start_server(accept, *address, limit=1024)
        mine = ("127.0.0.1", free_port())
        await one.transport.start(mine, {1: mine, 2: address})
        await until(lambda: one.transport.connected(2))
        for _ in range(400):
            one.transport.send(2, [(1, append(1, 2, 100_000))] * 2)
        await asyncio.sleep(0)
        assert one.transport.dropped > 100
        assert one.transport._outgoing[2].queued_bytes <= 1 << 20
        await one.transport.close()
        server.close()

    run(go())


def test_datagrams_that_are_not_the_clusters_are_passed_over(run):
    async def go():
        one = Node(1)
        async with nodes(one) as addresses:
            (good,) = Sender(SECRET, 2, 1, 1).pack([(1, Heartbeat(2, 1, 1, 1, 0))])
            (forged,) = Sender(b"another", 2, 1, 1).pack([(1, Heartbeat(2, 1, 1, 1, 0))])
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                for datagram in (forged, b"", b"x" * 2000, good, good):
                    out.sendto(datagram, addresses[1])
            await until(lambda: len(one.lines) >= 4)
            assert one.heard.beats == [(2, [(1, Heartbeat(2, 1, 1, 1, 0))])]

    run(go())


def test_heartbeats_to_nobody_do_no_harm(run):
    async def go():
        one, two = Node(1), Node(2)
        async with nodes(one, two):
            await until(lambda: one.transport.connected(2))
            address = one.transport._udp_addresses[2]
            await two.transport.close()
            for _ in range(20):
                one.transport.send_beats(2, [(1, Heartbeat(1, 2, 1, 1, 0))])
                await asyncio.sleep(0.002)
            assert one.transport._udp_addresses[2] == address
            assert not any(task.done() for task in one.transport._tasks)

    run(go())
