"""Real nodes whose ranges have groups of their own come and go, by the commands an operator types, under load."""

from __future__ import annotations

import threading

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from broker.replication.folder import REMOVED
from tests.cluster.test_operating import address, command, status, until
from tests.cluster.test_ranges_processes import PARTITIONS, PATIENCE_S, RangeBrokers, read_by_kafka_python
from tests.crash.clients import RDKAFKA
from tests.crash.isolated import isolated


class Load(threading.Thread):
    """One idempotent producer that is never started anew: no delivery may fail."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self.producer = Producer(
            RDKAFKA | {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        self.acked = {}
        self.errors = []
        self.stopping = False

    def run(self):
        count = 0
        while not self.stopping:
            value = str(count)
            self.producer.produce("t", value, partition=count % PARTITIONS, on_delivery=self._told)
            self.producer.poll(0.01)
            count += 1
        self.producer.flush(PATIENCE_S)

    def _told(self, error, message):
        if error is None:
            self.acked[message.value().decode()] = (message.partition(), message.offset())
        else:
            self.errors.append(error)

    def goes_on(self, brokers, count=10):
        before = len(self.acked)
        until(lambda: len(self.acked) > before + count, f"no work goes on\n{brokers.logs()}")

    def stop(self):
        self.stopping = True
        self.join(2 * PATIENCE_S)
        assert not self.is_alive()
        assert not self.errors, self.errors[:5]


def held(brokers, asked, node):
    """How many ranges a node holds, the metadata not counted; None while something is on the move."""
    seen = status(brokers, asked)
    ranges = [one for one in seen.ranges if one.name != "metadata"] if seen is not None else []
    if not ranges or any(one.learners or len(one.replicas) != 3 for one in ranges):
        return None
    return sum(node in one.replicas for one in ranges)


def is_created(admin):
    """Who asks while another node comes to lead the metadata is cut off, and asks again."""
    try:
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(PATIENCE_S)
    except KafkaException as refused:
        return refused.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    return True


def through_changes(folder):
    with RangeBrokers(folder) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        until(lambda: is_created(admin), f"no topic\n{brokers.logs()}")
        load = Load(brokers.bootstrap)
        load.start()
        load.goes_on(brokers, 200)
        # A node comes in, and takes replicas.
        node = brokers.newcomer([0])
        brokers.launch(node)
        added = command(brokers, 0, "add", str(node), "--peer", brokers.places[node], "--timeout", "60")
        assert added.exit_code == 0, f"{added.output}\n{brokers.logs()}"
        assert f"node {node} takes part" in added.output
        until(lambda: held(brokers, 0, node) == 2, f"it gets no replicas\n{brokers.logs()}")
        load.goes_on(brokers)
        # Killed and started again it has what it had, and finds the others, though it was told of one alone.
        brokers.kill(node)
        load.goes_on(brokers)
        brokers.launch(node)
        until(
            lambda: (seen := status(brokers, 0)) and not any(one.away for one in seen.nodes),
            f"it does not come back\n{brokers.logs()}",
        )
        # One of the first goes: the one that it was told of. Its replicas go first.
        removed = command(brokers, 1, "remove", "0", "--timeout", "120")
        assert removed.exit_code == 0, f"{removed.output}\n{brokers.logs()}"
        assert "node 0 gives its replicas away" in removed.output
        assert "node 0 is out" in removed.output
        assert brokers.ended(0) == 1
        assert "was removed from its cluster" in brokers.log(0)
        assert (folder / "0" / REMOVED).exists()
        assert not list((folder / "0" / "ranges").iterdir())
        # What a node knows of the ranges that others lead comes a moment later.
        until(
            lambda: [held(brokers, 1, one) for one in (1, 2, node)] == [3, 3, 3],
            f"the others do not have all\n{brokers.logs()}",
        )
        load.goes_on(brokers)
        # Its number is not given again.
        again = command(brokers, 1, "add", "0", "--peer", brokers.places[0], "--no-wait")
        assert again.exit_code != 0
        assert "a number that none had before" in again.output
        load.stop()
        brokers.ports.pop(0)
        assert read_by_kafka_python(brokers) == load.acked
        assert address(brokers, 1) in brokers.bootstrap


def test_a_node_comes_and_takes_replicas_and_one_goes_under_load(tmp_path):
    isolated(through_changes, tmp_path)
