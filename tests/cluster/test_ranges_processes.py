"""Three real processes whose ranges have groups of their own: stock clients, real kills.

SEALOG_RANGES_FAULTS: how many faults the cluster gets, 12 by default.
"""

from __future__ import annotations

import os
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.cluster.broker_run import run_brokers
from tests.cluster.brokers import Brokers
from tests.cluster.test_cluster_faults import chosen_seed
from tests.crash.isolated import isolated

PATIENCE_S = 60.0
FAULTS = int(os.environ.get("SEALOG_RANGES_FAULTS", "12"))
PARTITIONS = 6


class RangeBrokers(Brokers):
    groups = "ranges"


def leaders(admin):
    topic = admin.list_topics("t", timeout=PATIENCE_S).topics["t"]
    return {number: partition.leader for number, partition in topic.partitions.items()}


def write(producer, acked, values):
    def told(error, message):
        assert error is None, error
        acked[message.value().decode()] = (message.partition(), message.offset())

    for value in values:
        producer.produce("t", str(value), partition=value % PARTITIONS, on_delivery=told)
    assert producer.flush(PATIENCE_S) == 0


def offsets(ask, partitions):
    """`ask` is `end_offsets` or `beginning_offsets` of a consumer of kafka-python: it leaves out a partition that has
    no leader at the moment, and fails by a KeyError for that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask(partitions)
        except KeyError:
            assert time.monotonic() < deadline, "no leader"
            time.sleep(0.1)


def read_by_kafka_python(brokers):
    """{value: (partition, offset)}, each partition to its end."""
    consumer = KafkaConsumer(bootstrap_servers=brokers.bootstrap, enable_auto_commit=False)
    try:
        partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        deadline = time.monotonic() + PATIENCE_S
        ends = offsets(consumer.end_offsets, partitions)
        consumer.seek_to_beginning(*partitions)
        found = {}
        while any(consumer.position(one) < ends[one] for one in partitions):
            assert time.monotonic() < deadline, "the ends were not reached"
            for one, records in consumer.poll(500).items():
                for record in records:
                    assert record.value.decode() not in found, "it is there twice"
                    found[record.value.decode()] = (one.partition, record.offset)
        return found
    finally:
        consumer.close()


def read_as_group(brokers, group, count):
    consumer = Consumer(
        {"bootstrap.servers": brokers.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe(["t"])
        values = []
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < count and time.monotonic() < deadline:
            values += [m.value().decode() for m in consumer.consume(count, 0.5) if m.error() is None]
        consumer.commit(asynchronous=False)
        return values
    finally:
        consumer.close()


def through_kills(folder):
    with RangeBrokers(folder) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(PATIENCE_S)
        assert set(leaders(admin).values()) == {0, 1, 2}
        producer = Producer(
            {"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True, "socket.timeout.ms": 3000}
        )
        acked = {}
        write(producer, acked, range(300))
        assert sorted(read_as_group(brokers, "g", 300)) == sorted(acked)
        # The one that leads the metadata as well, and then another one, each under way.
        for round_, victim in enumerate((brokers.leader(), (brokers.leader() + 1) % 3)):
            first = 300 * (round_ + 1)
            write(producer, acked, range(first, first + 100))
            brokers.kill(victim)
            write(producer, acked, range(first + 100, first + 300))
            assert victim not in leaders(admin).values()
            brokers.launch(victim)
            brokers.leader()
        assert len(acked) == 900
        assert read_by_kafka_python(brokers) == acked
        # The group goes on where it was.
        assert sorted(read_as_group(brokers, "g", 600), key=int) == [str(n) for n in range(300, 900)]
        other = KafkaProducer(bootstrap_servers=brokers.bootstrap, acks="all")
        placed = [other.send("t", b"more", partition=number).get(PATIENCE_S) for number in range(PARTITIONS)]
        other.close()
        assert [one.offset for one in placed] == [150] * PARTITIONS
        node = brokers.leader()
        assert brokers.terminate(node) == 0
        brokers.launch(node)
        brokers.leader()
        assert len(read_by_kafka_python_counted(brokers)) == 906


def read_by_kafka_python_counted(brokers):
    consumer = KafkaConsumer(bootstrap_servers=brokers.bootstrap, enable_auto_commit=False)
    try:
        partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
        ends = offsets(consumer.end_offsets, partitions)
        return [(one, offset) for one in partitions for offset in range(ends[one])]
    finally:
        consumer.close()


def test_nothing_acknowledged_is_lost_when_nodes_are_killed(tmp_path):
    isolated(through_kills, tmp_path)


def shake(folder, seed, count):
    violations, times = run_brokers(folder, 3, seed, count, groups="ranges")
    assert not violations, "\n".join(map(str, violations[:30]))
    return times


def test_nothing_is_lost_and_transactions_are_whole_under_faults_and_service_comes_back(tmp_path):
    times = isolated(shake, tmp_path, chosen_seed(), FAULTS)
    assert sum(map(len, times.after.values())) == FAULTS
