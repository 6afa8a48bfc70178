"""One client's connection as a protocol machine: bytes in, requests out; answers in, bytes out in order.

Guarantee: requests may be completed in any order, their answers leave in the order of the requests (clients
pipeline, and match answers by order). `queued_bytes` covers everything held for this peer, so that a caller
that stops reading while `should_pause` bounds memory. Sans I/O.

    WAITING -> COMPLETED (behind another) -> SENT        WAITING -> SENT (first in line)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final

from typing_extensions import Buffer

from wire.framing import LENGTH_SIZE, Allocate, FrameReader, anonymous_memory
from wire.header import ProtocolError, check_large_request, parse_request_header

__all__ = ("Connection", "ProtocolError", "Request", "RequestState")

DEFAULT_MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
DEFAULT_MAX_PENDING_REQUESTS: Final = 256
DEFAULT_PAUSE_BYTES: Final = 8 * 1024 * 1024

_NO_BODY: Final = memoryview(b"")


class RequestState(Enum):
    WAITING = "waiting"
    COMPLETED = "completed"
    SENT = "sent"


class Request:
    """A request as received. `body` is a read-only view of the message behind the header."""

    __slots__ = (
        "answer",
        "api_key",
        "api_version",
        "body",
        "client_id",
        "correlation",
        "correlation_id",
        "header_flexible",
        "size_bytes",
        "state",
    )

    def __init__(
        self,
        correlation: int,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        header_flexible: bool,
        body: memoryview,
        size_bytes: int,
    ) -> None:
        self.correlation = correlation
        """Its place in the connection's order, counted from 0."""
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        """The client's own number; goes back in the answer's header."""
        self.client_id = client_id
        self.header_flexible = header_flexible
        self.body = body
        self.size_bytes = size_bytes
        """What it took on the wire: length, header and body."""
        self.state = RequestState.WAITING
        self.answer: Sequence[Buffer] = ()

    def release_body(self) -> None:
        """Let go of the body once it is decoded: a long poll should not pin what arrived with it."""
        self.body = _NO_BODY

    def __repr__(self) -> str:
        return (
            f"<Request {self.correlation} api {self.api_key} v{self.api_version}"
            f" id {self.correlation_id} {self.state.value}>"
        )


class Connection:
    """The protocol state of one connection. When `receive` raises, close it: the stream cannot be read on."""

    def __init__(
        self,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        max_pending_requests: int = DEFAULT_MAX_PENDING_REQUESTS,
        pause_bytes: int = DEFAULT_PAUSE_BYTES,
        resume_bytes: int | None = None,
        allocate: Allocate = anonymous_memory,
    ) -> None:
        """Limits for one peer; `allocate` gives memory for its large requests.

        `should_pause` holds above `pause_bytes` or from `max_pending_requests` on; `may_resume` once both are
        at half (or at `resume_bytes`). A frame still arriving does not count: one larger than `pause_bytes`
        gets through.
        """
        self._reader = FrameReader(max_frame_bytes, allocate)
        self._pending: deque[Request] = deque()
        self._next_correlation = 0
        self._request_bytes = 0
        self._answer_bytes = 0
        self._max_pending = max_pending_requests
        self._resume_pending = max_pending_requests // 2
        self._pause_bytes = pause_bytes
        self._resume_bytes = pause_bytes // 2 if resume_bytes is None else resume_bytes

    @property
    def pending_requests(self) -> int:
        """Requests taken in whose answers have not been handed out."""
        return len(self._pending)

    @property
    def queued_bytes(self) -> int:
        """Requests whose answers are not out, plus answers that are not flushed to the peer."""
        return self._request_bytes + self._answer_bytes

    @property
    def unsent_bytes(self) -> int:
        """Answers that are not flushed to the peer."""
        return self._answer_bytes

    @property
    def holds_enough(self) -> bool:
        """Answers that have not left are above the limit: no further request should be worked on."""
        return self._answer_bytes > self._pause_bytes

    @property
    def buffered_bytes(self) -> int:
        """The bytes of a frame that is still arriving."""
        return self._reader.buffered_bytes

    @property
    def should_pause(self) -> bool:
        """Stop reading the socket: this peer has as much in hand as it may."""
        return (
            self._request_bytes + self._answer_bytes > self._pause_bytes
            or len(self._pending) >= self._max_pending
        )

    @property
    def may_resume(self) -> bool:
        return (
            self._request_bytes + self._answer_bytes <= self._resume_bytes
            and len(self._pending) <= self._resume_pending
        )

    def receive(self, data: bytes) -> list[Request]:
        """Take bytes from the peer; the requests they complete. `data` must not change afterwards.

        Raises FrameError for an impossible length, ProtocolError for an unknown API or version or for a bad
        header: for a large request as soon as its beginning is here.
        """
        requests = []
        for frame in self._reader.feed(data):
            header = parse_request_header(frame)
            request = Request(
                self._next_correlation,
                header.api_key,
                header.api_version,
                header.correlation_id,
                header.client_id,
                header.flexible,
                frame[header.size_bytes :],
                len(frame) + LENGTH_SIZE,
            )
            self._next_correlation += 1
            self._request_bytes += request.size_bytes
            self._pending.append(request)
            requests.append(request)
        if self._reader.large is not None:
            check_large_request(self._reader.large)
        return requests

    def complete(self, request: Request, buffers: Sequence[Buffer] | None) -> list[Buffer]:
        """Hand in the answer to a request; what can be written now, in order, maybe nothing.

        `buffers` hold the whole response with its length prefix; None for a request that gets none (acks=0).
        Call `note_written` once bytes have left. Raises ValueError for a request that was completed before or
        is another connection's.
        """
        pending = self._pending
        place = request.correlation - pending[0].correlation if pending else -1
        if request.state is not RequestState.WAITING or not 0 <= place < len(pending):
            raise ValueError(f"{request!r} does not wait for an answer")
        if pending[place] is not request:
            raise ValueError(f"{request!r} is another connection's")
        if buffers is not None:
            request.answer = buffers
            for buffer in buffers:
                self._answer_bytes += memoryview(buffer).nbytes
        request.release_body()
        request.state = RequestState.COMPLETED
        if place:
            return []
        out: list[Buffer] = []
        while pending and pending[0].state is RequestState.COMPLETED:
            first = pending.popleft()
            self._request_bytes -= first.size_bytes
            out.extend(first.answer)
            first.answer = ()
            first.state = RequestState.SENT
        return out

    def note_written(self, size_bytes: int) -> None:
        """So many bytes of what `complete` handed out have been flushed to the peer."""
        if not 0 <= size_bytes <= self._answer_bytes:
            raise ValueError(f"{size_bytes} bytes written of {self._answer_bytes} handed out")
        self._answer_bytes -= size_bytes
