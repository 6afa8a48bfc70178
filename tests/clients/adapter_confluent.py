"""confluent-kafka, which is librdkafka with a Python face."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import confluent_kafka

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


class ConfluentProducer(Producer):
    def __init__(self, producer: confluent_kafka.Producer) -> None:
        self._producer: Any = producer
        self._failures: list[confluent_kafka.KafkaError] = []

    def init_transactions(self) -> None:
        self._producer.init_transactions(CALL_TIMEOUT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def _delivered(self, error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is not None:
            self._failures.append(error)

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self._producer.produce(
            topic, value, key=key, partition=partition, headers=list(headers), on_delivery=self._delivered
        )

    def flush(self) -> None:
        assert self._producer.flush(CALL_TIMEOUT_S) == 0
        failures, self._failures = self._failures, []
        if failures:
            raise confluent_kafka.KafkaException(failures[0])

    def send_offsets(self, consumer: Consumer, offsets: Mapping[Partition, int]) -> None:
        assert isinstance(consumer, ConfluentConsumer)
        self._producer.send_offsets_to_transaction(
            [
                confluent_kafka.TopicPartition(topic, index, offset)
                for (topic, index), offset in offsets.items()
            ],
            consumer.consumer.consumer_group_metadata(),
            CALL_TIMEOUT_S,
        )

    def commit(self) -> None:
        self._producer.commit_transaction(CALL_TIMEOUT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(CALL_TIMEOUT_S)
        self._failures.clear()

    def close(self) -> None:
        # The destructor ends its threads and connections; flush() would raise again if it was fenced.
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


class ConfluentConsumer(Consumer):
    """librdkafka's position() counts what the application got; its end-of-partition events tell the rest."""

    def __init__(self, consumer: confluent_kafka.Consumer) -> None:
        self.consumer = consumer
        self._reached: dict[Partition, int] = {}
        self._pending: list[Record] = []

    def assign(self, partitions: Iterable[Partition], *, from_committed: bool = False) -> None:
        start = confluent_kafka.OFFSET_STORED if from_committed else confluent_kafka.OFFSET_BEGINNING
        self.consumer.assign(
            [confluent_kafka.TopicPartition(topic, index, start) for topic, index in partitions]
        )

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def seek(self, partition: Partition, offset: int) -> None:
        self._reached.pop(partition, None)
        self.consumer.seek(confluent_kafka.TopicPartition(*partition, offset))

    def poll(self, timeout_s: float) -> list[Record]:
        found = []
        # consume() waits the whole time for its full number, so wait for one and take what else is there.
        first = self.consumer.poll(timeout_s)
        messages = [] if first is None else [first, *self.consumer.consume(num_messages=500, timeout=0)]
        for message in messages:
            topic, index, offset = message.topic(), message.partition(), message.offset()
            error = message.error()
            if error is None:
                headers = tuple(message.headers() or ())
                found.append(Record(topic, index, offset, message.key(), message.value(), headers))
                self._reached[topic, index] = offset + 1
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                self._reached[topic, index] = offset
            else:
                raise confluent_kafka.KafkaException(error)
        return found

    def position(self, partition: Partition) -> int:
        return self._reached.get(partition, 0)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self.consumer.commit(
            offsets=[confluent_kafka.TopicPartition(*tp, offset) for tp, offset in offsets.items()],
            asynchronous=False,
        )

    def committed(self, partition: Partition) -> int | None:
        wanted = [confluent_kafka.TopicPartition(*partition)]
        offset: int = self.consumer.committed(wanted, timeout=CALL_TIMEOUT_S)[0].offset
        return offset if offset >= 0 else None

    def assignment(self) -> set[Partition]:
        return {(tp.topic, tp.partition) for tp in self.consumer.assignment()}

    def begin_and_end(self, partition: Partition) -> tuple[int, int]:
        tp = confluent_kafka.TopicPartition(*partition)
        low, high = self.consumer.get_watermark_offsets(tp, timeout=CALL_TIMEOUT_S)
        return low, high

    def close(self) -> None:
        self.consumer.close()


class Confluent(Client):
    name = "confluent-kafka"
    lacks: ClassVar[Mapping[str, str]] = {
        "transactions v2 (KIP-890)": "it knows the first protocol alone",
    }

    def producer(
        self,
        *,
        transactional_id: str | None = None,
        idempotent: bool = False,
        compression: str = "none",
        transaction_timeout_ms: int = 60_000,
    ) -> Producer:
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": idempotent or transactional_id is not None,
            "compression.type": compression,
            "linger.ms": 2,
            "log_level": 0,
            "error_cb": lambda error: None,
        }
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
            config["transaction.timeout.ms"] = transaction_timeout_ms
        return ConfluentProducer(confluent_kafka.Producer(config))

    def consumer(
        self,
        *,
        isolation: str = READ_COMMITTED,
        group: str | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        max_wait_ms: int = 100,
    ) -> Consumer:
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            # librdkafka insists on a group name also where none is used.
            "group.id": group or "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "fetch.wait.max.ms": max_wait_ms,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
        if instance_id is not None:
            config["group.instance.id"] = instance_id
        return ConfluentConsumer(confluent_kafka.Consumer(config))

    def is_fenced(self, error: BaseException) -> bool:
        if not isinstance(error, confluent_kafka.KafkaException):
            return False
        cause = error.args[0]
        return cause.code() in (
            confluent_kafka.KafkaError._FENCED,
            confluent_kafka.KafkaError.PRODUCER_FENCED,
        )
