"""kafka-python, a client in pure Python with threads."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import kafka
import kafka.errors
from kafka.structs import OffsetAndMetadata

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


class KafkaPythonProducer(Producer):
    def __init__(self, producer: kafka.KafkaProducer) -> None:
        self._producer = producer
        self._futures: list[Any] = []

    def init_transactions(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self._futures.append(
            self._producer.send(topic, value, key=key, partition=partition, headers=list(headers))
        )

    def flush(self) -> None:
        self._producer.flush(timeout=CALL_TIMEOUT_S)
        futures, self._futures = self._futures, []
        for future in futures:
            future.get(timeout=CALL_TIMEOUT_S)

    def send_offsets(self, consumer: Consumer, offsets: Mapping[Partition, int]) -> None:
        assert isinstance(consumer, KafkaPythonConsumer)
        self._producer.send_offsets_to_transaction(
            {kafka.TopicPartition(*tp): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()},
            consumer.consumer.group_metadata(),
        )

    def commit(self) -> None:
        self._producer.commit_transaction()
        self._futures.clear()

    def abort(self) -> None:
        self._producer.abort_transaction()
        self._futures.clear()

    def close(self) -> None:
        self._producer.close(timeout=5)


class KafkaPythonConsumer(Consumer):
    def __init__(self, consumer: kafka.KafkaConsumer) -> None:
        self.consumer = consumer

    def assign(self, partitions: Iterable[Partition], *, from_committed: bool = False) -> None:
        wanted = [kafka.TopicPartition(*each) for each in partitions]
        self.consumer.assign(wanted)
        if not from_committed:
            self.consumer.seek_to_beginning(*wanted)

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])
        # A poll that runs out while 3.0.12 rejoins for news of its topics' partitions loses the assignment for
        # good. So let there be no news: learn of the partitions before the first join.
        self.consumer.partitions_for_topic(topic)

    def seek(self, partition: Partition, offset: int) -> None:
        self.consumer.seek(kafka.TopicPartition(*partition), offset)

    def poll(self, timeout_s: float) -> list[Record]:
        found = self.consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [
            Record(r.topic, r.partition, r.offset, r.key, r.value, tuple(r.headers))
            for records in found.values()
            for r in records
        ]

    def position(self, partition: Partition) -> int:
        return int(self.consumer.position(kafka.TopicPartition(*partition)))

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self.consumer.commit(
            {kafka.TopicPartition(*tp): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}
        )

    def committed(self, partition: Partition) -> int | None:
        offset: int | None = self.consumer.committed(kafka.TopicPartition(*partition))
        return offset

    def assignment(self) -> set[Partition]:
        return {(tp.topic, tp.partition) for tp in self.consumer.assignment()}

    def begin_and_end(self, partition: Partition) -> tuple[int, int]:
        tp = kafka.TopicPartition(*partition)
        return self.consumer.beginning_offsets([tp])[tp], self.consumer.end_offsets([tp])[tp]

    def close(self) -> None:
        self.consumer.close(autocommit=False)


class KafkaPython(Client):
    name = "kafka-python"
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
        return KafkaPythonProducer(
            kafka.KafkaProducer(
                bootstrap_servers=self.bootstrap,
                transactional_id=transactional_id,
                enable_idempotence=idempotent or transactional_id is not None,
                transaction_timeout_ms=transaction_timeout_ms,
                compression_type=None if compression == "none" else compression,
                linger_ms=2,
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
    ) -> Consumer:
        return KafkaPythonConsumer(
            kafka.KafkaConsumer(
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
        )

    def is_fenced(self, error: BaseException) -> bool:
        if isinstance(error, kafka.errors.ProducerFencedError):
            return True
        # After the first report every further call says "... in an error state: <the first error>".
        return isinstance(error, kafka.errors.KafkaError) and "ProducerFenced" in str(error)
