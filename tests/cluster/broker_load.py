"""A transactional load on a cluster of brokers by stock clients, and the history of what they were told.

The producers and readers are those of the crash tests. Probes beside them show when service is back: one plain producer
per topic, and one transactional producer whose every transaction writes to all topics, so over all leaders.
"""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.lanes import Lanes
from tests.crash import clients
from tests.crash.clients import MustAbort, RdkafkaProducer, TransactionalProducer
from tests.crash.load import GROUP, INPUT_TOPIC, PARTITIONS, Load, TransactionalWorker, Worker
from tests.crash.readers import Auditor, Follower, read_ends, read_group
from tests.history import Begun, Event, FinalRead, Partition, PlainAcked, Sent, Violation, check

TOPICS = ("crash-a", "crash-b", "crash-c")
COMMIT_LANE = "commit over all topics"
CREATE_TIMEOUT_S = 30.0
SETTLE_S = 15.0

IMPATIENT = {
    "request.timeout.ms": 1500,
    "socket.timeout.ms": 2000,
    "topic.metadata.refresh.interval.ms": 1000,
}
"""Clients that notice a node that does not answer: by their defaults they would wait for it for half a minute."""


class BrokerLoad:
    """To be used in a process of its own: it changes what all clients of the crash tests are configured with."""

    def __init__(
        self,
        bootstrap: str,
        seed: int,
        replication_factor: int = 3,
        *,
        client_log: Path | None = None,
    ) -> None:
        """`client_log`: a file for what the plain idempotent producers' library says of its identity and batches."""
        clients.RDKAFKA.update(IMPATIENT)
        self.bootstrap = bootstrap
        self.lanes = Lanes([*TOPICS, COMMIT_LANE])
        self.commit_lanes = (COMMIT_LANE,)
        self._factor = replication_factor
        self._load = Load(
            bootstrap,
            seed,
            librdkafka=3,
            kafka_python=1,
            plain=1,
            topics=TOPICS,
            renews=True,
            plain_log=client_log,
        )
        self._load.workers += [PlainProbe(self, topic) for topic in TOPICS]
        commit_probe = CommitProbe(self, len(self._load.transactional))
        self._load.transactional.append(commit_probe)
        self._load.workers.append(commit_probe)
        self._data: list[Partition] = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
        self._followers: list[Follower] = []
        self.final_reads: list[FinalRead] = []

    @property
    def load(self) -> Load:
        return self._load

    def start(self) -> None:
        """Creates the topics, and begins."""
        admin = AdminClient(clients.RDKAFKA | {"bootstrap.servers": self.bootstrap})
        sizes = dict.fromkeys(TOPICS, PARTITIONS)
        if self._load.transactional:
            sizes[INPUT_TOPIC] = len(self._load.transactional)
        deadline = time.monotonic() + CREATE_TIMEOUT_S
        missing = dict(sizes)
        while missing:
            made = admin.create_topics(
                [NewTopic(name, count, self._factor) for name, count in missing.items()],
                operation_timeout=CREATE_TIMEOUT_S,
                request_timeout=CREATE_TIMEOUT_S,
            )
            for name, result in made.items():
                try:
                    result.result(CREATE_TIMEOUT_S)
                except KafkaException as error:
                    # On a loaded machine the first leader may have lost its place in between.
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        if time.monotonic() > deadline:
                            raise
                        continue
                del missing[name]
        self._followers = [
            Follower(self.bootstrap, self._data, committed=committed, events=self._load.events)
            for committed in (True, False)
        ]
        for follower in self._followers:
            follower.start()
        self._load.start()

    def troubled(self) -> None:
        self._load.crashed()

    def judge(self) -> list[Violation]:
        """Lets the load come to rest, reads all that is there from the beginning, and judges."""
        self._load.pause()
        self._load.fence()
        ends = read_ends(self.bootstrap, self._data, settle_s=SETTLE_S)
        events: list[Event] = list(ends)
        for committed in (True, False):
            auditor = Auditor(self.bootstrap, self._data, committed=committed)
            self.final_reads += auditor.read(ends, timeout_s=2 * SETTLE_S)
            auditor.close()
        events += self.final_reads
        inputs = [(INPUT_TOPIC, worker.number) for worker in self._load.transactional]
        if inputs:
            events += read_group(self.bootstrap, GROUP, inputs)
        self._load.stop()
        for follower in self._followers:
            follower.stop()
        return check([*self._load.events, *events], markerless=True)

    def close(self) -> None:
        """After a failure: the threads come to their end by themselves."""
        self._load.stopping = True
        self._load.resume()

    def report(self) -> str:
        lanes = [f"  {lane}: {count}" for lane, count in sorted(self.lanes.done.items())]
        errors = [f"  errors follower {name}: {n}" for f in self._followers for name, n in f.errors.items()]
        return "\n".join([*lanes, self._load.report(), *errors])


class PlainProbe(Worker):
    """One record at a time to partition 0 of a topic, acks=all, idempotent."""

    def __init__(self, owner: BrokerLoad, topic: str) -> None:
        super().__init__(owner.load, f"probe-{topic}", random.Random(topic))
        self.owner = owner
        self.topic = topic
        self.producer: Producer | None = None
        self.incarnation = 0
        self.values = itertools.count()

    def step(self) -> None:
        if self.producer is None:
            self.incarnation += 1
            self.producer = Producer(
                clients.RDKAFKA
                | {
                    "bootstrap.servers": self.load.address,
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "message.timeout.ms": 30_000,
                }
            )
        name = f"{self.name}/{self.incarnation}"
        value = f"{name}/{next(self.values)}"
        self.load.events.append(Sent(name, None, self.topic, 0, value))
        began = time.monotonic()
        told: list[Any] = []
        try:
            self.producer.produce(
                self.topic,
                value,
                partition=0,
                on_delivery=lambda error, message: told.append((error, message)),
            )
        except KafkaException as error:
            told.append((error.args[0], None))
        while not told and not self.load.stopping:
            self.producer.poll(0.05)
        error, message = told[0] if told else (None, None)
        if message is not None and error is None:
            self.load.events.append(PlainAcked(value, message.offset()))
            self.owner.lanes.succeeded(self.topic, began)
        elif error is not None:
            self.count(f"errors librdkafka probe {error.name()}")
            self.close()
        time.sleep(0.02)

    def close(self) -> None:
        if self.producer is not None:
            self.producer.purge(blocking=False)
            self.producer = None


class CommitProbe(TransactionalWorker):
    """One transaction after the other, each with a record in every topic."""

    def __init__(self, owner: BrokerLoad, number: int) -> None:
        super().__init__(owner.load, "probe-commit", number, RdkafkaProducer, random.Random("commit"))
        self.owner = owner
        self.began = 0.0

    def step(self) -> None:
        client = self.ready()
        self.began = time.monotonic()
        try:
            client.begin()
        except clients.ClientError as error:
            self.note("begin", error)
            self.leave()
            return
        self.txn += 1
        self.crashes_at_begin = self.load.crashes
        self.load.events.append(Begun(self.name, self.txn))
        if self.write(client):
            self.end(client, commit=True)
        time.sleep(0.01)

    def write(self, client: TransactionalProducer) -> bool:
        for topic in self.load.topics:
            value = f"{self.name}/{self.txn}/{next(self.values)}"
            self.load.events.append(Sent(self.name, self.txn, topic, 0, value))
            try:
                client.send(topic, 0, value.encode())
            except MustAbort as error:
                self.note("send", error)
                self.end(client, commit=False)
                return False
        return True

    def ended(self, commit: bool, outcome: Any) -> None:
        super().ended(commit, outcome)
        if commit and outcome == "acked":
            self.owner.lanes.succeeded(COMMIT_LANE, self.began)
