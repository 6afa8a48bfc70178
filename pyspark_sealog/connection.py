"""One blocking connection to a broker: whole requests out, whole answers in, in order."""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Final

from wire import codec, private_api
from wire.apis import ApiKey
from wire.errors import KafkaError

VERSIONS: Final = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.END_TXN: 5,
    ApiKey.API_VERSIONS: 0,
    ApiKey.CREATE_TOPICS: 5,
}
"""Produce 12 and EndTxn 5 are transactions v2 (KIP-890): no partition is added by a request of its own."""


class Connection:
    """Every call raises OSError when the connection breaks or an answer takes longer than `timeout_s`."""

    def __init__(self, host: str, port: int, *, timeout_s: float, client_id: str) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._sent = 0
        self._received = 0
        self.address = f"{host}:{port}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def call(self, key: ApiKey, /, **fields: Any) -> Any:
        """Ask and wait. Answers still under way must have been received before."""
        self.send(key, **fields)
        return self.receive(key)

    def send(self, key: ApiKey, /, **fields: Any) -> None:
        """Ask without waiting; `receive` gets the answers in the order of the questions."""
        version = VERSIONS[key]
        self._sent += 1
        entity = codec.build_request(key, version, None, **fields)
        self._socket.sendall(codec.encode_request(key, version, self._sent, self._client_id, entity))

    def receive(self, key: ApiKey) -> Any:
        correlation_id, answer = codec.decode_response(key, VERSIONS[key], self._frame())
        self._check(correlation_id)
        return answer

    def ask(self, key: ApiKey, request: private_api.Request) -> Any:
        """One call of sealog's own. Raises KafkaError for a refusal."""
        self._sent += 1
        self._socket.sendall(private_api.encode_request(key, self._sent, self._client_id, request))
        correlation_id, answer = private_api.decode_response(key, self._frame())
        self._check(correlation_id)
        if answer.error:
            raise KafkaError(answer.error_code, answer.message)
        return answer

    def _check(self, correlation_id: int) -> None:
        self._received += 1
        if correlation_id != self._received:
            raise OSError(f"{self.address} answered request {correlation_id}, not {self._received}")

    def _frame(self) -> memoryview:
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size).toreadonly()

    def _exactly(self, size_bytes: int) -> memoryview:
        frame = memoryview(bytearray(size_bytes))
        position = 0
        while position < size_bytes:
            got = self._socket.recv_into(frame[position:])
            if not got:
                raise ConnectionError(f"{self.address} closed the connection")
            position += got
        return frame
