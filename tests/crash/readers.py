"""Readers of the crash tests: some follow the log while it crashes, others read all of it at the end."""

import threading
import time
from collections import Counter

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.crash.clients import RDKAFKA
from tests.history import ClientEvent, FinalEnds, FinalOffset, FinalRead, Partition, Seen

CALL_TIMEOUT_S = 10.0


def create_topics(address: str, partitions: dict[str, int]) -> None:
    """Creates topics and waits until they are there."""
    admin = AdminClient({"bootstrap.servers": address})
    made = admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()])
    for result in made.values():
        result.result(CALL_TIMEOUT_S)


def _consumer(address: str, committed: bool, group: str = "crash-readers") -> Consumer:
    return Consumer(
        RDKAFKA
        | {
            "bootstrap.servers": address,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 10,
        }
    )


class Follower(threading.Thread):
    """Notes every record as soon as one isolation level shows it, through all crashes."""

    def __init__(
        self, address: str, partitions: list[Partition], *, committed: bool, events: list[ClientEvent]
    ) -> None:
        super().__init__(name=f"follower committed={committed}", daemon=True)
        self.committed = committed
        self.events = events
        self.errors: Counter[str] = Counter()
        self.failure: str | None = None
        self._stopping = False
        self._consumer = _consumer(address, committed)
        self._consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t, p in partitions])

    def run(self) -> None:
        while not self._stopping:
            for message in self._consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    place = message.topic(), message.partition(), message.offset()
                    self.events.append(Seen(*place, message.value().decode(), self.committed))
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    # Its position is beyond the end: the log took back what the reader had seen.
                    self.failure = f"{self.name}: {message.topic()}-{message.partition()}: {error.str()}"
                elif error.code() != KafkaError._PARTITION_EOF:
                    self.errors[error.name()] += 1
        self._consumer.close()

    def stop(self) -> None:
        self._stopping = True
        self.join(CALL_TIMEOUT_S)
        assert self.failure is None, self.failure


def read_ends(address: str, partitions: list[Partition], *, settle_s: float) -> list[FinalEnds]:
    """The partitions' offsets, once every last stable offset is at the end, or else after `settle_s`."""
    admin = AdminClient(RDKAFKA | {"bootstrap.servers": address})

    def offsets(spec: OffsetSpec, isolation: IsolationLevel) -> dict[Partition, int]:
        asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
        answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=CALL_TIMEOUT_S)
        return {(p.topic, p.partition): answer.result().offset for p, answer in answers.items()}

    deadline = time.monotonic() + settle_s
    while True:
        stable = offsets(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        ends = offsets(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        if stable == ends or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    starts = offsets(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
    return [FinalEnds(t, p, starts[t, p], stable[t, p], ends[t, p]) for t, p in partitions]


class Auditor:
    """Reads one isolation level of all partitions from the beginning to given ends, on request further."""

    def __init__(self, address: str, partitions: list[Partition], *, committed: bool) -> None:
        self.committed = committed
        self.records: dict[Partition, list[tuple[int, str]]] = {partition: [] for partition in partitions}
        self.positions: dict[Partition, int] = dict.fromkeys(partitions, 0)
        self._consumer = _consumer(address, committed, f"crash-auditor-{committed}")
        self._consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t, p in partitions])

    def read(self, ends: list[FinalEnds], *, timeout_s: float) -> list[FinalRead]:
        """Reads on to the ends, or as far as it comes within the time."""
        wanted = {(e.topic, e.partition): e.last_stable if self.committed else e.high_watermark for e in ends}
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(self.positions[p] < end for p, end in wanted.items()):
            for message in self._consumer.consume(1000, 0.1):
                partition = message.topic(), message.partition()
                error = message.error()
                if error is None:
                    self.records[partition].append((message.offset(), message.value().decode()))
                    self.positions[partition] = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    # Says where the position is even where there are no records up to it.
                    self.positions[partition] = max(self.positions[partition], message.offset())
        return [
            FinalRead(*partition, self.committed, tuple(records), self.positions[partition])
            for partition, records in self.records.items()
        ]

    def close(self) -> None:
        self._consumer.close()


def read_group(address: str, group: str, partitions: list[Partition]) -> list[FinalOffset]:
    """A group's committed offsets, with pending ones waited for as long as a call may take."""
    consumer = _consumer(address, True, group)
    try:
        positions = consumer.committed([TopicPartition(t, p) for t, p in partitions], CALL_TIMEOUT_S)
    except KafkaException as error:
        name = error.args[0].name()
        return [FinalOffset(group, t, p, None, name) for t, p in partitions]
    finally:
        consumer.close()
    return [
        FinalOffset(
            group,
            p.topic,
            p.partition,
            p.offset if p.offset >= 0 else None,
            p.error.name() if p.error else None,
        )
        for p in positions
    ]
