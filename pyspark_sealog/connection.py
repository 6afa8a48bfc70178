"""One blocking connection to a broker: whole requests out, whole answers in."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from typing_extensions import Buffer

from pyspark_sealog.bulk_frames import FETCH_VERSION, PRODUCE_VERSION, Fetched, fetched, produce_request
from wire import codec, private_api
from wire.apis import ApiKey
from wire.errors import KafkaError

VERSIONS: Final = {
    ApiKey.PRODUCE: PRODUCE_VERSION,
    ApiKey.FETCH: FETCH_VERSION,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.END_TXN: 5,
    ApiKey.API_VERSIONS: 0,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_RECORDS: 2,
}
"""Produce 12 and EndTxn 5 are transactions v2 (KIP-890): no partition is added by a request of its own."""


_MOST_PIECES: Final = 512
"""Of one call of the system, which takes 1,024."""

_correlation_ids: Final = itertools.count(1)
"""Of all connections together: an answer that a broken connection owed is never taken for another's."""


class Connection:
    """Every call raises OSError when the connection breaks or an answer takes longer than `timeout_s`."""

    def __init__(self, host: str, port: int, *, timeout_s: float, client_id: str) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._owed: set[int] = set()
        self._arrived: dict[int, memoryview] = {}
        self.address = f"{host}:{port}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def call(self, key: ApiKey, /, **fields: Any) -> Any:
        """Ask and wait."""
        return self.receive(key, self.send(key, **fields))

    def send(self, key: ApiKey, /, **fields: Any) -> int:
        """Ask without waiting; the number under which `receive` gets the answer."""
        version, number = VERSIONS[key], next(_correlation_ids) & 0x7FFFFFFF
        entity = codec.build_request(key, version, None, **fields)
        self._socket.sendall(codec.encode_request(key, version, number, self._client_id, entity))
        self._owed.add(number)
        return number

    def send_produce(
        self, transactional_id: str, timeout_ms: int, batches: Sequence[tuple[str, int, Sequence[Buffer]]]
    ) -> int:
        """A Produce request with acks=all of batches in pieces: (topic, partition, pieces). As `send` does it."""
        number = next(_correlation_ids) & 0x7FFFFFFF
        self._send_pieces(produce_request(number, self._client_id, transactional_id, timeout_ms, batches))
        self._owed.add(number)
        return number

    def _send_pieces(self, pieces: Sequence[Buffer]) -> None:
        left = [memoryview(piece).cast("B") for piece in pieces]
        first = 0
        while first < len(left):
            sent = self._socket.sendmsg(left[first : first + _MOST_PIECES])
            while first < len(left) and sent >= len(left[first]):
                sent -= len(left[first])
                first += 1
            if sent:
                left[first] = left[first][sent:]

    def receive(self, key: ApiKey, number: int) -> Any:
        """The answer to a question that was sent on this connection; others may be asked in between."""
        return codec.decode_response(key, VERSIONS[key], self._frame(number))[1]

    def receive_fetched(self, number: int) -> Fetched:
        """The answer to a Fetch of one partition."""
        return fetched(self._frame(number))

    def ask(self, key: ApiKey, request: private_api.Request) -> Any:
        """One call of sealog's own. Raises KafkaError for a refusal."""
        number = next(_correlation_ids) & 0x7FFFFFFF
        self._socket.sendall(private_api.encode_request(key, number, self._client_id, request))
        self._owed.add(number)
        answer = private_api.decode_response(key, self._frame(number))[1]
        if answer.error:
            raise KafkaError(answer.error_code, answer.message)
        return answer

    def _frame(self, number: int) -> memoryview:
        if number not in self._owed:
            raise OSError(f"request {number} was sent on a connection that broke")
        while number not in self._arrived:
            frame = self._exactly(int.from_bytes(self._exactly(4), "big")).toreadonly()
            self._arrived[int.from_bytes(frame[:4], "big")] = frame
        self._owed.remove(number)
        return self._arrived.pop(number)

    def _exactly(self, size_bytes: int) -> memoryview:
        # A bytearray would be filled with zeros first.
        frame: memoryview = np.empty(size_bytes, dtype=np.uint8).data
        position = 0
        while position < size_bytes:
            got = self._socket.recv_into(frame[position:])
            if not got:
                raise ConnectionError(f"{self.address} closed the connection")
            position += got
        return frame
