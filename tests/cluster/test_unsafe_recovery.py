"""A node goes on alone after the loss of a majority: what it keeps, what it says, and what becomes of the others."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler
from support.sim_node import SimClient
from support.sim_producer import create_topic

from broker.cli import main
from broker.replication.folder import claim, note_removed
from broker.replication.member import RAFT_FOLDER
from broker.replication.unsafe_recovery import RECOVERED, CannotRecover, Recovery, notes
from tests.clients.raw_kafka import RawKafka
from tests.cluster.brokers import Brokers
from tests.cluster.sim_cluster import TOPIC, SimCluster, Writer
from tests.cluster.test_cluster_simulation import read
from tests.cluster.test_members_simulation import Operator
from tests.cluster.test_operating import address


def test_the_one_that_is_left_goes_on_and_the_others_hear_that_they_are_out():
    cluster = SimCluster(4)
    leader = cluster.wait_for_leader()
    create_topic(SimClient(leader.node, cluster.scheduler), TOPIC)
    writer = Writer(cluster, "w", False)
    for _ in range(10):
        writer.step()
    cluster.settle()
    kept = dict(writer.acked)
    left, *gone = (node for node in cluster.names if node != leader.node_id)
    # The last ones are acknowledged without it.
    cluster.cut_power(left)
    for _ in range(3):
        writer.step()
    assert len(writer.acked) > len(kept)
    for node in (leader.node_id, *gone):
        cluster.cut_power(node)
    recovery = Recovery(cluster.disks[left], SimScheduler(), RAFT_FOLDER)
    assert recovery.found.voters == (0, 1, 2)
    line = recovery.carry_out("today")
    assert notes(cluster.disks[left]) == [line]
    recovery.close()
    cluster.start(left)
    cluster.run_until(lambda: cluster.members[left].node is not None)
    found = read(cluster.members[left], committed=False)
    assert {value: found[value][0] for value in kept} == kept
    assert not set(writer.acked) - set(kept) & set(found), "what it never had"
    # The others start all the same: a majority of the old group. They end as soon as they hear of the new one.
    for node in (leader.node_id, *gone):
        cluster.start(node)
    cluster.run_until(lambda: set(cluster.members) == {left})
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [left])
    operator.finish()
    writer.step()
    cluster.settle()
    assert cluster.files(left) == cluster.files(3)


def test_folders_with_which_nobody_can_go_on():
    cluster = SimCluster(5)
    cluster.wait_for_leader()
    cluster.settle()
    for node in cluster.names:
        cluster.cut_power(node)

    def refused(disk):
        with pytest.raises(CannotRecover) as error:
            Recovery(disk, SimScheduler(), RAFT_FOLDER)
        return str(error.value)

    assert "no folder of a cluster's node" in refused(SimDisk(cluster.scheduler, flush_delay_ms=1.0))
    empty = SimDisk(cluster.scheduler, flush_delay_ms=1.0)
    claim(empty, 7)
    assert "never taken part" in refused(empty)
    note_removed(cluster.disks[0])
    assert "was removed" in refused(cluster.disks[0])
    cluster.disks[1].open("fetching", create=True).close()
    assert "of no use" in refused(cluster.disks[1])
    Recovery(cluster.disks[2], SimScheduler(), RAFT_FOLDER).carry_out("today")
    assert "the only member already" in refused(cluster.disks[2])


def test_the_command_asks_first_and_says_what_it_did(tmp_path):
    def recover(*words):
        return CliRunner().invoke(
            main, ["cluster", "recover-unsafe", "--data", str(tmp_path / str(left)), *words]
        )

    with Brokers(tmp_path) as brokers:
        left = brokers.leader()
        with RawKafka(address(brokers, left)) as raw:
            raw.create_topic("kept")
        running = recover("--accept-data-loss")
        assert running.exit_code == 1
        assert "is running" in running.output
        for node in brokers.nodes:
            brokers.kill(node)
        asked = recover()
        assert asked.exit_code == 1
        assert "WHAT MAY BE LOST" in asked.output
        assert "nothing was changed" in asked.output
        assert not (tmp_path / str(left) / RECOVERED).exists()
        done = recover("--accept-data-loss")
        assert done.exit_code == 0, done.output
        assert f"node {left} goes on alone" in (tmp_path / str(left) / RECOVERED).read_text()
        epoch = brokers.epoch(left)
        brokers.launch(left)
        assert brokers.leader(after=epoch) == left
        assert "recovered without a majority" in brokers.log(left)
        with RawKafka(address(brokers, left)) as raw:
            names = [topic.name for topic in raw.call("metadata", 12, topics=None).topics]
        assert names == ["kept"]
