"""A blocking Kafka client that sends exactly what a test tells it to.

It negotiates nothing, retries nothing and hides nothing: one request, one response, the version as given.
It shares no code with the broker under test (only kio's generated schemas), so that a mistake in the broker's
own codec can't cancel itself out here. Times in requests are integers in milliseconds.
"""

import datetime
import socket
import struct
import time
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from io import BytesIO
from types import UnionType
from typing import Any
from uuid import UUID

from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

NO_PRODUCER_ID = -1


def _strip_optional(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, UnionType):
        return next(arg for arg in typing.get_args(kind) if arg is not type(None))
    return kind


@cache
def _hints(entity: type) -> Mapping[str, Any]:
    return typing.get_type_hints(entity)


def _zero(kind: Any) -> Any:
    """What Kafka's generated classes hold in a field nobody has set."""
    if kind is not _strip_optional(kind):
        return None
    if typing.get_origin(kind) is tuple:
        return ()
    if is_dataclass(kind):
        return make(typing.cast(type, kind), {})
    for base, value in ((bool, False), (int, 0), (str, ""), (bytes, b"")):
        if isinstance(kind, type) and issubclass(kind, base):
            return value
    if isinstance(kind, type) and issubclass(kind, datetime.timedelta):
        return datetime.timedelta(0)
    return UUID(int=0)


def _convert(kind: Any, value: Any) -> Any:
    kind = _strip_optional(kind)
    if value is None:
        return None
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return tuple(_convert(item, each) for each in value)
    if is_dataclass(kind):
        return make(typing.cast(type, kind), value)
    if isinstance(kind, type) and issubclass(kind, datetime.timedelta):
        return datetime.timedelta(milliseconds=value)
    return value


def make(entity: type, values: Mapping[str, Any]) -> Any:
    """Build a kio entity from plain dicts, lists and numbers; unset fields get their default or zero.

    Raises TypeError for a field that this version of the message does not have.
    """
    hints = _hints(entity)
    known = {field.name: field for field in fields(typing.cast(Any, entity))}
    if unknown := set(values) - set(known):
        raise TypeError(f"{entity.__name__} v{entity.__version__} has no {sorted(unknown)}")  # type: ignore[attr-defined]
    built = {}
    for name, field in known.items():
        if name in values:
            built[name] = _convert(hints[name], values[name])
        elif field.default is MISSING and field.default_factory is MISSING:
            built[name] = _zero(hints[name])
    return entity(**built)


def encode_request(
    api: str, version: int, correlation_id: int, client_id: str, values: Mapping[str, Any]
) -> bytes:
    """One request frame without its length prefix: header and body."""
    schema: Any = load_entity_schema(api, version, EntityType.request)
    out = BytesIO()
    name = client_id.encode()
    out.write(struct.pack(">hhih", schema.__api_key__, version, correlation_id, len(name)) + name)
    if schema.__flexible__:
        out.write(b"\x00")
    entity_writer(schema)(out, make(schema, values))
    return out.getvalue()


def api_key(api: str) -> int:
    version = min(schema_name_map[api])
    schema: Any = load_entity_schema(api, version, EntityType.request)
    return int(schema.__api_key__)


class ConnectionClosed(Exception):
    """The broker closed (or reset) the connection."""


class RawKafka:
    """One connection. Usable as a context manager."""

    def __init__(self, bootstrap: str, *, client_id: str = "raw", timeout_s: float = 30.0) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> "RawKafka":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionClosed from error

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def _read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError as error:
                raise ConnectionClosed from error
            if not chunk:
                raise ConnectionClosed
            data += chunk
        return bytes(data)

    def read_frame(self) -> bytes:
        """The next frame without its length prefix. Raises ConnectionClosed, TimeoutError."""
        (size,) = struct.unpack(">i", self._read_exactly(4))
        return self._read_exactly(size)

    def is_closed_by_peer(self) -> bool:
        """Wait until the broker says something (False) or hangs up (True)."""
        try:
            self._read_exactly(1)
        except ConnectionClosed:
            return True
        return False

    def send(self, api: str, version: int, values: Mapping[str, Any]) -> Callable[[], Any]:
        """Send a request now; the callable returned reads its response (call in the order of sending)."""
        self._correlation_id += 1
        expected = self._correlation_id
        self.send_frame(encode_request(api, version, expected, self.client_id, values))

        def receive() -> Any:
            frame = self.read_frame()
            (correlation_id,) = struct.unpack_from(">i", frame)
            assert correlation_id == expected
            schema: Any = load_entity_schema(api, version, EntityType.response)
            position = 5 if schema.__flexible__ and api != "api_versions" else 4
            entity, size = entity_reader(schema)(frame, position)
            assert position + size == len(frame), "trailing bytes after the response"
            return entity

        return receive

    def call(self, api: str, version: int, **values: Any) -> Any:
        """One request and its response, as a kio entity."""
        return self.send(api, version, values)()

    # Shorthands for what nearly every raw test does.

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        request = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
        response = self.call("create_topics", 5, topics=[request], timeout=15_000)
        assert response.topics[0].error_code is ErrorCode.none, response
        # Apache Kafka's leaders come up some time after that answer.
        for partition in range(partitions):
            while self._list_offset(topic, partition, -1, False).error_code is not ErrorCode.none:
                time.sleep(0.01)

    def init_producer(
        self, transactional_id: str | None, *, timeout_ms: int = 60_000, version: int = 5
    ) -> Any:
        """InitProducerId, patient while a coordinator is still starting up."""
        for _ in range(200):
            response = self.call(
                "init_producer_id",
                version,
                transactional_id=transactional_id,
                transaction_timeout=timeout_ms,
                **({"producer_id": -1, "producer_epoch": -1} if version >= 3 else {}),
            )
            if response.error_code not in STARTING_UP:
                return response
            # Looking for the coordinator is also what makes Apache Kafka set one up.
            self.call("find_coordinator", 4, key_type=1, coordinator_keys=[transactional_id or ""])
            time.sleep(0.05)
        return response

    def produce(
        self,
        topic: str,
        batches: Mapping[int, bytes],
        *,
        transactional_id: str | None = None,
        version: int = 12,
        acks: int = -1,
    ) -> dict[int, Any]:
        """Produce one batch per partition of one topic; the responses by partition."""
        response = self.call(
            "produce",
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout=15_000,
            topic_data=[
                {
                    "name": topic,
                    "partition_data": [{"index": index, "records": data} for index, data in batches.items()],
                }
            ],
        )
        return {each.index: each for each in response.responses[0].partition_responses}

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        committed: bool = True,
        max_wait_ms: int = 100,
        min_bytes: int = 1,
        version: int = 12,
    ) -> Any:
        """Fetch one partition (without a fetch session); the partition's response."""
        response = self.call(
            "fetch",
            version,
            replica_id=-1,
            max_wait=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=50 << 20,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,
            rack_id="",
            topics=[
                {
                    "topic": topic,
                    "partitions": [
                        {
                            "partition": partition,
                            "current_leader_epoch": -1,
                            "fetch_offset": offset,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": 10 << 20,
                        }
                    ],
                }
            ],
        )
        return response.responses[0].partitions[0]

    def list_offset(self, topic: str, partition: int, timestamp: int, *, committed: bool = False) -> int:
        """ListOffsets v7: timestamp -2 is the log start, -1 the end (last stable offset when committed)."""
        each = self._list_offset(topic, partition, timestamp, committed)
        assert each.error_code is ErrorCode.none, each
        return int(each.offset)

    def _list_offset(self, topic: str, partition: int, timestamp: int, committed: bool) -> Any:
        response = self.call(
            "list_offsets",
            7,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
                    ],
                }
            ],
        )
        return response.topics[0].partitions[0]

    def end_txn(self, transactional_id: str, pid: int, epoch: int, *, commit: bool, version: int = 5) -> Any:
        return self.call(
            "end_txn",
            version,
            transactional_id=transactional_id,
            producer_id=pid,
            producer_epoch=epoch,
            committed=commit,
        )


STARTING_UP = frozenset(
    {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator}
)
