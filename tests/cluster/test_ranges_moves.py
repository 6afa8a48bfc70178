"""Nodes come and go, and replicas move, where ranges have groups of their own: in virtual time, under faults.

SEALOG_MOVES_SEEDS: how many seeds of faults, 4 by default.
"""

from __future__ import annotations

import os

import pytest
from support.sim_disk import SimDisk

from broker.node_registry import Standing
from broker.replication.store import Fatal
from tests.cluster.sim_moves import at_rest, judge, run
from tests.cluster.sim_ranges import Operator, SimRanges, Writer
from wire.errors import ErrorCode

SEEDS = range(int(os.environ.get("SEALOG_MOVES_SEEDS", "4")))


def written(cluster, topic, partitions, count=3):
    writers = [Writer(cluster, topic, partition) for partition in range(partitions)]
    for writer in writers:
        while len(writer.acked) < count:
            writer.step()
    return writers


def voters(cluster):
    return {tuple(sorted(one._voters())) for one in cluster.members.values()}


def test_a_node_comes_in_with_an_empty_folder_and_is_named_to_clients():
    cluster = SimRanges(1)
    cluster.create_topic("t", 3)
    written(cluster, "t", 3)
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [0])
    operator.finish()
    cluster.run_until(lambda: voters(cluster) == {(0, 1, 2, 3)})
    cluster.run_until(lambda: all(len(one.brokers()) == 4 for one in cluster.members.values()))
    assert set(cluster.members[3].topics.ranges) == set(cluster.members[0].topics.ranges)
    leader = cluster.leader("t", 0)
    cluster.run_until(lambda: cluster.leader("t", 0, asking=3) == leader)
    # It counts: two of four are no majority.
    away = [node for node in (0, 1, 2) if node != cluster.controller().node_id]
    for node in away:
        cluster.cut_power(node)
    cluster.advance(3000)
    assert not any(one.node.controller for one in cluster.members.values())
    cluster.heal()
    cluster.whole()
    assert cluster.create_topic("u", 4).error_code is ErrorCode.none


def test_a_node_that_came_later_and_lost_its_folder_is_refused():
    cluster = SimRanges(2)
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [1])
    operator.finish()
    cluster.cut_power(3)
    cluster.disks[3] = SimDisk(cluster.scheduler, flush_delay_ms=1.0)
    cluster.start(3)
    cluster.scheduler.run_until(lambda: bool(cluster.fatal))
    assert isinstance(cluster.fatal[0], Fatal)
    assert "add a new one with another number" in str(cluster.fatal[0])
    assert cluster.members[3]._metadata_group is None


def test_a_folder_that_is_lost_on_the_way_in_does_not_become_a_member_unnoticed():
    """Its number is on record before it may vote, so another folder is not taken for the one that voted."""
    cluster = SimRanges(3)
    operator = Operator(cluster)
    operator.wants("add", 3)
    controller = cluster.controller()
    operator.step()
    cluster.come(3, [1])
    cluster.run_until(lambda: controller.node.controller.registry.all()[3].folder)
    cluster.cut_power(3)
    cluster.disks[3] = SimDisk(cluster.scheduler, flush_delay_ms=1.0)
    cluster.start(3)
    cluster.scheduler.run_until(lambda: bool(cluster.fatal))
    assert "another folder" in str(cluster.fatal[0])


def test_a_node_that_holds_nothing_is_removed_and_ends():
    cluster = SimRanges(4)
    operator = Operator(cluster)
    for event in ("add", "remove"):
        operator.wants(event, 3)
    cluster.come(3, [0, 1, 2])
    operator.finish()
    assert cluster.removed == {3}
    cluster.run_until(lambda: voters(cluster) == {(0, 1, 2)})
    assert cluster.controller().node.controller.registry.all()[3].standing is Standing.REMOVED


def test_a_node_that_fetches_the_metadata_as_a_snapshot():
    cluster = SimRanges(5, snapshot_log_bytes=2000)
    for number in range(12):
        cluster.create_topic(f"t{number}", 2)
    cluster.run_until(
        lambda: all(one.metadata.replicated.snapshots is not None for one in cluster.members.values())
    )
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [0])
    operator.finish()
    cluster.run_until(lambda: len(cluster.members[3].topics) == 12)


def holders(cluster):
    """By group: what the newest committed record says."""
    member = max(cluster.members.values(), key=lambda one: one.metadata.replicated.applied_lsn)
    return {group: set(record.replicas) for group, record in member.topics.ranges.items()}


def test_a_node_that_comes_takes_replicas_and_one_that_goes_gives_them_away_first():
    cluster = SimRanges(6)
    cluster.create_topic("t", 6)
    writers = written(cluster, "t", 6, count=30)
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [0])
    operator.finish()
    # Nine replicas on four nodes: two at least on each.
    cluster.run_until(
        lambda: at_rest(cluster) and sum(3 in one for one in holders(cluster).values()) == 2,
        max_ms=120_000,
    )
    assert all(len(one) == 3 for one in holders(cluster).values())
    judge(cluster, writers)
    operator.wants("remove", 0)
    operator.finish()
    cluster.run_until(lambda: at_rest(cluster))
    assert all(one == {1, 2, 3} for one in holders(cluster).values())
    assert cluster.removed == {0}
    judge(cluster, writers)
    for node in (1, 2, 3):
        cluster.cut_power(node)
    cluster.heal()
    judge(cluster, writers)
    # What was given away is gone from the disk as well.
    for node in (1, 2, 3):
        groups = {group for group, nodes in holders(cluster).items() if node in nodes}
        assert {int(name) for name in cluster.disks[node].list("ranges")} == groups


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_while_nodes_come_and_go_and_replicas_move(seed):
    run(seed)
