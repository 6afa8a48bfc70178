"""The network of a node on asyncio: a TCP stream to each peer for messages, one UDP socket for heartbeats.

Guarantees: sending never waits; what a peer does not take, and what is beyond its bound, is dropped, for raft says
everything again; nothing comes in from anyone who has not shown the cluster's secret, nor in another node's name; a
stream that breaks is made anew, later and later. UDP goes through asyncio-dgram. Its queue of received datagrams has no
bound of its own; the task here empties it in every turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import asyncio_dgram

from raftish.codec import DEFAULT_MAX_FRAME_BYTES, BadMessage, Frames, decode, encode
from raftish.datagram import Beat, Gate, Sender
from raftish.handshake import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    Acceptor,
    HandshakeFailed,
    Initiator,
)
from raftish.messages import Message

Address = tuple[str, int]
"""Host and port, of both TCP and UDP."""


class Receiver(Protocol):
    """`raftish.host.Host` is one."""

    def received(self, number: int, message: Message) -> None: ...

    def received_beats(self, peer: int, beats: Sequence[Beat]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    max_queued_bytes: int = 64 << 20
    """Per peer, written and not yet taken by the kernel."""
    max_queued_datagrams: int = 256
    max_strangers: int = 64
    """Streams that have not proved themselves yet."""
    handshake_ms: float = 5000
    first_backoff_ms: float = 50
    max_backoff_ms: float = 2000


class Transport:
    """`random_bytes` from a secure source; `jitter` a random part of 1; `report` hears what was refused or broke."""

    def __init__(
        self,
        node: int,
        secret: bytes,
        incarnation: int,
        receiver: Receiver,
        random_bytes: Callable[[int], bytes],
        jitter: Callable[[], float],
        *,
        limits: TransportLimits | None = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.node = node
        self.secret = secret
        self.receiver = receiver
        self.random_bytes = random_bytes
        self.limits = limits or TransportLimits()
        self.report = report
        self.dropped = 0
        """Messages and datagrams that were not sent."""
        self.strangers = 0
        self._incarnation = incarnation
        self._jitter = jitter
        self._gate = Gate(secret, node)
        self._senders: dict[int, Sender] = {}
        self._outgoing: dict[int, _Outgoing] = {}
        self._incoming: set[_Incoming] = set()
        self._datagrams: deque[tuple[bytes, Address]] = deque(maxlen=self.limits.max_queued_datagrams)
        self._datagrams_wait = asyncio.Event()
        self._udp_addresses: dict[int, Address] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._keepers: dict[int, tuple[Address, asyncio.Task[None]]] = {}
        """Of each peer: where it is, and who keeps the stream to it."""
        self._server: asyncio.Server | None = None
        self._udp: asyncio_dgram.DatagramServer | None = None

    async def start(self, listen: Address, peers: Mapping[int, Address]) -> None:
        """Raises OSError where it cannot listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Incoming(self), *listen)
        self._udp = await asyncio_dgram.bind(listen)
        self._tasks = [
            loop.create_task(self._receive_datagrams(self._udp)),
            loop.create_task(self._send_datagrams(self._udp)),
        ]
        self.set_peers(peers)

    def set_peers(self, peers: Mapping[int, Address]) -> None:
        """Be connected to these from now on and to nobody else; what comes in is taken from whoever proves itself."""
        wanted = {peer: address for peer, address in peers.items() if peer != self.node}
        for peer, (address, task) in list(self._keepers.items()):
            if wanted.get(peer) != address:
                task.cancel()
                del self._keepers[peer]
                self._udp_addresses.pop(peer, None)
                self._outgoing.pop(peer, None)
        for peer, address in wanted.items():
            if peer not in self._keepers:
                # A sender stays when its peer goes: its numbers must rise should that come back.
                self._senders.setdefault(peer, Sender(self.secret, self.node, peer, self._incarnation))
                task = asyncio.get_running_loop().create_task(self._keep_connected(peer, address))
                self._keepers[peer] = (address, task)

    async def close(self) -> None:
        tasks = [*self._tasks, *(task for _, task in self._keepers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in [*self._outgoing.values(), *self._incoming]:
            stream.abort()
        if self._udp is not None:
            self._udp.close()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    # Sending: for `raftish.host.Host`.

    def send(self, peer: int, messages: Sequence[tuple[int, Message]]) -> None:
        stream = self._outgoing.get(peer)
        if stream is None:
            self.dropped += len(messages)
            return
        room = self.limits.max_queued_bytes - stream.queued_bytes
        frames: list[bytes] = []
        for group, message in messages:
            frame = encode(group, message)
            if len(frame) > room and (frames or stream.queued_bytes):
                self.dropped += 1
                continue
            room -= len(frame)
            frames.append(frame)
        if frames:
            stream.write(b"".join(frames))

    def send_beats(self, peer: int, beats: Sequence[Beat]) -> None:
        sender, address = self._senders.get(peer), self._udp_addresses.get(peer)
        if sender is None or address is None:
            self.dropped += 1
            return
        for datagram in sender.pack(beats):
            self.dropped += len(self._datagrams) == self._datagrams.maxlen
            self._datagrams.append((datagram, address))
        self._datagrams_wait.set()

    # Streams.

    def connected(self, peer: int) -> bool:
        return peer in self._outgoing

    async def _keep_connected(self, peer: int, address: Address) -> None:
        backoff_ms = self.limits.first_backoff_ms
        loop = asyncio.get_running_loop()
        while True:
            stream = _Outgoing(self, peer)
            try:
                async with asyncio.timeout(self.limits.handshake_ms / 1000):
                    await loop.create_connection(lambda s=stream: s, *address)  # type: ignore[misc]
                    await asyncio.shield(stream.ready)
                # A name is looked up by the stream; the datagrams take what it found.
                self._udp_addresses[peer] = stream.address
                self._outgoing[peer] = stream
                backoff_ms = self.limits.first_backoff_ms
                await asyncio.shield(stream.closed)
            except (OSError, TimeoutError, HandshakeFailed) as error:
                self.report(f"no stream to node {peer}: {error}")
            finally:
                if self._outgoing.get(peer) is stream:
                    del self._outgoing[peer]
                stream.abort()
            await asyncio.sleep(backoff_ms * (0.5 + self._jitter()) / 1000)
            backoff_ms = min(2 * backoff_ms, self.limits.max_backoff_ms)

    def admit(self, stream: _Incoming) -> bool:
        if self.strangers >= self.limits.max_strangers:
            return False
        self.strangers += 1
        self._incoming.add(stream)
        return True

    def forget(self, stream: _Incoming) -> None:
        self._incoming.discard(stream)

    # Datagrams.

    async def _receive_datagrams(self, udp: asyncio_dgram.DatagramServer) -> None:
        while True:
            try:
                data, _ = await udp.recv()
                peer, beats = self._gate.open(data)
            except asyncio_dgram.TransportClosed:
                return
            except (OSError, BadMessage) as error:
                # An OSError here is of an earlier send: nobody listens there.
                self.report(f"datagram: {error}")
                continue
            self.receiver.received_beats(peer, beats)

    async def _send_datagrams(self, udp: asyncio_dgram.DatagramServer) -> None:
        while True:
            await self._datagrams_wait.wait()
            self._datagrams_wait.clear()
            while self._datagrams:
                datagram, address = self._datagrams.popleft()
                try:
                    await udp.send(datagram, address)
                except asyncio_dgram.TransportClosed:
                    return
                except OSError as error:
                    self.dropped += 1
                    self.report(f"datagram: {error}")


class _Stream(asyncio.Protocol):
    def __init__(self, owner: Transport) -> None:
        self.owner = owner
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    @property
    def queued_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _take_head(self, size_bytes: int) -> bytes | None:
        if len(self._head) < size_bytes:
            return None
        taken = bytes(self._head[:size_bytes])
        del self._head[:size_bytes]
        return taken


class _Outgoing(_Stream):
    """Carries this node's messages to `peer`; nothing comes back but the challenge."""

    def __init__(self, owner: Transport, peer: int) -> None:
        super().__init__(owner)
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._handshake = Initiator(owner.secret, owner.node, peer, owner.random_bytes(NONCE_BYTES))

    @property
    def address(self) -> Address:
        assert self._transport is not None
        host, port, *_ = self._transport.get_extra_info("peername")
        return host, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.write(self._handshake.hello())

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self.ready.done() or len(self._head) > CHALLENGE_BYTES:
            self.abort()
            return
        challenge = self._take_head(CHALLENGE_BYTES)
        if challenge is not None:
            try:
                self.write(self._handshake.prove(challenge))
            except HandshakeFailed as error:
                self._fail(error)
                self.abort()
            else:
                self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError(f"closed: {exc}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
            # Whoever waited may have given up: then nobody is to be told.
            self.ready.exception()


class _Incoming(_Stream):
    """Brings a peer's messages, once it has proved itself."""

    def __init__(self, owner: Transport) -> None:
        super().__init__(owner)
        self._handshake: Acceptor | None = Acceptor(owner.secret, owner.node, owner.random_bytes(NONCE_BYTES))
        self._challenged = False
        self._peer = -1
        self._admitted = False
        self._frames = Frames(owner.limits.max_frame_bytes)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._admitted = self.owner.admit(self)
        if not self._admitted:
            self.abort()
            return
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self.owner.limits.handshake_ms / 1000, self.abort)

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake is None:
                self._receive(data)
            else:
                self._greet(data)
        except (HandshakeFailed, BadMessage) as error:
            self.owner.report(f"stream of node {self._peer}: {error}")
            self.abort()

    def _greet(self, data: bytes) -> None:
        self._head += data
        assert self._handshake is not None
        if not self._challenged:
            hello = self._take_head(HELLO_BYTES)
            if hello is None:
                return
            self.write(self._handshake.challenge(hello))
            self._challenged = True
        proof = self._take_head(PROOF_BYTES)
        if proof is None:
            return
        self._peer = self._handshake.accept(proof)
        self._handshake = None
        self._no_stranger_any_more()
        rest = bytes(self._head)
        self._head.clear()
        self._receive(rest)

    def _receive(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            group, message = decode(frame)
            if message.source != self._peer or message.target != self.owner.node:
                raise BadMessage(f"a message from {message.source} to {message.target}")
            self.owner.receiver.received(group, message)

    def _no_stranger_any_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self.owner.strangers -= 1

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admitted:
            self._no_stranger_any_more()
            self.owner.forget(self)
