"""Nodes come and go in virtual time, under power cuts, cut links and lost messages; judged as the other simulations."""

from __future__ import annotations

import os

import pytest
from support.sim_disk import SimDisk
from support.sim_node import SimClient
from support.sim_producer import create_topic

from broker.node_registry import NodeRecord, NodeRegistry, Standing
from broker.replication.member_changes import Do, Next, next_step
from broker.replication.newcomer import Newcomer, Verdict
from broker.replication.replica import LogLimits
from raftish.membership import Membership
from tests.cluster.sim_cluster import TOPIC, SimCluster, Writer
from tests.cluster.test_cluster_simulation import judge, read, trouble
from wire.errors import KafkaError

SEEDS = int(os.environ.get("SEALOG_CLUSTER_SEEDS", "2"))


class Operator:
    """Wants nodes in or out, and says so again until it is on record; `peer-N:1` is where node N is reached."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.wanted = []

    def wants(self, event, node):
        self.wanted.append((event, node))

    def step(self):
        serving = self.cluster.serving()
        if not self.wanted or not serving:
            return
        event, node = self.wanted[0]
        registry = NodeRegistry(serving[-1].node.store, self.cluster.scheduler.now_ms)
        records = registry.all()
        states = {number: one.standing for number, one in records.items()}
        done = {"add": (Standing.UP,), "remove": (Standing.REMOVED,)}[event]
        if states.get(node) in done and (event == "add" or node in self.cluster.removed):
            self.wanted.pop(0)
            return
        try:
            registry.change(node, event, **({"peer": f"peer-{node}:1"} if event == "add" else {}))
        except (KafkaError, OSError):
            return

    def finish(self):
        def done():
            self.step()
            return not self.wanted

        self.cluster.run_until(done, max_ms=120_000)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_while_nodes_come_and_go(seed):
    cluster = SimCluster(seed)
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), TOPIC)
    writers = [Writer(cluster, f"w{number}", number > 0) for number in range(3)]
    operator = Operator(cluster)
    rng = cluster.rng
    for step in range(60):
        if step in (8, 20):
            node = 3 if step == 8 else 4
            cluster.come(node, rng.sample(cluster.names, rng.randrange(1, len(cluster.names))))
            operator.wants("add", node)
        if step == 35:
            for node in rng.sample((0, 1, 2), 2):
                operator.wants("remove", node)
        if rng.random() < 0.2:
            trouble(cluster)
        operator.step()
        rng.choice(writers).step()
    cluster.heal()
    operator.finish()
    assert len(cluster.removed) == 2
    cluster.settle()
    judge(cluster, writers)
    names = sorted(cluster.members)
    assert {tuple(cluster.members[node].store.members[1]) for node in names} == {tuple(names)}
    # Whoever begins again goes by what its folder says, not by what it was told.
    for node in names:
        cluster.cut_power(node)
    cluster.told |= dict.fromkeys(names, (0, 1, 2))
    cluster.heal()
    cluster.settle()
    assert sorted(cluster.members) == names
    cluster.cut_power(names[0])
    cluster.run_until(lambda: any(one.node_id != names[0] for one in cluster.serving()))
    writers[0].step()
    cluster.heal()
    cluster.settle()
    files = [cluster.files(node) for node in names]
    assert all(one == files[0] for one in files)


def test_a_node_that_comes_late_gets_files_and_counts_in_the_majority():
    cluster = SimCluster(1, LogLimits(part_bytes=4096, keep_bytes=0, checkpoint_bytes=4096))
    member = cluster.wait_for_leader()
    create_topic(SimClient(member.node, cluster.scheduler), TOPIC)
    writer = Writer(cluster, "w", False)
    while min(one._log.first_index for one in cluster.members.values()) <= 1:
        writer.step()
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [0])
    operator.finish()
    # Two of four are no majority.
    followers = [node for node in (0, 1, 2) if node != cluster.wait_for_leader().node_id]
    for node in followers:
        cluster.cut_power(node)
    cluster.scheduler.advance(2000)
    assert not cluster.serving()
    cluster.start(followers[0])
    cluster.wait_for_leader()
    writer.step()
    cluster.heal()
    cluster.settle()
    found = read(cluster.serving()[-1], committed=False)
    assert {value: found[value][0] for value in writer.acked} == writer.acked


def test_a_node_that_lost_its_disk_votes_for_nobody_before_it_has_what_the_others_have():
    cluster = SimCluster(2)
    leader = cluster.wait_for_leader()
    create_topic(SimClient(leader.node, cluster.scheduler), TOPIC)
    cluster.settle()
    lost, other = (node for node in cluster.names if node != leader.node_id)
    cluster.cut_power(lost)
    writer = Writer(cluster, "w", False)
    for _ in range(5):
        writer.step()
    assert writer.acked
    # What it may have acknowledged is on the leader alone: the other one lags.
    cluster.cut_power(other)
    cluster.cut_power(leader.node_id)
    cluster.disks[lost] = SimDisk(cluster.scheduler, flush_delay_ms=1.0)
    cluster.start(lost)
    cluster.start(other)
    cluster.scheduler.advance(10_000)
    assert not cluster.serving()
    assert cluster.members[lost].replica is None
    cluster.heal()
    cluster.settle()
    found = read(cluster.serving()[-1], committed=False)
    assert {value: found[value][0] for value in writer.acked} == writer.acked


def test_a_node_of_another_cluster_is_not_taken_in():
    cluster = SimCluster(3)
    member = cluster.wait_for_leader()
    cluster.come(3, [])
    cluster.run_until(lambda: cluster.members[3].node is not None)
    assert cluster.members[3].store.members[1].voters == {3}, "it founded one of its own"
    registry = NodeRegistry(member.node.store, cluster.scheduler.now_ms)
    registry.change(3, "add", peer="peer-3:1")
    cluster.scheduler.advance(5000)
    assert member.store.members[1].voters == {0, 1, 2}
    assert registry.all()[3].standing is Standing.JOINING
    registry.change(3, "remove")
    cluster.run_until(lambda: registry.all()[3].standing is Standing.REMOVED)


# -- the pure parts


def test_who_founds():
    first = Newcomer(0, [0, 1, 2])
    assert first.verdict is None
    first.heard_empty(1, [0, 1])
    first.heard_empty(7, [0, 1, 2])
    assert first.verdict is None, "they were told of others"
    first.heard_empty(2, [2, 1, 0])
    assert first.verdict is Verdict.FOUNDS
    first.heard_old()
    assert first.verdict is Verdict.FOUNDS
    late = Newcomer(0, [0, 1, 2, 3, 4])
    late.heard_empty(1, [0, 1, 2, 3, 4])
    late.heard_old()
    late.heard_empty(2, [0, 1, 2, 3, 4])
    assert late.verdict is Verdict.FETCHES
    assert Newcomer(5, [5]).verdict is Verdict.FOUNDS


def record(standing):
    return NodeRecord(standing.value)


@pytest.mark.parametrize(
    ("standing", "voters", "learners", "here", "is_empty", "wanted"),
    [
        (Standing.JOINING, {0, 1, 2}, (), {0, 1, 2}, False, None),
        (Standing.JOINING, {0, 1, 2}, (), {0, 1, 2}, True, Do.ADD),
        (Standing.JOINING, {0, 1, 2}, {9}, {0, 1, 2, 9}, False, Do.PROMOTE),
        (Standing.JOINING, {0, 1, 2}, {9}, {0, 9}, False, None),
        (Standing.JOINING, {0, 1, 2, 9}, (), {0, 1}, False, Do.STARTED),
        (Standing.LEAVING, {0, 1, 9}, (), {0, 1}, False, Do.REMOVE),
        (Standing.LEAVING, {0, 1, 9}, (), {0, 9}, False, None),
        (Standing.LEAVING, {0, 1}, {9}, {0, 1}, False, Do.REMOVE),
        (Standing.LEAVING, {0, 1}, (), {0}, False, Do.EMPTIED),
        (Standing.UP, {0, 1}, (), {0, 1, 9}, False, Do.LEAVES),
        (Standing.REMOVED, {0, 1}, (), {0, 1, 9}, True, None),
    ],
)
def test_the_next_step(standing, voters, learners, here, is_empty, wanted):
    membership = Membership(frozenset(voters), frozenset(learners))
    found = next_step({9: record(standing)}, membership, 0, here, lambda node: is_empty)
    assert found == (None if wanted is None else Next(wanted, 9))


def test_a_leader_that_leaves_hands_over():
    members = Membership(frozenset({0, 1, 2}))
    found = next_step({0: record(Standing.LEAVING)}, members, 0, {0, 1, 2}, lambda node: False)
    assert found == Next(Do.HAND_OVER, 0)
