"""Transactions that stay open, by the protocol itself: ten thousand clients with threads of their own would not fit."""

from __future__ import annotations

import socket
import struct
from io import BytesIO
from typing import Any

from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from wire.apis import ApiKey
from wire.building import build_request
from wire.records import Record, build_batch

TRANSACTIONAL = 0x10


class RawConnection:
    """One request, one answer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def call(self, api: ApiKey, name: str, version: int, **fields: Any) -> Any:
        schema: Any = load_entity_schema(name, version, EntityType.request)
        out = BytesIO()
        out.write(struct.pack(">hhih", api, version, 1, 5) + b"bench" + b"\0" * schema.__flexible__)
        entity_writer(schema)(out, build_request(api, version, None, **fields))
        body = out.getvalue()
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        frame = self._receive(struct.unpack(">i", self._receive(4))[0])
        answer: Any = load_entity_schema(name, version, EntityType.response)
        return entity_reader(answer)(frame, 5 if answer.__flexible__ else 4)[0]

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise ConnectionError("the broker closed the connection")
            received += part
        return bytes(received)


def open_transaction(connection: RawConnection, transactional_id: str, topic: str, partition: int) -> None:
    """Begin a transaction (first protocol) with one record, and leave it open. Raises RuntimeError."""
    for _ in range(100):
        producer = connection.call(
            ApiKey.INIT_PRODUCER_ID,
            "init_producer_id",
            2,
            transactional_id=transactional_id,
            transaction_timeout=900_000,
        )
        if not producer.error_code:
            break
        # Looking for the coordinator is also what makes Apache Kafka set one up.
        connection.call(ApiKey.FIND_COORDINATOR, "find_coordinator", 3, key=transactional_id, key_type=1)
    _check(producer.error_code)
    added = connection.call(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [partition]}],
    )
    _check(added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
    batch = build_batch(
        [Record(None, b"x" * 100, timestamp=1)],
        attributes=TRANSACTIONAL,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
    )
    produced = connection.call(
        ApiKey.PRODUCE,
        "produce",
        9,
        transactional_id=transactional_id,
        acks=-1,
        timeout=15_000,
        topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
    )
    _check(produced.responses[0].partition_responses[0].error_code)


def _check(code: Any) -> None:
    if code:
        raise RuntimeError(f"the broker refused: {code!r}")
