"""Clients of other languages: one adapter for all of them, over a driver process per client.

To add one: write a driver that speaks the protocol of `driver_process` with the operations used here, subclass
RemoteClient, and append that to client_adapters.CLIENTS. A driver heartbeats, resets and times out as
`adapter_base` says for every adapter.

What a client cannot do stands in its `lacks`: the scenarios that need it are left out, and listed.
"""

import base64
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from tests.clients.adapter_base import (
    CALL_TIMEOUT_S,
    READ_COMMITTED,
    Client,
    Consumer,
    Partition,
    Producer,
    Record,
)
from tests.clients.driver_process import DriverProcess, DriverRefused
from tests.clients.features import CANNOT, FEATURES
from tests.support.left_out import leave_out

HANG_S = 30.0
"""How long after its own timeout a call is taken for hung."""

OPTIONS = ("transactional_id", "idempotent", "compression", "group", "instance_id")
"""Options that a client may lack; also one value of one, as `compression=zstd`."""

OPERATIONS = (
    "begin_and_end",
    "committed",
    "commit",
    "position",
    "seek",
    "seek_in_group",
    "send_offsets",
    "subscribe",
)
"""Operations that a client may lack; seek_in_group is the seek of a consumer that has subscribed.

Those of transactions go with the option transactional_id.
"""

PARTS = ("empty_value",)
"""What a scenario asks about to leave out a part of itself."""


def encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def decoded(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


class RemoteClient(Client):
    _driver: ClassVar[DriverProcess | None] = None

    @classmethod
    @abstractmethod
    def command(cls) -> Sequence[str]:
        """What starts the driver, built first if need be. Leaves the test out where a toolchain is missing."""

    @classmethod
    def driver(cls) -> DriverProcess:
        """The one process of this client, started if there is none, or none any more."""
        if "_driver" not in cls.__dict__ or cls._driver is None or not cls._driver.alive:
            for lacking in cls.lacks:
                assert lacking.split("=")[0] in (*OPTIONS, *OPERATIONS, *PARTS, *FEATURES), (
                    f"{lacking}: no scenario asks for it"
                )
            cls._driver = DriverProcess(cls.name, cls.command())
        return cls._driver

    @classmethod
    def need(cls, feature: str) -> None:
        if feature in cls.lacks:
            leave_out(CANNOT, f"{feature}: {cls.lacks[feature]}")

    @classmethod
    def open(cls, op: str, **options: object) -> "RemoteHandle":
        for option, value in options.items():
            if value not in (None, False, "none"):
                cls.need(option)
                cls.need(f"{option}={value}")
        driver = cls.driver()
        return RemoteHandle(cls, driver, driver.call(op, within_s=CALL_TIMEOUT_S + HANG_S, **options))

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        idempotent: bool = False,
        compression: str = "none",
        transaction_timeout_ms: int = 60_000,
        **more: object,
    ) -> Producer:
        """`more` goes to the driver as it is: settings that only this client's own tests know."""
        return RemoteProducer(
            self.open(
                "producer",
                bootstrap=self.bootstrap,
                transactional_id=transactional_id,
                idempotent=idempotent or transactional_id is not None,
                compression=compression,
                transaction_timeout_ms=transaction_timeout_ms,
                **more,
            )
        )

    def consumer(
        self,
        *,
        isolation: str = READ_COMMITTED,
        group: str | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        max_wait_ms: int = 100,
        **more: object,
    ) -> Consumer:
        return RemoteConsumer(
            self.open(
                "consumer",
                bootstrap=self.bootstrap,
                isolation=isolation,
                group=group,
                instance_id=instance_id,
                session_timeout_ms=session_timeout_ms,
                max_wait_ms=max_wait_ms,
                **more,
            )
        )

    def is_fenced(self, error: BaseException) -> bool:
        return isinstance(error, DriverRefused) and error.fenced


class RemoteHandle:
    """A producer or a consumer inside a driver. It ends with that driver, also if a new one was started."""

    def __init__(self, client: type[RemoteClient], driver: DriverProcess, number: int) -> None:
        self._client = client
        self._driver = driver
        self.number = number
        self._closed = False

    def need(self, feature: str) -> None:
        self._client.need(feature)

    def call(self, op: str, *, extra_s: float = 0.0, **fields: object) -> Any:
        self.need(op)
        within_s = CALL_TIMEOUT_S + HANG_S + extra_s
        return self._driver.call(op, within_s=within_s, handle=self.number, **fields)

    def close(self) -> None:
        """Closing again, or after the driver ended, does nothing."""
        if not self._closed and self._driver.alive:
            self._closed = True
            self.call("close")


class RemoteProducer(Producer):
    def __init__(self, handle: RemoteHandle) -> None:
        self.handle = handle

    def init_transactions(self) -> None:
        self.handle.call("init_transactions")

    def begin(self) -> None:
        self.handle.call("begin")

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self.handle.call(
            "send",
            topic=topic,
            partition=partition,
            value=encoded(value),
            key=encoded(key),
            headers=[[name, encoded(each)] for name, each in headers],
        )

    def flush(self) -> None:
        self.handle.call("flush")

    def send_offsets(self, consumer: Consumer, offsets: Mapping[Partition, int]) -> None:
        assert isinstance(consumer, RemoteConsumer)
        self.handle.call("send_offsets", consumer=consumer.handle.number, offsets=triples(offsets))

    def commit(self) -> None:
        self.handle.call("commit")

    def abort(self) -> None:
        self.handle.call("abort")

    def close(self) -> None:
        self.handle.close()


class RemoteConsumer(Consumer):
    def __init__(self, handle: RemoteHandle) -> None:
        self.handle = handle
        self._subscribed = False

    def assign(self, partitions: Iterable[Partition], *, from_committed: bool = False) -> None:
        self.handle.call("assign", partitions=list(map(list, partitions)), from_committed=from_committed)

    def subscribe(self, topic: str) -> None:
        self.handle.call("subscribe", topic=topic)
        self._subscribed = True

    def seek(self, partition: Partition, offset: int) -> None:
        if self._subscribed:
            self.handle.need("seek_in_group")
        self.handle.call("seek", topic=partition[0], partition=partition[1], offset=offset)

    def poll(self, timeout_s: float) -> list[Record]:
        return [
            Record(
                record["topic"],
                record["partition"],
                record["offset"],
                decoded(record["key"]),
                decoded(record["value"]),
                tuple((name, base64.b64decode(value)) for name, value in record["headers"]),
            )
            for record in self.handle.call("poll", extra_s=timeout_s, timeout_s=timeout_s)
        ]

    def position(self, partition: Partition) -> int:
        return int(self.handle.call("position", topic=partition[0], partition=partition[1]))

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self.handle.call("commit", offsets=triples(offsets))

    def committed(self, partition: Partition) -> int | None:
        offset: int | None = self.handle.call("committed", topic=partition[0], partition=partition[1])
        return offset

    def assignment(self) -> set[Partition]:
        return {(topic, partition) for topic, partition in self.handle.call("assignment")}

    def begin_and_end(self, partition: Partition) -> tuple[int, int]:
        begin, end = self.handle.call("begin_and_end", topic=partition[0], partition=partition[1])
        return begin, end

    def close(self) -> None:
        self.handle.close()


def triples(offsets: Mapping[Partition, int]) -> list[list[object]]:
    return [[topic, partition, offset] for (topic, partition), offset in offsets.items()]
