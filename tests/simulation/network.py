"""Connections between simulated processes: bytes arrive in order and late, in pieces, or not at all.

A connection is TCP's: within one direction nothing is reordered; between connections everything is. A blocked
direction holds its bytes back until it is opened again, as retransmission does; a reset loses what is under way. What a
client sent before it gave up may still arrive, after its retry on another connection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from broker.session import Session
from tests.simulation.loop import Future, Process
from wire import codec, private_api
from wire.apis import ApiKey
from wire.building import build_request

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

SPLIT_SHARE = 0.05


class Gone(Exception):
    """The connection broke, or nothing came in time: what was asked may have happened or not."""


class Network:
    """Delays and cuts. `trace` is told of every delivery."""

    def __init__(
        self, process: Process, seed: str, latency_ms: float, trace: Callable[[str, Any], None]
    ) -> None:
        self.process = process
        self.random = random.Random(seed)
        self.latency_ms = latency_ms
        self.trace = trace
        self.blocked_until: dict[str, float] = {}
        """Per direction ("up" to brokers, "down" to clients), when it opens again."""
        self.connections: dict[int, Connection] = {}
        self._opened = 0

    def delay(self) -> float:
        """Most packets take about the latency, a few much longer."""
        draw = self.random.random
        if draw() < 0.01:
            return self.latency_ms * (5.0 + 60.0 * draw())
        return self.latency_ms * (0.5 + draw())

    def block(self, direction: str, for_ms: float) -> None:
        self.blocked_until[direction] = self.process.loop.now_ms + for_ms

    def connect(self, client: Process, machine: Machine) -> Connection:
        """Raises Gone where no broker listens."""
        if not machine.serving:
            raise Gone("connection refused")
        self._opened += 1
        connection = Connection(self, self._opened, client, machine.process)
        connection.session = machine.new_session(connection.server)
        self.connections[connection.number] = connection
        return connection

    def machine_died(self, broker: Process) -> None:
        """Its connections are gone; clients hear of that, each in its time."""
        for connection in list(self.connections.values()):
            if connection.broker is broker:
                connection.server_closed()


class _Direction:
    """One half of a connection: what is sent arrives in order."""

    __slots__ = ("_arrive", "_last_ms", "_name", "_network", "_receiver", "cut")

    def __init__(
        self, network: Network, name: str, receiver: Process, arrive: Callable[[bytes | None], None]
    ) -> None:
        self._network = network
        self._name = name
        self._receiver = receiver
        self._arrive = arrive
        self._last_ms = 0.0
        self.cut = False

    def send(self, data: bytes | None) -> None:
        """None: the end of the stream."""
        network = self._network
        loop = network.process.loop
        now_ms = loop.now_ms
        if data is not None and network.random.random() < SPLIT_SHARE and len(data) > 1:
            at = network.random.randrange(1, len(data))
            self.send(data[:at])
            data = data[at:]
        starts_ms = max(now_ms, network.blocked_until.get(self._name, 0.0))
        self._last_ms = max(self._last_ms, starts_ms + network.delay())
        # Ties go by the order of calls, as the delay of this direction only grows: see `_deliver`.
        loop.later(self._receiver, self._last_ms - now_ms, self._deliver, (data,))
        self._last_ms += 0.001

    def _deliver(self, data: bytes | None) -> None:
        if not self.cut:
            self._network.trace(self._name, data)
            self._arrive(data)


class _ServerSide:
    """The transport of a broker's session."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held: list[bytes] | None = None

    def write(self, buffers: Sequence[Any]) -> None:
        data = b"".join(buffers)
        self._connection.down.send(data)
        self._connection.session.written(len(data))

    def close(self) -> None:
        self._connection.server_closed()

    def set_reading(self, reading: bool) -> None:
        if not reading:
            self._held = []
            return
        held, self._held = self._held, None
        for data in held or ():
            self._connection.session.received(data)

    def arrived(self, data: bytes) -> None:
        if self._held is not None:
            self._held.append(data)
        else:
            self._connection.session.received(data)


class Connection:
    """A client's connection to a broker: requests by fields, answers decoded, in order."""

    session: Session

    def __init__(self, network: Network, number: int, client: Process, broker: Process) -> None:
        self.number = number
        self.network = network
        self.client = client
        self.broker = broker
        self.server = _ServerSide(self)
        self.up = _Direction(network, "up", broker, self._at_server)
        self.down = _Direction(network, "down", client, self._at_client)
        self.open = True
        self._waiting: list[tuple[int, int, int, Future[Any]]] = []
        self._received = bytearray()
        self._correlation_id = 0

    # The client's side.

    def send(self, key: int, version: int, /, **fields: Any) -> Future[Any]:
        """Send a request; its answer, or Gone, comes by the future."""
        entity = build_request(key, version, None, **fields)
        return self._send(
            key, version, codec.encode_request(key, version, self._correlation_id + 1, "sim", entity)
        )

    def send_private(self, key: int, request: private_api.Request) -> Future[Any]:
        return self._send(key, 0, private_api.encode_request(key, self._correlation_id + 1, "sim", request))

    def _send(self, key: int, version: int, frame: bytes) -> Future[Any]:
        future: Future[Any] = Future(self.client)
        self._correlation_id += 1
        if not self.open:
            future.fail(Gone("closed"))
            return future
        self._waiting.append((key, version, self._correlation_id, future))
        self.up.send(frame)
        return future

    async def ask(self, key: int, version: int, /, *, timeout_ms: float = 5_000.0, **fields: Any) -> Any:
        """The answer. Raises Gone; a request without an answer in time closes the connection."""
        return await self.within(self.send(key, version, **fields), timeout_ms)

    async def ask_layout(self, request: private_api.Request) -> Any:
        return await self.within(self.send_private(ApiKey.SEALOG_LAYOUT, request), 5_000.0)

    async def ask_group(self, request: private_api.Request) -> Any:
        return await self.within(self.send_private(ApiKey.SEALOG_GROUP_TRANSACTION, request), 5_000.0)

    async def within(self, future: Future[Any], timeout_ms: float) -> Any:
        timer = self.client.call_later(timeout_ms, self._late, future)
        try:
            return await future
        finally:
            timer.cancel()

    def _late(self, future: Future[Any]) -> None:
        if not future.done:
            self.close()
            future.fail(Gone("timed out"))

    def close(self) -> None:
        """The client gives up: what it sent may arrive still, or is lost with a reset."""
        if self.open:
            if self.network.random.random() < 0.5:
                self.up.cut = True
                self.broker.call_later(self.network.delay(), self._server_lost)
            else:
                self.up.send(None)
            self._end()

    def _end(self) -> None:
        self.open = False
        self.down.cut = True
        waiting, self._waiting = self._waiting, []
        for *_, future in waiting:
            future.fail(Gone("closed"))

    def _at_client(self, data: bytes | None) -> None:
        if data is None:
            self._end()
            return
        received = self._received
        received += data
        while len(received) >= 4:
            length = int.from_bytes(received[:4], "big") + 4
            if len(received) < length:
                return
            key, version, correlation_id, future = self._waiting.pop(0)
            answered_id, entity = codec.decode_response(key, version, bytes(received[4:length]))
            del received[:length]
            assert answered_id == correlation_id, "answers must come in the order of the requests"
            future.set(entity)

    # The broker's side.

    def _at_server(self, data: bytes | None) -> None:
        if self.session.closed:
            return
        if data is None:
            self._server_lost()
        else:
            self.server.arrived(data)

    def _server_lost(self) -> None:
        self.network.connections.pop(self.number, None)
        if not self.session.closed:
            self.session.lost()

    def server_closed(self) -> None:
        """The broker aborts it, or is gone."""
        self.network.connections.pop(self.number, None)
        self.up.cut = True
        self.down.send(None)

    def reset(self) -> None:
        """Something in between breaks it; what is under way is lost, and both ends hear of it, each in its time."""
        self.up.cut = self.down.cut = True
        delay = self.network.delay
        self.client.call_later(delay() * 5, self._end)
        self.broker.call_later(delay() * 5, self._server_lost)
