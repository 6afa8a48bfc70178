"""Nodes come and go, and replicas move, where ranges have groups of their own: in virtual time, under faults.

SEALOG_MOVES_SEEDS: how many seeds of faults, 4 by default.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import pytest
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from broker.node_registry import Standing
from broker.placement import AddReplica, RemoveReplica
from broker.ranges import member as member_module
from broker.ranges.moves import dropped, forgotten, is_done, may_hold, next_change, ordered, settled
from broker.ranges.records import RangeRecord
from broker.replication.folder import make_dir_durable
from broker.replication.hard_states import HardStateTable
from broker.replication.metadata_group import MetadataGroup
from broker.replication.replica import LogLimits
from broker.replication.store import Fatal
from raftish.config import Config
from raftish.core import Raft, Role
from raftish.entries import HardState
from raftish.membership import Change, Membership, Step
from raftish.messages import TimeoutNow
from tests.cluster.move_mutants import PLANTED, WITHIN
from tests.cluster.planted import must_be_found
from tests.cluster.sim_moves import at_rest, judge, run
from tests.cluster.sim_ranges import Operator, SimRanges, Writer

SEEDS = [*range(int(os.environ.get("SEALOG_MOVES_SEEDS", "4"))), 345]
"""In the last one a leader is lost with all that it had noted of a newcomer, which has it in its log."""


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
    cluster.run_until(lambda: not cluster.controller().view.away())
    cluster.create_topic("u", 4)
    cluster.run_until(lambda: all(one.topics.get("u") for one in cluster.members.values()))
    assert any(3 in record.replicas for record in cluster.members[3].topics.ranges.values())


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


def test_a_node_that_comes_late_fetches_the_metadata_as_a_snapshot(monkeypatch):
    small = partial(MetadataGroup, limits=LogLimits(part_bytes=1024, keep_bytes=0))
    monkeypatch.setattr(member_module, "MetadataGroup", small)
    cluster = SimRanges(5, snapshot_log_bytes=2000)
    for number in range(12):
        cluster.create_topic(f"t{number}", 2)
    cluster.run_until(lambda: all(one.metadata.log.first_index > 10 for one in cluster.members.values()))
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [0])
    operator.finish()
    cluster.run_until(lambda: len(cluster.members[3].topics) == 12)
    assert cluster.members[3].metadata.log.first_index > 10
    cluster.run_until(lambda: voters(cluster) == {(0, 1, 2, 3)})


def test_a_node_that_was_away_while_others_came_finds_the_leader_among_them():
    cluster = SimRanges(10)
    cluster.create_topic("t", 1)
    away = next(node for node in cluster.names if node != cluster.controller().node_id)
    cluster.cut_power(away)
    operator = Operator(cluster)
    for node in (3, 4):
        operator.wants("add", node)
        cluster.come(node, [node for node in (0, 1, 2) if node != away])
    operator.finish()
    while cluster.controller().node_id < 3:
        cluster.controller().hand_over(4)
        cluster.advance(500)
    cluster.start(away)
    cluster.run_until(lambda: set(cluster.members[away]._voters()) == {0, 1, 2, 3, 4})


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


# -- the pure parts


RECORD = RangeRecord("t", b"", 0, 0, (0, 1, 2), 0)


def test_a_move_is_one_node_more_and_then_one_less():
    adding = ordered(RECORD, AddReplica("t 0", 3, ""))
    assert (adding.target, adding.step, adding.founders) == ((0, 1, 2, 3), 1, (0, 1, 2))
    assert adding.holders == {0, 1, 2, 3}
    # One move at a time.
    assert ordered(adding, AddReplica("t 0", 4, "")) is None
    assert ordered(adding, RemoveReplica("t 0", 0, "")) is None
    # The report of another step, or of other voters, is none of this one.
    assert settled(adding, 0, {0, 1, 2, 3}) is None
    assert settled(adding, 1, {0, 1, 2}) is None
    there = settled(adding, 1, {0, 1, 2, 3})
    assert (there.replicas, there.target, there.left) == ((0, 1, 2, 3), (), ())
    assert settled(there, 1, {0, 1, 2, 3}) is None
    removing = ordered(there, RemoveReplica("t 0", 0, ""))
    assert removing.goal == (1, 2, 3)
    assert 0 in removing.holders, "it takes part until the group has let it go"
    assert ordered(removing, AddReplica("t 0", 0, "")) is None
    gone = settled(removing, 2, {1, 2, 3})
    assert (gone.replicas, gone.left) == ((1, 2, 3), (0,))
    assert gone.founders == (0, 1, 2), "all replicas begin with the same"
    assert RangeRecord.of(gone.value()) == gone


def test_a_replica_that_did_not_come_is_given_up():
    adding = ordered(RECORD, AddReplica("t 0", 3, ""))
    given_up = ordered(adding, RemoveReplica("t 0", 3, ""))
    assert (given_up.goal, given_up.left) == ((0, 1, 2), (3,))
    assert may_hold(given_up, 3), "the group may have it for a moment yet"
    # What is said of the step before counts no more, though the voters are these.
    assert settled(given_up, 1, {0, 1, 2}) is None
    rest = settled(given_up, 2, {0, 1, 2})
    assert rest.target == ()
    assert not may_hold(rest, 3)
    assert ordered(rest, AddReplica("t 0", 3, "")) is None


def test_who_left_comes_back_when_nobody_knows_of_its_vote():
    record = replace(RECORD, left=(3, 4), step=5)
    assert ordered(record, AddReplica("t 0", 3, "")) is None
    one = dropped(record, 3)
    assert dropped(one, 3) is None
    assert dropped(one, 2) is None
    assert forgotten(one, 5, is_whole=True) is None, "the other may come with all that it had"
    both = dropped(one, 4)
    assert forgotten(both, 5, is_whole=False) is None, "a member may still have an old membership"
    assert forgotten(both, 4, is_whole=True) is None
    clean = forgotten(both, 5, is_whole=True)
    assert (clean.left, clean.dropped) == ((), ())
    assert ordered(clean, AddReplica("t 0", 3, "")).target == (0, 1, 2, 3)


def members(voters, learners=()):
    return Membership(frozenset(voters), frozenset(learners))


@pytest.mark.parametrize(
    ("goal", "now", "wanted"),
    [
        ((0, 1, 2), members({0, 1, 2}), None),
        ((0, 1, 2, 3), members({0, 1, 2}), Change(Step.ADD_LEARNER, 3)),
        ((0, 1, 2, 3), members({0, 1, 2}, {3}), Change(Step.PROMOTE, 3)),
        ((1, 2, 3), members({0, 1, 2, 3}), Change(Step.REMOVE, 0)),
        ((0, 1, 2), members({0, 1, 2}, {3}), Change(Step.REMOVE, 3)),
        # A leader that missed steps: whom it has too few of comes first.
        ((1, 2, 3), members({0, 1, 2}), Change(Step.ADD_LEARNER, 3)),
    ],
)
def test_the_next_change(goal, now, wanted):
    assert next_change(goal, now) == wanted
    assert is_done(goal, now) == (wanted is None)


def test_a_place_that_was_left_keeps_what_was_promised():
    disk = SimDisk(SimScheduler(), flush_delay_ms=1.0)
    make_dir_durable(disk, "raft")

    def opened():
        return HardStateTable(disk, disk.scheduler, "raft/hard-states")

    def durable(table):
        told = []
        table.when_all_durable(told.append)
        disk.scheduler.run_until(lambda: told)

    table = opened()
    table.add(16, 7)
    table.write(16, HardState(5, 1))
    table.leave(16, 30)
    durable(table)
    disk = disk.crash(0, keep="none", scheduler=disk.scheduler)
    table = opened()
    assert table.has_left(16)
    assert (table.since(16), table.groups, table.state(16)) == (30, {16: 30}, HardState(5, 1))
    table.come_back(16, 40)
    durable(table)
    disk = disk.crash(0, keep="none", scheduler=disk.scheduler)
    table = opened()
    assert not table.has_left(16)
    assert table.is_coming(16)
    table.came_back(16)
    assert not table.is_coming(16)
    assert (table.since(16), table.state(16)) == (40, HardState(5, 1))


def test_a_view_that_is_behind_does_not_bring_a_range_back():
    """After a restart the records are told as they were: what the node left in between it does not make anew."""
    cluster = SimRanges(7)
    cluster.create_topic("t", 1, factor=1)
    written(cluster, "t", 1)
    group, record = next(iter(cluster.controller().topics.ranges.items()))
    member = cluster.members[record.replicas[0]]
    hosting = member.hosting
    other = next(node for node in cluster.names if node != member.node_id)
    lsn = hosting.hosted[group].lsn
    # As if it had moved away.
    hosting.hosted[group].record = replace(record, replicas=(other,))
    hosting.hosted[group].lsn = lsn + 10
    hosting.depart(group)
    cluster.run_until(lambda: group not in hosting.hosted)
    hosting.appeared(group, record, lsn + 9)
    assert group not in hosting.hosted
    hosting.appeared(group, record, lsn + 11)
    assert group in hosting.hosted


def test_a_node_stands_for_election_when_it_is_a_voter_by_its_record():
    cluster = SimRanges(8)
    cluster.create_topic("t", 3)
    written(cluster, "t", 3)
    operator = Operator(cluster)
    operator.wants("add", 3)
    cluster.come(3, [0])
    operator.finish()
    seen = set()

    def look():
        for group, hosted in cluster.members[3].hosting.hosted.items():
            found = cluster.members[3].host.groups.get(group)
            if found is not None:
                is_voter = 3 in hosted.record.replicas
                assert found.raft.may_stand == is_voter
                seen.add(is_voter)
        return seen == {False, True}

    cluster.run_until(look)
    cluster.run_until(lambda: at_rest(cluster))


class ThreeEntries:
    """A log of term 4."""

    first_index, last_index = 1, 3

    def term_at(self, index):
        return {0: 0, 1: 4, 2: 4, 3: 4}.get(index)

    def entries(self, first, last, max_bytes):
        raise AssertionError("nobody asks")


def test_a_node_that_may_not_stand_does_not_lead_alone():
    """Its log may be at a membership of a former stay, in which it was the only voter."""
    alone = members({1})
    raft = Raft(
        1,
        Config(),
        ThreeEntries(),
        HardState(4, None),
        [(0, members({2})), (3, alone)],
        lambda: 0.5,
        0,
        may_stand=False,
    )
    for now_ms in range(0, 20_000, 100):
        raft.tick(now_ms)
        raft.take_output()
    raft.stand(20_000)
    raft.step(TimeoutNow(2, 1, 4), 20_000)
    assert raft.role is Role.FOLLOWER
    raft.may_stand = True
    for now_ms in range(20_000, 40_000, 100):
        raft.tick(now_ms)
    assert raft.role is Role.CANDIDATE


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.mutant.__name__)
def test_a_planted_fault_is_found(planted):
    must_be_found(run, planted.mutant, planted.first_seed, WITHIN)


@pytest.mark.parametrize("first", ["add", "remove"])
def test_a_node_whose_folder_was_lost_is_replaced_by_one_with_another_number(first):
    cluster = SimRanges(9)
    cluster.create_topic("t", 3)
    writers = written(cluster, "t", 3)
    lost = next(node for node in cluster.names if node != cluster.controller().node_id)
    cluster.cut_power(lost)
    operator = Operator(cluster)
    events = [("add", 3), ("remove", lost)]
    for event in events if first == "add" else reversed(events):
        operator.wants(*event)
    cluster.come(3, [node for node in (0, 1, 2) if node != lost])
    operator.finish()
    cluster.removed.add(lost)
    stay = {0, 1, 2, 3} - {lost}
    cluster.run_until(lambda: all(one == stay for one in holders(cluster).values()) and at_rest(cluster))
    cluster.run_until(lambda: voters(cluster) == {tuple(sorted(stay))})
    judge(cluster, writers)
    # It had a vote and never said that it has dropped what it had: nobody who left comes back to these ranges.
    assert all(record.left == (lost,) for record in cluster.members[3].topics.ranges.values())
