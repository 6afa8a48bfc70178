"""The sockets: asyncio transports around `Session`s, within the limit of connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Buffer

from broker.large_reading import LargeReading
from broker.large_requests import LargeRequests
from broker.session import Session
from wire.framing import FrameError

if TYPE_CHECKING:
    from broker.session import Serving

log = logging.getLogger("sealog")

WRITE_BUFFER_BYTES = 1 << 20
READ_AT_ONCE_BYTES = 256 << 10
"""A client from whom so much has come is read on in the next turn: the event loop reads a socket for as long as there
is something in it, eight megabytes and more of a large request, while all others wait."""
LARGE_REQUEST_BYTES = 8 << 20
"""A request of which so much has come is read on with rests (`broker.large_reading`)."""
DISCARD_FROM_BYTES = 64 << 10
"""Of what will be refused: less is read as all else is."""
DISCARD_AT_ONCE_BYTES = 256 << 10
CAN_DISCARD = sys.platform == "linux"
"""Only there TCP knows what to do with MSG_TRUNC."""
LATE_MS = 30_000
"""A large request that has been arriving for longer makes room for others where all memory for such is taken: clients
wait no longer for an answer (Kafka's request.timeout.ms)."""
KEPT_DESCRIPTORS = 32


def descriptors_for_clients() -> int:
    """How many connections leave the broker the file descriptors that it needs itself, a quarter of what the system
    allows it. The limit of the system is raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return 1 << 30 if soft == resource.RLIM_INFINITY else max(1, soft - max(KEPT_DESCRIPTORS, soft // 4))


def discard(descriptor: int, size: int) -> int:
    """Take at most so many bytes out of a TCP socket's queue, without a copy: how many.

    0 where there are none, no more will come, or the connection has failed: the event loop finds out which.
    """
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        return len(borrowed.recv(size, socket.MSG_TRUNC | socket.MSG_DONTWAIT))
    except OSError:
        return 0
    finally:
        borrowed.detach()


class ClientProtocol(asyncio.Protocol):
    """One client's socket. It is the session's transport, too."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._unsent_bytes = 0
        self._taken_bytes = 0
        """Since its last rest."""
        self._rests = False
        self._wanted = True
        """Whether the session reads on."""
        self.session: Session

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES, low=0)
        name = transport.get_extra_info("peername")
        self.session = Session(
            self._server.node,
            self,
            name[0] if name else "?",
            on_fault=self._server.count_fault,
            allocate=self._server.allocate_large,
        )
        self._server.joined(self)

    def data_received(self, data: bytes) -> None:
        self.session.received(data)
        self._taken_bytes += len(data)
        if not self._wanted or self._rests or self.session.closed:
            return
        if self._may_discard:
            self._rests = True
            self._transport.pause_reading()
            self._server.large_reading.wait(self._discard)
        elif self._taken_bytes >= READ_AT_ONCE_BYTES:
            self._rests = True
            self._transport.pause_reading()
            if self.session.arriving_bytes > LARGE_REQUEST_BYTES:
                self._server.large_reading.wait(self._rested)
            else:
                self._server.node.scheduler.call_soon(self._rested)

    @property
    def _may_discard(self) -> bool:
        return CAN_DISCARD and self.session.unwanted_bytes >= DISCARD_FROM_BYTES

    def _discard(self) -> None:
        """The transport is paused: what will be refused goes past it."""
        if self._wanted and not self.session.closed:
            size = min(self.session.unwanted_bytes, DISCARD_AT_ONCE_BYTES)
            gone = discard(self._transport.get_extra_info("socket").fileno(), size)
            if gone:
                self.session.passed_over(gone)
            # Where less was there the event loop waits for more.
            if gone == size and self._wanted and not self.session.closed and self._may_discard:
                self._server.large_reading.wait(self._discard)
                return
        self._rested()

    def _rested(self) -> None:
        self._rests = False
        self._taken_bytes = 0
        if self._wanted and not self.session.closed:
            self._transport.resume_reading()

    def resume_writing(self) -> None:
        self._tell_written()

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.lost()
        self._server.left(self)

    # What the session calls.

    def write(self, buffers: Sequence[Buffer]) -> None:
        self._unsent_bytes += sum(memoryview(buffer).nbytes for buffer in buffers)
        self._transport.writelines(cast(Sequence[memoryview], buffers))
        self._tell_written()

    def close(self) -> None:
        self._transport.abort()

    def set_reading(self, reading: bool) -> None:
        self._wanted = reading
        if self._rests:
            return
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _tell_written(self) -> None:
        left = self._transport.get_write_buffer_size()
        if left < self._unsent_bytes and not self.session.closed:
            written, self._unsent_bytes = self._unsent_bytes - left, left
            self.session.written(written)


class Server:
    """Listens, and keeps the set of open connections within its limit."""

    def __init__(self, node: Serving) -> None:
        self.node = node
        self.faults = 0
        self._most = descriptors_for_clients()
        if self._most < node.config.limits.connections:
            log.warning(
                "the system's limit of open files leaves room for %d connections, not for the %d of the configuration",
                self._most,
                node.config.limits.connections,
            )
        self._loop: asyncio.AbstractEventLoop | None = None
        self.large_requests = LargeRequests(
            self._soon, node.scheduler.call_later, node.config.limits.large_requests_bytes
        )
        self.large_reading = LargeReading(node.scheduler.call_later)
        self._clients: set[ClientProtocol] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """The address it listens on; port 0 picks a free one."""
        loop = self._loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._new_client, host, port, backlog=1024)
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    def switch(self, node: Serving) -> None:
        """Serve by another one from now on. Who is connected is cut off, and comes again."""
        if node is self.node:
            return
        self.node = node
        for client in list(self._clients):
            client.session.close("the leader has changed")

    def _new_client(self) -> ClientProtocol:
        return ClientProtocol(self)

    def _soon(self, callback: Callable[..., None], *args: Any) -> None:
        """From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(callback, *args)

    def allocate_large(self, size_bytes: int) -> memoryview:
        """Raises FrameError at the limit.

        Where one has long been arriving it is closed, and there is room a moment later: a few clients that send the
        beginning of a large request, and no more, keep nobody else from sending one.
        """
        try:
            return self.large_requests.allocate(size_bytes)
        except FrameError:
            arriving = [
                (since, client)
                for client in self._clients
                if (since := client.session.arriving_since_ms) is not None
            ]
            since, oldest = min(arriving, key=lambda one: one[0], default=(0, None))
            if oldest is not None and self.node.scheduler.monotonic_ms() - since > LATE_MS:
                oldest.session.close("its request has been arriving for too long, and others want the memory")
            raise

    def count_fault(self) -> None:
        self.faults += 1

    def joined(self, client: ClientProtocol) -> None:
        self._clients.add(client)
        limit = min(self.node.config.limits.connections, self._most)
        if len(self._clients) > limit:
            client.session.close(f"the limit of {limit} connections is reached")

    def left(self, client: ClientProtocol) -> None:
        self._clients.discard(client)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for client in list(self._clients):
            client.session.close("the broker stops")
        await asyncio.sleep(0)
