"""Three real processes whose ranges lose their begin: a node that was killed and comes back too late, stock clients."""

from __future__ import annotations

import time

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition

from tests.cluster.brokers import Brokers
from tests.cluster.test_ranges_processes import offsets
from tests.crash.isolated import isolated

PATIENCE_S = 60.0
PARTITIONS = 3
PARTS = [TopicPartition("t", number) for number in range(PARTITIONS)]


class RangeBrokers(Brokers):
    groups = "ranges"
    config = "retention_check_interval_ms = 300\n"


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def write(brokers, acked, count):
    """Values of 1000 bytes, as many in each partition."""

    def told(error, message):
        assert error is None, error
        acked[message.partition()][message.offset()] = message.value()

    producer = Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "enable.idempotence": True,
            "socket.timeout.ms": 3000,
            "batch.size": 20_000,
        }
    )
    for number in range(count):
        for partition in range(PARTITIONS):
            value = b"%d.%d." % (partition, number)
            producer.produce("t", value.ljust(1000, b"x"), partition=partition, on_delivery=told)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def begins(brokers):
    consumer = KafkaConsumer(bootstrap_servers=brokers.bootstrap)
    try:
        return {one.partition: offset for one, offset in offsets(consumer.beginning_offsets, PARTS).items()}
    finally:
        consumer.close()


def check_all(brokers, acked):
    """From its begin on each partition has what was acknowledged, at its place. The begins, by partition."""
    consumer = KafkaConsumer(bootstrap_servers=brokers.bootstrap, enable_auto_commit=False)
    try:
        consumer.assign(PARTS)
        ends = offsets(consumer.end_offsets, PARTS)
        consumer.seek_to_beginning(*PARTS)
        first, last = {}, {}
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(one) < ends[one] for one in PARTS):
            assert time.monotonic() < deadline, "the ends were not reached"
            for one, records in consumer.poll(500).items():
                for record in records:
                    number = one.partition
                    assert record.value == acked[number][record.offset]
                    assert record.offset == last.get(number, record.offset - 1) + 1, "a gap"
                    first.setdefault(number, record.offset)
                    last[number] = record.offset
        assert {one.partition: ends[one] for one in PARTS} == {n: len(acked[n]) for n in acked}
        return first
    finally:
        consumer.close()


def segments(brokers, node):
    """(range, segment) of all that a node has."""
    return {
        (folder.name, path.name)
        for folder in (brokers.folder / str(node) / "ranges").iterdir()
        for path in folder.glob("*.seg")
    }


def through_retention(folder):
    with RangeBrokers(folder) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        settings = {"segment.bytes": "65536", "retention.bytes": "200000"}
        admin.create_topics([NewTopic("t", PARTITIONS, 3, config=settings)])["t"].result(PATIENCE_S)
        acked = {number: {} for number in range(PARTITIONS)}
        write(brokers, acked, 600)
        wait_until(lambda: min(begins(brokers).values()) > 100, "nothing is deleted")
        check_all(brokers, acked)

        away = (brokers.leader() + 1) % 3
        here = [node for node in brokers.nodes if node != away]
        had = segments(brokers, away)
        brokers.kill(away)
        write(brokers, acked, 900)
        wait_until(lambda: not had & segments(brokers, here[0]), "what the node has is still there")
        brokers.launch(away)
        brokers.leader()
        wait_until(
            lambda: brokers.log(away).count("replaced by the leader's segments") == PARTITIONS,
            "no log was replaced",
        )
        assert not had & segments(brokers, away)
        # It has all: another one may go, and it takes part in every majority.
        gone = here[0]
        brokers.kill(gone)
        write(brokers, acked, 50)
        first = check_all(brokers, acked)
        assert min(first.values()) > 600

        # DeleteRecords goes to the leaders; one of the nodes hears of it when it comes back.
        wanted = {number: len(acked[number]) - 20 for number in range(PARTITIONS)}
        places = [Place("t", number, offset) for number, offset in wanted.items()]
        for one, future in admin.delete_records(places).items():
            assert future.result(PATIENCE_S).low_watermark == wanted[one.partition]
        brokers.launch(gone)
        brokers.leader()
        assert check_all(brokers, acked) == wanted
        for node in brokers.nodes:
            assert brokers.terminate(node) == 0
            brokers.launch(node)
            brokers.leader()
        write(brokers, acked, 5)
        assert check_all(brokers, acked) == wanted
        for node in brokers.nodes:
            for bad in ("Traceback", "CRITICAL", "takes no part"):
                assert bad not in brokers.log(node), brokers.log(node)[-3000:]


def test_a_node_that_comes_back_too_late_fetches_segments_and_records_are_deleted(tmp_path):
    isolated(through_retention, tmp_path)
