"""Three real processes, a topic that is split and merged again and again: stock clients notice nothing.

SEALOG_RESHAPE_ROUNDS: how often, 6 by default.
"""

from __future__ import annotations

import os
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client import LayoutClient
from tests.cluster.test_ranges_processes import PATIENCE_S, RangeBrokers, read_by_kafka_python
from tests.crash.isolated import isolated

PARTITIONS = 6
ROUNDS = int(os.environ.get("SEALOG_RESHAPE_ROUNDS", "6"))


class Load(threading.Thread):
    """A thread that writes until it is told to stop; what failed is kept."""

    def __init__(self, brokers):
        super().__init__(daemon=True)
        self.brokers = brokers
        self.is_over = threading.Event()
        self.acked = {}
        self.errors = []
        self.start()

    def run(self):
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells it
            self.errors.append(error)

    def end(self):
        self.is_over.set()
        self.join(2 * PATIENCE_S)
        assert not self.is_alive()

    def told(self, error, message):
        if error is not None:
            self.errors.append(error)
        else:
            self.acked[message.value().decode()] = (message.partition(), message.offset())


class Plain(Load):
    """An idempotent producer."""

    def work(self):
        producer = Producer({"bootstrap.servers": self.brokers.bootstrap, "enable.idempotence": True})
        number = 0
        while not self.is_over.is_set():
            for _ in range(20):
                producer.produce("t", f"p{number}", partition=number % PARTITIONS, on_delivery=self.told)
                number += 1
            producer.poll(0)
            self.is_over.wait(0.02)
        assert producer.flush(PATIENCE_S) == 0


class Transactional(Load):
    """Transactions over all partitions, some of which are aborted."""

    def work(self):
        producer = Producer(
            {
                "bootstrap.servers": self.brokers.bootstrap,
                "transactional.id": "x",
                "message.timeout.ms": 10_000,
            }
        )
        producer.init_transactions(PATIENCE_S)
        number = self.retries = 0
        self.aborted = set()
        while not self.is_over.is_set():
            producer.begin_transaction()
            values = [f"x{number}-{partition}" for partition in range(PARTITIONS)]
            try:
                for partition, value in enumerate(values):
                    producer.produce("t", value, partition=partition)
                    producer.poll(0)
                    time.sleep(0.01)
                if number % 5:
                    producer.commit_transaction(PATIENCE_S)
                    self.acked |= dict.fromkeys(values)
                else:
                    # What librdkafka (2.16) has to send again when it has begun to abort stays in its queue until it
                    # times out, after any change of leaders.
                    producer.flush(PATIENCE_S)
                    producer.abort_transaction(PATIENCE_S)
                    self.aborted |= set(values)
            except KafkaException as error:
                # The second one where it has failed already when the next message is given.
                if not (error.args[0].txn_requires_abort() or error.args[0].code() == KafkaError._STATE):
                    raise
                producer.abort_transaction(PATIENCE_S)
                self.aborted |= set(values)
                self.retries += 1
            number += 1


class Reader(Load):
    """Reads what is committed, all the while, until it has all that is wanted."""

    def work(self):
        consumer = Consumer(
            {
                "bootstrap.servers": self.brokers.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self.values, self.wanted = [], set()
        positions = dict.fromkeys(range(PARTITIONS), -1)
        try:
            consumer.subscribe(["t"])
            deadline = None
            while deadline is None or (not self.wanted <= set(self.values) and time.monotonic() < deadline):
                if self.is_over.is_set() and deadline is None:
                    deadline = time.monotonic() + PATIENCE_S
                for message in consumer.consume(1000, 0.2):
                    if message.error() is not None:
                        self.errors.append(message.error())
                        continue
                    assert message.offset() > positions[message.partition()], "it goes back"
                    positions[message.partition()] = message.offset()
                    self.values.append(message.value().decode())
        finally:
            consumer.close()


def asked(brokers, call):
    """The answer of whichever node gives one; asked again where the connection breaks, as a controller goes."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for address in brokers.bootstrap.split(","):
            try:
                with LayoutClient(address) as client:
                    return call(client)
            except OSError:
                assert time.monotonic() < deadline, "no controller"
        time.sleep(0.1)


def change_again_and_again(brokers, between=lambda round_: None):
    for round_ in range(ROUNDS):
        if round_ % 2:
            answer = asked(brokers, lambda client: client.split("t", (1, 2, 4)))
            assert answer.ranges[:2] == ((0, 0), (1, 1)), answer
        else:
            answer = asked(brokers, lambda client: client.merge("t", 0, PARTITIONS - 1))
            assert answer.ranges == ((0, PARTITIONS - 1),), answer
        between(round_)
        time.sleep(0.3)


def judged(brokers, plain, transactional, reader):
    for load in (plain, transactional):
        load.end()
        assert not load.errors, load.errors[:3]
    reader.wanted = plain.acked.keys() | transactional.acked.keys()
    reader.end()
    assert len(plain.acked) > 100
    assert len(transactional.acked) > PARTITIONS
    values = reader.values
    assert len(values) == len(set(values)), "something is there twice"
    assert not transactional.aborted & set(values)
    assert reader.wanted <= set(values)
    found = read_by_kafka_python(brokers)
    assert {value: found[value] for value in plain.acked} == plain.acked


def while_it_is_used(folder):
    with RangeBrokers(folder) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(PATIENCE_S)
        plain, transactional, reader = Plain(brokers), Transactional(brokers), Reader(brokers)
        change_again_and_again(brokers)
        judged(brokers, plain, transactional, reader)
        assert not reader.errors, reader.errors[:3]
        # One, should a stalled machine have made the nodes elect another controller.
        assert transactional.retries <= 1


def test_clients_notice_nothing_of_splits_and_merges(tmp_path):
    isolated(while_it_is_used, tmp_path)


def while_nodes_are_killed(folder):
    with RangeBrokers(folder) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(PATIENCE_S)
        plain, transactional, reader = Plain(brokers), Transactional(brokers), Reader(brokers)

        def kill(round_):
            victim = (brokers.leader() + round_) % 3
            brokers.kill(victim)
            brokers.launch(victim)
            brokers.leader()

        change_again_and_again(brokers, kill)
        judged(brokers, plain, transactional, reader)


def test_nothing_is_lost_where_nodes_are_killed_beside(tmp_path):
    isolated(while_nodes_are_killed, tmp_path)
