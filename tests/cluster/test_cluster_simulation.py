"""Whole clusters in virtual time: power cuts, cut links and lost messages, judged by what clients were told.

SEALOG_CLUSTER_SEEDS: how many seeds.
"""

from __future__ import annotations

import itertools
import os
from functools import partial

import pytest
from support.sim_node import SimClient
from support.sim_producer import Producer, create_topic

from broker.replication.disk import ReplicatedDisk
from broker.replication.neighbours import NAMED_MS, SILENT_MS
from broker.replication.replica import LogLimits
from broker.replication.view import LATELY_MS
from tests.cluster.sim_cluster import TOPIC, Pipeline, SimCluster, Writer
from wire.batch import parse_header
from wire.errors import ErrorCode
from wire.records import iterate_records

SEEDS = int(os.environ.get("SEALOG_CLUSTER_SEEDS", "12"))


def read(member, *, committed):
    """{value: [its offsets]} of the partition."""
    topic = member.node.topics.get(TOPIC)
    assert topic is not None, "the topic is gone"
    partition = topic.partitions[0]
    found = {}
    position = 0
    while position < partition.readable_end(read_committed=committed):
        slice_ = partition.fetch(position, read_committed=committed, max_bytes=1 << 20, at_least_one=True)
        data = b"".join(slice_.records)
        assert data
        while data:
            header = parse_header(data)
            size = header.size_bytes
            if not header.is_control:
                for record in iterate_records(data[:size]):
                    found.setdefault(record.value, []).append(record.offset)
            position = header.last_offset + 1
            data = data[size:]
    return found


def trouble(cluster):
    """One at a time, so that a majority can serve; the next one is the end of it."""
    rng = cluster.rng
    up = [node for node in cluster.names if node not in cluster.removed]
    if len(cluster.members) < len(up) or cluster.cut or cluster.loss:
        cluster.heal()
        return
    node, other = rng.sample(up, 2)
    kind = rng.choice(["power", "power", "one way", "both ways", "alone", "loss"])
    if kind == "power":
        cluster.cut_power(node)
    elif kind == "one way":
        cluster.cut = {(node, other)}
    elif kind == "both ways":
        cluster.cut = {(node, other), (other, node)}
    elif kind == "alone":
        cluster.cut = {way for way in itertools.permutations(cluster.names, 2) if node in way}
    else:
        cluster.loss = 0.2


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_and_all_nodes_have_the_same(seed):
    run(seed)


def test_an_idempotent_producer_s_batches_are_there_once_and_in_order():
    """Over any change of leaders: what the next one knows of producers is neither behind the log nor ahead of it."""
    producers = [producer for seed in range(SEEDS) for producer in pipelines(seed)]
    assert sum(producer.repeats for producer in producers) > SEEDS
    assert sum(producer.gaps for producer in producers), "no batch came ahead of its turn"


def pipelines(seed):
    cluster = SimCluster(seed)
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), TOPIC)
    producers = [Pipeline(cluster, f"p{number}") for number in range(3)]
    for step in range(40):
        meanwhile = partial(trouble, cluster) if cluster.rng.random() < 0.4 else lambda: None
        producers[step % 3].step(meanwhile=meanwhile)
    cluster.heal()
    cluster.settle()
    for producer in producers:
        for _ in range(20):
            producer.step(more=False)
        assert not producer.waiting, seed
    found = read(cluster.serving()[-1], committed=False)
    for producer in producers:
        assert [value for value in found if value.startswith(producer.name.encode())] == producer.sent, seed
        assert {value: found[value] for value in producer.sent} == {
            value: [offset] for value, offset in producer.acked.items()
        }, seed
    ids = [one for producer in producers for one in producer.ids]
    assert len(set(ids)) == 3, seed
    return producers


def failover(cluster, member):
    """The leader is cut from power; who leads then."""
    cluster.cut_power(member.node_id)
    return cluster.wait_for_leader()


def first_protocol(member, cluster, name="p"):
    made = Producer(SimClient(member.node, cluster.scheduler), name, v2=False)
    assert made.init() is ErrorCode.none
    return made


def test_a_commit_that_is_asked_for_again_after_a_failover_is_answered_as_recorded():
    """First protocol: its answer was lost with the leader."""
    cluster = SimCluster(5)
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), TOPIC)
    made = first_protocol(member, cluster)
    for value in (b"one", b"two"):
        assert made.send(TOPIC, {0: [value]}) == {0: ErrorCode.none}
        assert made.end(commit=True) is ErrorCode.none
    member = failover(cluster, member)
    made.client = SimClient(member.node, cluster.scheduler)
    assert made.end(commit=True) is ErrorCode.none, "the commit of two, again"
    assert made.send(TOPIC, {0: [b"three"]}) == {0: ErrorCode.none}
    assert made.end(commit=True) is ErrorCode.none
    assert list(read(member, committed=True)) == [b"one", b"two", b"three"]


def test_a_transaction_that_a_failover_cut_off_can_be_aborted_and_its_producer_goes_on():
    """First protocol: its EndTxn is not taken for a repeat of the last one's, and not for its producer's end."""
    for joined in (True, False):
        cluster = SimCluster(6)
        member = cluster.wait_for_leader()
        create_topic(SimClient(member.node, cluster.scheduler), TOPIC)
        made = first_protocol(member, cluster)
        assert made.send(TOPIC, {0: [b"one"]}) == {0: ErrorCode.none}
        assert made.end(commit=True) is ErrorCode.none
        assert made.add(TOPIC, [0]) is ErrorCode.none
        if joined:
            assert made.send(TOPIC, {0: [b"lost"]}, add=False) == {0: ErrorCode.none}
        member = failover(cluster, member)
        made.client = SimClient(member.node, cluster.scheduler)
        assert made.end(commit=True) is ErrorCode.invalid_producer_id_mapping
        assert made.end(commit=False) is ErrorCode.none
        assert made.send(TOPIC, {0: [b"two"]}) == {0: ErrorCode.none}
        assert made.end(commit=True) is ErrorCode.none
        assert list(read(member, committed=True)) == [b"one", b"two"]


def test_who_had_no_transaction_open_does_not_notice_a_failover():
    cluster = SimCluster(7)
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), TOPIC)
    made = first_protocol(member, cluster)
    assert made.send(TOPIC, {0: [b"one"]}) == {0: ErrorCode.none}
    assert made.end(commit=True) is ErrorCode.none
    for value in (b"two", b"three"):
        member = failover(cluster, member)
        made.client = SimClient(member.node, cluster.scheduler)
        assert made.send(TOPIC, {0: [value]}) == {0: ErrorCode.none}
        assert made.end(commit=True) is ErrorCode.none
        cluster.heal()
        cluster.settle()
    assert list(read(member, committed=True)) == [b"one", b"two", b"three"]


def test_a_node_that_falls_silent_is_away_at_once_and_named_to_clients_for_as_long_as_they_may_wait_for_it():
    cluster = SimCluster(3)
    leader = cluster.wait_for_leader()
    silent = next(node for node in cluster.names if node != leader.node_id)
    cluster.run_until(lambda: silent in leader.here())
    cluster.cut_power(silent)
    view = leader.node.cluster
    cluster.scheduler.advance(SILENT_MS + 1000)
    assert set(view.away()) == {silent}
    assert [broker.id for broker in view.brokers()] == [0, 1, 2]
    cluster.scheduler.advance(NAMED_MS)
    assert silent not in [broker.id for broker in view.brokers()]


def test_a_leader_is_new_for_as_long_as_clients_may_wait_for_the_one_before():
    cluster = SimCluster(4)
    view = cluster.wait_for_leader().node.cluster
    assert view.led_lately(None)
    cluster.scheduler.advance(LATELY_MS)
    assert not view.led_lately(None)


def test_a_leader_that_does_not_wait_for_the_others_is_found(monkeypatch):
    def flush(self, done):
        self._send_soon()
        self._scheduler.call_soon(done, None)

    monkeypatch.setattr(ReplicatedDisk, "_flush", flush)
    for seed in range(40):
        try:
            run(seed)
        except AssertionError:
            return
    raise AssertionError("acknowledged without a majority, and nobody noticed")


def run(seed):
    cluster = SimCluster(seed)
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), TOPIC)
    writers = [Writer(cluster, f"w{number}", number > 0) for number in range(3)]
    for _ in range(60):
        if cluster.rng.random() < 0.2:
            trouble(cluster)
        cluster.rng.choice(writers).step()
    cluster.heal()
    cluster.settle()
    judge(cluster, writers)
    # An election more, and all replicas are byte for byte the same.
    cluster.settle()
    assert cluster.files(0) == cluster.files(1) == cluster.files(2)


def judge(cluster, writers):
    """What a settled cluster has, by what its clients were told; the first writer is the one without transactions."""
    member = cluster.serving()[-1]
    everything, visible = read(member, committed=False), read(member, committed=True)
    plain = writers[0]
    assert {
        value: everything[value][0] for value in plain.acked if len(everything.get(value, ())) == 1
    } == plain.acked
    for writer in writers[1:]:
        for value in writer.committed:
            assert len(visible.get(value, ())) == 1, f"{value!r} was committed"
        for value in writer.aborted:
            assert value not in visible, f"{value!r} was aborted"
    assert sum(len(writer.acked) + len(writer.committed) for writer in writers) > 5, (
        "hardly anything was done"
    )


def test_a_node_that_was_away_for_too_long_fetches_the_state():
    cluster = SimCluster(1, LogLimits(part_bytes=4096, keep_bytes=0, checkpoint_bytes=4096))
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), TOPIC)
    away = next(node for node in cluster.names if node != member.node_id)
    cluster.settle()
    known = cluster.members[away].store.index
    cluster.cut_power(away)
    writer = Writer(cluster, "w", False)
    while min(one._log.first_index for one in cluster.members.values()) <= known + 1:
        writer.step()
        assert writer.count < 500
    cluster.start(away)
    cluster.run_until(lambda: away in cluster.members and cluster.members[away].store.must_fetch)
    for _ in range(5):
        writer.step()
    cluster.settle()
    assert cluster.files(0) == cluster.files(1) == cluster.files(2)
    # It leads with what it fetched: the other two are never up together from here on.
    leader = cluster.serving()[-1].node_id
    cluster.cut_power(leader)
    cluster.wait_for_leader()
    for _ in range(5):
        writer.step()
    assert len(writer.acked) > 10
    found = read(cluster.serving()[-1], committed=False)
    assert {value: found[value][0] for value in writer.acked} == writer.acked
    cluster.heal()
    cluster.settle()
    assert cluster.files(0) == cluster.files(1) == cluster.files(2)
