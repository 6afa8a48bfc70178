"""Three real broker processes as one: stock clients through the death of leaders and through clean stops."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cluster.brokers import Brokers
from tests.crash.isolated import isolated
from tests.support.broker_process import answers_api_versions

PATIENCE_S = 60.0


def producer(brokers, name):
    made = Producer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "transactional.id": name,
            "socket.timeout.ms": 3000,
            "transaction.timeout.ms": 60_000,
        }
    )
    made.init_transactions(PATIENCE_S)
    return made


def commit(made, value):
    """One record in each of two topics, however often it takes; how many attempts were aborted."""
    aborted = 0
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            made.begin_transaction()
            for topic in ("a", "b"):
                made.produce(topic, f"{value} {aborted}")
            made.commit_transaction(PATIENCE_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort() or time.monotonic() > ends:
                raise
            made.abort_transaction(PATIENCE_S)
            aborted += 1
        else:
            return f"{value} {aborted}"


def read(brokers, topic, count):
    consumer = Consumer(
        {"bootstrap.servers": brokers.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = []
        ends = time.monotonic() + PATIENCE_S
        while len(values) < count and time.monotonic() < ends:
            values += [m.value().decode() for m in consumer.consume(count, 0.5) if m.error() is None]
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)
        assert low == 0
        assert high >= len(values)
        return values
    finally:
        consumer.close()


def through_the_death_of_leaders(folder):
    with Brokers(folder) as brokers:
        made = producer(brokers, "p")
        committed = [commit(made, f"first {n}") for n in range(10)]
        epoch = -1
        for round_ in range(2):
            leader = brokers.leader(after=epoch)
            epoch = brokers.epoch(leader)
            made.begin_transaction()
            made.produce("a", "never committed")
            made.flush(PATIENCE_S)
            brokers.kill(leader)
            with pytest.raises(KafkaException) as refused:
                made.commit_transaction(PATIENCE_S)
            assert refused.value.args[0].txn_requires_abort(), refused.value
            made.abort_transaction(PATIENCE_S)
            committed += [commit(made, f"round {round_} {n}") for n in range(10)]
            brokers.leader(after=epoch)
            brokers.launch(leader)
        for topic in ("a", "b"):
            assert read(brokers, topic, len(committed)) == committed
        metadata = AdminClient({"bootstrap.servers": brokers.bootstrap}).list_topics(timeout=PATIENCE_S)
        partition = metadata.topics["a"].partitions[0]
        assert partition.leader == brokers.leader()
        assert sorted(partition.replicas) == [0, 1, 2]


def test_nothing_acknowledged_is_lost_and_nothing_aborted_seen_when_leaders_are_killed(tmp_path):
    isolated(through_the_death_of_leaders, tmp_path)


def through_a_clean_stop(folder):
    with Brokers(folder) as brokers:
        made = producer(brokers, "p")
        leader = brokers.leader()
        epoch = brokers.epoch(leader)
        made.begin_transaction()
        made.produce("a", "before")
        made.flush(PATIENCE_S)
        assert brokers.terminate(leader) == 0
        brokers.leader(after=epoch)
        made.produce("a", "after")
        made.commit_transaction(PATIENCE_S)
        assert read(brokers, "a", 2) == ["before", "after"]


def test_an_open_transaction_goes_on_under_the_next_leader_when_one_stops_cleanly(tmp_path):
    isolated(through_a_clean_stop, tmp_path)


def test_a_node_with_another_secret_takes_no_part(tmp_path):
    brokers = Brokers(tmp_path)
    try:
        brokers.launch(0)
        brokers.launch(1, secret="another secret than the others have")
        time.sleep(3)
        assert brokers.epoch(0) == brokers.epoch(1) == -1
        brokers.launch(2)
        ends = time.monotonic() + PATIENCE_S
        while max(brokers.epoch(0), brokers.epoch(2)) < 0:
            assert time.monotonic() < ends, brokers.logs()
            time.sleep(0.05)
        assert not answers_api_versions(brokers.ports[1]), "nobody leads, as far as it knows"
        brokers.kill(1)
        assert brokers.leader() in (0, 2)
    finally:
        for node in list(brokers.processes):
            brokers.kill(node)
