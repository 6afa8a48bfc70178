"""A small blocking client for what Kafka's own clients cannot say: group transactions (design T10).

One connection, one call at a time. Members write with any Kafka client; this one enlists them and ends the group.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from wire import group_transactions as messages
from wire.errors import KafkaError


class GroupTransactionClient:
    """Talks to the broker at HOST:PORT. Every call raises KafkaError for a refusal, OSError for a broken connection."""

    def __init__(self, bootstrap_server: str, *, timeout_s: float = 60.0, client_id: str = "sealog") -> None:
        host, _, port = bootstrap_server.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._client_id = client_id
        self._correlation_id = 0

    def enlist(
        self,
        sink: str,
        batch: int,
        attempt: str,
        member: messages.Member,
        *,
        timeout_ms: int,
        generation: int = 0,
    ) -> messages.Response:
        """Make the member's transaction part of the attempt, before or after its first write.

        `repeated` in the answer: the batch is done, there is nothing to write.
        """
        return self._ask(
            messages.Enlist(
                sink=sink,
                batch=batch,
                attempt=attempt,
                member=member,
                timeout_ms=timeout_ms,
                generation=generation,
            )
        )

    def commit(
        self,
        sink: str,
        batch: int,
        attempt: str,
        members: Sequence[messages.Member],
        offsets: Sequence[messages.Offset] = (),
    ) -> messages.Response:
        """Commit exactly these members (all have voted) and discard every other, in one write."""
        return self._ask(
            messages.Commit(
                sink=sink, batch=batch, attempt=attempt, members=tuple(members), offsets=tuple(offsets)
            )
        )

    def abort(self, sink: str, batch: int, attempt: str) -> messages.Response:
        """Discard the attempt. Of a batch that is done: its outcome, and nothing changes."""
        return self._ask(messages.Abort(sink=sink, batch=batch, attempt=attempt))

    def extend(self, sink: str, batch: int, attempt: str, *, timeout_ms: int) -> messages.Response:
        """Give an undecided attempt this much time from now on."""
        return self._ask(messages.Extend(sink=sink, batch=batch, attempt=attempt, timeout_ms=timeout_ms))

    def describe(self, sink: str) -> messages.Response:
        """The sink's last committed batch, and its batches that are not decided."""
        return self._ask(messages.Describe(sink=sink))

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: messages.Request) -> messages.Response:
        self._correlation_id += 1
        self._socket.sendall(messages.encode_request(self._correlation_id, self._client_id, request))
        size = int.from_bytes(self._receive(4), "big")
        correlation_id, response = messages.decode_response(self._receive(size))
        if correlation_id != self._correlation_id:
            raise OSError(f"answer {correlation_id} to request {self._correlation_id}")
        if response.error:
            raise KafkaError(response.error_code, response.message)
        return response

    def _receive(self, size_bytes: int) -> bytes:
        received = bytearray()
        while len(received) < size_bytes:
            part = self._socket.recv(size_bytes - len(received))
            if not part:
                raise ConnectionError("the broker closed the connection")
            received += part
        return bytes(received)
