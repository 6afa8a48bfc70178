"""One client's session without its socket: bytes in, requests to their handlers, answers out in order.

Guarantees that bad bytes end the session they came in and no other, that answers leave in the order of requests and in
one write per turn of the loop, and that a peer with too much in hand is not read from (`Transport.set_reading`). The
socket around it is `broker.server`; a simulator puts its own network there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from typing_extensions import Buffer

from broker.call import Call
from broker.node import Node
from broker.read_ahead import ReadAhead
from broker.topic import Topic
from wire import codec
from wire.apis import APIS, ApiKey
from wire.connection import Connection, ProtocolError, Request
from wire.framing import Allocate, FrameError, LargeFrame, anonymous_memory
from wire.guard import MalformedRequest

if TYPE_CHECKING:
    from broker.ranges.node import RangesNode
    from broker.replication.standby import Standby

    Serving = Node | Standby | RangesNode
    """What answers."""

log = logging.getLogger("sealog")

NEARLY_SENT_BYTES = 1 << 20
"""The socket takes the rest of an answer by itself."""


class Transport(Protocol):
    """What a session needs of its socket."""

    def write(self, buffers: Sequence[Buffer]) -> None: ...

    def close(self) -> None:
        """Cut the connection; nothing more is written or received."""
        ...

    def set_reading(self, reading: bool) -> None: ...


class Session:
    """The requests of one connection on their way. `received`, `written` and `lost` come from the socket."""

    def __init__(
        self,
        node: Serving,
        transport: Transport,
        peer: str,
        *,
        on_fault: Callable[[], None] = lambda: None,
        allocate: Allocate = anonymous_memory,
    ) -> None:
        limits = node.config.limits
        self._node = node
        self._handlers: Mapping[int, Callable[[Any, Call, Any], None]] = node.handlers
        self._transport = transport
        self._peer = peer
        self._on_fault = on_fault
        self._connection = Connection(
            max_frame_bytes=limits.request_bytes,
            max_pending_requests=limits.connection_pending_requests,
            pause_bytes=limits.connection_queued_bytes,
            allocate=allocate,
            most_bytes=self._most_bytes,
        )
        self._large: LargeFrame | None = None
        self._large_since_ms = 0
        self._out: list[Buffer] = []
        self._undone: deque[Request] = deque()
        """Taken in, and not begun."""
        self._held = False
        """The request begun last goes on in another turn, and the next one waits for it."""
        self._reading = True
        self._calls: set[Call] = set()
        self._closed = False
        self._read_ahead = ReadAhead(node.scheduler)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def arriving_bytes(self) -> int:
        """What is here of a request that is not whole yet."""
        return self._connection.buffered_bytes

    @property
    def arriving_since_ms(self) -> int | None:
        """When the large request began that has not come to its end; None where there is none. Monotonic."""
        return self._large_since_ms if self._large is not None else None

    def received(self, data: bytes) -> None:
        """Bytes from the peer; they must not change afterwards."""
        self._take(lambda: self._connection.receive(data))

    @property
    def unwanted_bytes(self) -> int:
        """So many bytes, the next ones from the peer, need only be counted (`passed_over`): they will be refused."""
        return self._connection.unwanted_bytes

    def passed_over(self, size: int) -> None:
        """So many unwanted bytes have come, and nobody keeps them."""
        self._take(lambda: self._connection.pass_over(size))

    def _most_bytes(self, topic: str | UUID) -> int:
        """The size above which a batch for a topic is refused in any case, whatever else is wrong with it."""
        topics = self._node.topics
        found = topics.get_by_id(topic) if isinstance(topic, UUID) else topics.get(topic)
        # Another node leads it, or there is none: so large a batch is not taken, but for one that is made meanwhile.
        return (
            found.rules.max_message_bytes if isinstance(found, Topic) else self._node.config.message_max_bytes
        )

    def _take(self, receive: Callable[[], list[Request]]) -> None:
        try:
            requests = receive()
        except (FrameError, ProtocolError) as error:
            self.close(str(error))
            return
        if self._connection.large_frame is not self._large:
            self._large, self._large_since_ms = (
                self._connection.large_frame,
                self._node.scheduler.monotonic_ms(),
            )
        self._undone.extend(requests)
        self._work()
        if self._closed:
            return
        if self._reading and self._connection.should_pause:
            self._reading = False
            self._transport.set_reading(False)

    def _work(self) -> None:
        """One piece of bytes may hold a thousand requests: they wait where the peer does not take the answers."""
        while self._undone and not self._closed and not self._held and not self._connection.holds_enough:
            self._dispatch(self._undone.popleft())

    def written(self, size_bytes: int) -> None:
        """So many bytes of what was handed to the socket have left it."""
        self._connection.note_written(size_bytes)
        self._read_on()
        if self._undone and not self._connection.holds_enough:
            self._node.scheduler.call_soon(self._work)
        self._maybe_resume()

    def lost(self) -> None:
        """The connection is gone: whoever still works for this peer may stop."""
        self._closed = True
        for call in self._calls:
            call.abandoned = True
        self._calls.clear()
        self._out.clear()
        self._undone.clear()
        self._connection.drop()
        self._large = None
        self._read_ahead.drop()

    def close(self, reason: str) -> None:
        """End it, and no other."""
        if not self._closed:
            log.info("closing %s: %s", self._peer, reason)
            self._transport.close()
            self.lost()

    def _dispatch(self, request: Request) -> None:
        key, version = request.api_key, request.api_version
        if key == ApiKey.API_VERSIONS and version > APIS[key].max_version:
            self._deliver(request, [codec.unsupported_api_versions(request.correlation_id)])
            return
        call = Call(
            key,
            version,
            request.correlation_id,
            request.client_id,
            self._peer,
            lambda buffers: self._answered(call, request, buffers),
            self.close,
            request.size_bytes,
            self._read_ahead,
        )
        self._calls.add(call)
        try:
            message = codec.decode_request(key, version, request.body)
            request.release_body()
            self._handlers[key](self._node, call, message)
        except MalformedRequest as error:
            self.close(f"{APIS[key].name} v{version}: {error}")
        except Exception:
            log.exception("a %s v%d request failed", APIS[call.api_key].name, call.version)
            self._failed()
        if call.next_step is not None or call.is_held:
            self._held = True
            self._hold(call)

    def _hold(self, call: Call) -> None:
        """It goes on in another turn: the next one, or when whom it waits for has answered."""
        if call.is_held:
            call.on_release = lambda: self._hold(call)
        else:
            self._node.scheduler.call_soon(self._go_on, call)

    def _go_on(self, call: Call) -> None:
        """The next step of a request that takes several turns."""
        step, call.next_step = call.next_step, None
        if self._closed or step is None:
            return
        try:
            step()
        except Exception:
            log.exception("a %s v%d request failed", APIS[call.api_key].name, call.version)
            self._failed()
        if call.next_step is not None or call.is_held:
            self._hold(call)
        else:
            self._held = False
            self._work()

    def _failed(self) -> None:
        """A fault of ours must not take the broker down: this client is cut off and may retry, the rest goes on."""
        self._on_fault()
        self.close("internal error")

    def _answered(self, call: Call, request: Request, buffers: Sequence[Buffer] | None) -> None:
        self._calls.discard(call)
        self._deliver(request, buffers)

    def _deliver(self, request: Request, buffers: Sequence[Buffer] | None) -> None:
        if self._closed:
            return
        ready = self._connection.complete(request, buffers)
        if ready:
            if not self._out:
                self._node.scheduler.call_soon(self._write_out)
            self._out += ready
        else:
            self._maybe_resume()

    def _write_out(self) -> None:
        """One write per turn of the loop, however many answers it brought."""
        if not self._closed and self._out:
            out, self._out = self._out, []
            self._transport.write(out)
            self._read_on()

    def _read_on(self) -> None:
        """Read for the next fetch when the last answer does not need the time any more."""
        if self._connection.unsent_bytes <= NEARLY_SENT_BYTES:
            self._read_ahead.go_on()

    def _maybe_resume(self) -> None:
        if not self._reading and self._connection.may_resume and not self._closed:
            self._reading = True
            self._transport.set_reading(True)
