"""aiokafka, an asyncio client, driven from plain code through a loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import aiokafka
import aiokafka.errors

from tests.clients.adapter_base import (
    CALL_TIMEOUT_S,
    HEARTBEAT_MS,
    READ_COMMITTED,
    Client,
    Consumer,
    Partition,
    Producer,
    Record,
)


class _Loop:
    """One event loop in a thread of its own, shared by all aiokafka adapters of the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(timeout=CALL_TIMEOUT_S)


_shared_loop: list[_Loop] = []


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    if not _shared_loop:
        _shared_loop.append(_Loop())
    return _shared_loop[0].run(coroutine)


async def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a plain function on the loop's thread: aiokafka's plain methods are not thread-safe either."""
    return function(*args, **kwargs)


class AioKafkaProducer(Producer):
    def __init__(self, producer: aiokafka.AIOKafkaProducer, *, transactional: bool) -> None:
        self._producer = producer
        self._futures: list[Any] = []
        self._started = False
        if not transactional:
            self._start()

    def _start(self) -> None:
        _run(self._producer.start())
        self._started = True

    def init_transactions(self) -> None:
        self._start()

    def begin(self) -> None:
        _run(self._producer.begin_transaction())

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        coroutine = self._producer.send(topic, value, key=key, partition=partition, headers=list(headers))
        self._futures.append(_run(coroutine))

    def flush(self) -> None:
        futures, self._futures = self._futures, []

        async def settle() -> list[Any]:
            return await asyncio.gather(*futures, return_exceptions=True)

        for outcome in _run(settle()):
            if isinstance(outcome, BaseException):
                raise outcome

    def send_offsets(self, consumer: Consumer, offsets: Mapping[Partition, int]) -> None:
        assert isinstance(consumer, AioKafkaConsumer)
        wanted = {aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()}
        _run(self._producer.send_offsets_to_transaction(wanted, consumer.group))

    def commit(self) -> None:
        _run(self._producer.commit_transaction())
        self._forget()

    def abort(self) -> None:
        _run(self._producer.abort_transaction())
        self._forget()

    def _forget(self) -> None:
        futures, self._futures = self._futures, []

        async def settle() -> None:
            await asyncio.gather(*futures, return_exceptions=True)

        _run(settle())

    def close(self) -> None:
        if self._started:
            self._started = False
            self._forget()
            _run(self._producer.stop())


class AioKafkaConsumer(Consumer):
    def __init__(self, consumer: aiokafka.AIOKafkaConsumer, group: str | None) -> None:
        self._consumer = consumer
        self.group = group
        self._started = False

    def _start(self) -> None:
        if not self._started:
            self._started = True
            _run(self._consumer.start())

    def assign(self, partitions: Iterable[Partition], *, from_committed: bool = False) -> None:
        self._start()
        wanted = [aiokafka.TopicPartition(*each) for each in partitions]
        _run(_call(self._consumer.assign, wanted))
        if not from_committed:
            _run(self._consumer.seek_to_beginning(*wanted))

    def subscribe(self, topic: str) -> None:
        # Subscribing a started consumer makes it wait for the next poll of the metadata; before is the norm.
        _run(_call(self._consumer.subscribe, [topic]))
        self._start()

    def seek(self, partition: Partition, offset: int) -> None:
        _run(_call(self._consumer.seek, aiokafka.TopicPartition(*partition), offset))

    def poll(self, timeout_s: float) -> list[Record]:
        found = _run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [
            Record(r.topic, r.partition, r.offset, r.key, r.value, tuple(r.headers))
            for records in found.values()
            for r in records
        ]

    def position(self, partition: Partition) -> int:
        return int(_run(self._consumer.position(aiokafka.TopicPartition(*partition))))

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        _run(self._consumer.commit({aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()}))

    def committed(self, partition: Partition) -> int | None:
        offset: int | None = _run(self._consumer.committed(aiokafka.TopicPartition(*partition)))
        return offset

    def assignment(self) -> set[Partition]:
        return {(tp.topic, tp.partition) for tp in _run(_call(self._consumer.assignment))}

    def begin_and_end(self, partition: Partition) -> tuple[int, int]:
        tp = aiokafka.TopicPartition(*partition)
        return _run(self._consumer.beginning_offsets([tp]))[tp], _run(self._consumer.end_offsets([tp]))[tp]

    def close(self) -> None:
        if self._started:
            _run(self._consumer.stop())


class AioKafka(Client):
    name = "aiokafka"
    lacks: ClassVar[Mapping[str, str]] = {
        "transactions v2 (KIP-890)": "it knows the first protocol alone",
        "groups of KIP-848": "it knows the classic protocol alone",
    }

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        idempotent: bool = False,
        compression: str = "none",
        transaction_timeout_ms: int = 60_000,
    ) -> Producer:
        async def build() -> aiokafka.AIOKafkaProducer:
            return aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                transactional_id=transactional_id,
                enable_idempotence=idempotent or transactional_id is not None,
                transaction_timeout_ms=transaction_timeout_ms,
                compression_type=None if compression == "none" else compression,
                acks="all",
                linger_ms=2,
            )

        return AioKafkaProducer(_run(build()), transactional=transactional_id is not None)

    def consumer(
        self,
        *,
        isolation: str = READ_COMMITTED,
        group: str | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        max_wait_ms: int = 100,
    ) -> Consumer:
        async def build() -> aiokafka.AIOKafkaConsumer:
            return aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                group_id=group,
                group_instance_id=instance_id,
                isolation_level=isolation,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=HEARTBEAT_MS,
                fetch_max_wait_ms=max_wait_ms,
            )

        return AioKafkaConsumer(_run(build()), group)

    def is_fenced(self, error: BaseException) -> bool:
        # Its sender may have heard of it before the call: then the call trips over the state that this left.
        too_late = isinstance(error, AssertionError) and "TransactionState.FATAL_ERROR ->" in str(error)
        return too_late or isinstance(error, aiokafka.errors.ProducerFenced)
