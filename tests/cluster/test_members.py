"""Nodes that come and go while real brokers serve, by the commands an operator types."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer, Producer, TopicPartition

from broker.replication.folder import REMOVED
from tests.clients.raw_kafka import RawKafka
from tests.cluster.brokers import TIMEOUT_S, Brokers
from tests.cluster.test_operating import address, command, status, until
from tests.crash.clients import RDKAFKA


class Load(threading.Thread):
    """One idempotent producer that is never started anew: no delivery may fail, whatever becomes of the nodes."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self.producer = Producer(
            RDKAFKA | {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        self.delivered = []
        self.errors = []
        self.stopping = False

    def run(self):
        count = 0
        while not self.stopping:
            self.producer.produce("work", str(count), partition=0, on_delivery=self._told)
            self.producer.poll(0.005)
            count += 1
        self.producer.flush(TIMEOUT_S)

    def _told(self, error, message):
        if error is None:
            self.delivered.append(message.value().decode())
        else:
            self.errors.append(error)

    def goes_on(self, brokers, count=10):
        before = len(self.delivered)
        until(lambda: len(self.delivered) > before + count, f"no work goes on\n{brokers.logs()}")

    def stop(self):
        self.stopping = True
        self.join(2 * TIMEOUT_S)
        assert not self.is_alive()
        assert not self.errors, self.errors[:5]


def read_all(bootstrap, topic):
    consumer = Consumer(RDKAFKA | {"bootstrap.servers": bootstrap, "group.id": "judge"})
    try:
        partition = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
        consumer.assign([partition])
        values = []
        until(
            lambda: (
                values.extend(m.value().decode() for m in consumer.consume(1000, 0.5) if not m.error())
                or len(values) >= end
            ),
            "not all is read",
        )
        return values
    finally:
        consumer.close()


def members(brokers, node):
    found = until(lambda: (seen := status(brokers, node)) and seen.ranges and seen, "no status")
    return set(found.ranges[0].replicas), set(found.ranges[0].learners)


def come_in(brokers, told):
    """A node more, told of `told`; its number."""
    node = brokers.newcomer(told)
    brokers.launch(node)
    added = command(brokers, told[0], "add", str(node), "--peer", brokers.places[node], "--timeout", "60")
    assert added.exit_code == 0, f"{added.output}\n{brokers.logs()}"
    assert f"node {node} takes part" in added.output
    return node


def test_three_nodes_become_five_and_two_of_the_first_go_under_load(tmp_path):
    with Brokers(tmp_path) as brokers:
        with RawKafka(address(brokers, brokers.leader())) as raw:
            raw.create_topic("work")
        load = Load(brokers.bootstrap)
        load.start()
        load.goes_on(brokers)
        # The fourth is told of one node alone, the fifth of all.
        assert come_in(brokers, [0]) == 3
        assert come_in(brokers, [0, 1, 2, 3]) == 4
        assert members(brokers, 4) == ({0, 1, 2, 3, 4}, set())
        load.goes_on(brokers)

        leader = brokers.leader()
        gone = [leader, next(node for node in (0, 1, 2) if node != leader)]
        stays = next(node for node in (0, 1, 2) if node not in gone)
        for node in gone:
            removed = command(brokers, stays, "remove", str(node), "--timeout", "60")
            assert removed.exit_code == 0, f"{removed.output}\n{brokers.logs()}"
            assert f"node {node} is out" in removed.output
            assert brokers.ended(node) == 1
            assert "was removed from its cluster" in brokers.log(node)
            assert (tmp_path / str(node) / REMOVED).exists()
            load.goes_on(brokers)
        assert members(brokers, stays) == ({stays, 3, 4}, set())

        # What the log says is what counts, not the --peers with which they were started.
        for node in (stays, 3, 4):
            assert brokers.terminate(node) == 0
            load.goes_on(brokers, 3)
            brokers.launch(node)
            until(
                lambda: (seen := status(brokers, stays)) and not any(one.away for one in seen.nodes),
                f"node {node} does not come back\n{brokers.logs()}",
            )
        assert members(brokers, 3) == ({stays, 3, 4}, set())
        brokers.launch(gone[0])
        assert brokers.ended(gone[0]) == 1
        brokers.kill(stays)
        load.goes_on(brokers)
        load.stop()
        values = read_all(brokers.bootstrap, "work")
        assert [value for value in values if value in set(load.delivered)] == load.delivered
        assert len(values) == len(set(values))
