"""A cluster of real brokers as its operator meets it: seen, drained, restarted node by node, with clients at work."""

from __future__ import annotations

import itertools
import re
import threading
import time

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from broker.cli import main
from broker.client import ClusterClient
from tests.clients.raw_kafka import RawKafka
from tests.cluster import evidence
from tests.cluster.brokers import TIMEOUT_S, Brokers
from tests.crash.clients import RDKAFKA
from wire.errors import ErrorCode, KafkaError


@pytest.fixture
def brokers(tmp_path):
    with Brokers(tmp_path) as made:
        yield made


def address(brokers, node):
    return f"127.0.0.1:{brokers.ports[node]}"


def command(brokers, node, *words):
    return CliRunner().invoke(main, ["cluster", *words, "--bootstrap-server", address(brokers, node)])


def until(condition, what):
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def status(brokers, node):
    """None where the node gives none at the moment."""
    try:
        with ClusterClient(address(brokers, node), timeout_s=10) as client:
            return client.status()
    except (OSError, KafkaError):
        return None


class Work(threading.Thread):
    """One idempotent producer that is never started anew; `errors` are what its deliveries came to."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self.producer = Producer(
            RDKAFKA | {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        self.delivered = 0
        self.errors = []
        self.stopping = False

    def run(self):
        for number in itertools.count():
            if self.stopping:
                break
            self.producer.produce("work", str(number), partition=0, on_delivery=self._told)
            self.producer.poll(0.01)
        self.producer.flush(TIMEOUT_S)

    def _told(self, error, message):
        if error is None:
            self.delivered += 1
        else:
            self.errors.append(error)

    def stop(self):
        self.stopping = True
        self.join(2 * TIMEOUT_S)
        assert not self.is_alive()


@pytest.fixture
def work(brokers):
    with RawKafka(address(brokers, brokers.leader())) as raw:
        raw.create_topic("work")
    made = Work(brokers.bootstrap)
    made.start()
    until(lambda: made.delivered, "nothing is delivered")
    yield made
    made.stop()
    assert not made.errors, made.errors[:5]


def test_it_is_seen_from_any_node_and_drained_under_load(brokers, work):
    leader = brokers.leader()
    other = next(node for node in brokers.nodes if node != leader)
    picture = command(brokers, other, "status").output
    assert re.search(rf"^cluster \w+: 3 nodes, 1 range, node {leader} takes changes$", picture, re.MULTILINE)
    # Under load a follower may be an entry behind: that is another sign.
    assert picture.count("○") + picture.count("◐") == 4, "two nodes follow, and the legend"
    for words, said in (
        (("add", "7", "--peer", "nowhere"), "where is the node reached?"),
        (("add", str(other), "--peer", "127.0.0.1:1"), "the node is up: add is not possible"),
        (("remove", "9"), "the node is not known"),
    ):
        refused = command(brokers, other, *words)
        assert refused.exit_code == 1
        assert said in refused.output
    assert "an odd number is better" in command(brokers, other, "remove", str(other), "--dry-run").output
    # A leader that is new notes the nodes a moment later.
    dry = until(
        lambda: (
            "not known" not in (found := command(brokers, other, "drain", str(leader), "--dry-run").output)
            and found
        ),
        "the node is not noted",
    )
    assert f"everything: move the leader from node {leader} to node" in dry
    assert "is being drained" in command(brokers, other, "drain", str(leader)).output
    moved = until(
        lambda: (found := status(brokers, other)) and found.controller not in (-1, leader) and found,
        f"the leader stays\n{brokers.logs()}",
    )
    assert {one.id: one.state for one in moved.nodes}[leader] == "DRAINING"
    before = work.delivered
    until(lambda: work.delivered > before + 20, "no work goes on under the new leader")
    assert "takes part again" in command(brokers, leader, "drain", str(leader), "--undo").output


def test_who_does_not_lead_names_the_leader(brokers):
    leader = brokers.leader()
    with RawKafka(address(brokers, leader)) as raw:
        raw.create_topic("t")
    other = next(node for node in brokers.nodes if node != leader)

    def hinted():
        with RawKafka(address(brokers, other)) as raw:
            topic = {"name": "t", "partition_data": ({"index": 0, "records": b""},)}
            return raw.call("produce", 12, acks=-1, timeout=1_000, topic_data=(topic,))

    answer = until(lambda: (found := hinted()) and found.node_endpoints and found, "no hint")
    result = answer.responses[0].partition_responses[0]
    assert result.error_code is ErrorCode.not_leader_or_follower
    assert int(result.current_leader.leader_id) == leader
    (endpoint,) = answer.node_endpoints
    assert (endpoint.host, int(endpoint.port)) == ("127.0.0.1", brokers.ports[leader])


def test_a_rolling_restart_fails_no_record_and_makes_no_producer_begin_anew(brokers, work):
    for node in brokers.nodes:
        before = work.delivered
        assert brokers.terminate(node) == 0
        until(lambda before=before: work.delivered > before + 5, f"no work goes on without node {node}")
        brokers.launch(node)
        until(
            lambda: (
                (found := status(brokers, 0)) and not found.plan[1:] and not any(n.away for n in found.nodes)
            ),
            f"node {node} does not come back\n{brokers.logs()}",
        )
    addresses = [("127.0.0.1", port) for port in brokers.ports.values()]
    lines = list(evidence.read_batches(addresses, "work", 0, 0, work.delivered - 1))
    told = [re.findall(r"-?\d+", line.split(" leader epoch ")[0]) for line in lines]
    # Its epoch is the first one still, and its sequences are the offsets: nothing is there twice.
    assert {(producer, epoch) for _, _, producer, epoch, _, _ in told} == {(told[0][2], "0")}
    assert all((first, last) == (low, high) for first, last, _, _, low, high in told)
    assert len({line.split(" leader epoch ")[1].split(":")[0] for line in lines}) > 1
