"""Leaderships that are handed over, of ranges and of the metadata: open transactions go on, and none that could be
missing something does. In virtual time.

SEALOG_HANDOVER_SEEDS: how many seeds of hand-overs, 24 by default.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from broker.replication.metadata_group import METADATA_GROUP
from raftish.entries import Kind
from raftish.messages import AppendRequest, TimeoutNow
from tests.cluster.planted import must_be_found
from tests.cluster.sim_cluster import nothing_is_lost
from tests.cluster.sim_ranges import SimRanges
from tests.cluster.sim_transactors import (
    ABORT_AFTER,
    PARTITIONS,
    GivenUp,
    Transactor,
    all_seen,
    check,
    live_through_handovers,
)
from tests.cluster.txn_mutants import (
    HANDOVER_MUTANTS,
    accepts_an_older_coordinators_mark,
    goes_on_before_the_coordinators_mark_is_taken_back,
    goes_on_before_the_mark_is_taken_back,
    keeps_the_term_that_let_it_in_first,
    serves_before_its_take_over_is_durable,
    takes_lineages_for_intervals,
)
from wire.errors import ErrorCode

SEEDS = int(os.environ.get("SEALOG_HANDOVER_SEEDS", "24"))
CHUNK = 12


def has_batches(message):
    return isinstance(message, AppendRequest) and any(one.kind is Kind.NORMAL for one in message.entries)


class Scene:
    """A cluster, a transaction v2 that wrote to every partition, and one range whose leader is not the controller."""

    def __init__(self, seed):
        self.cluster = SimRanges(seed)
        self.cluster.create_topic("t", 6)
        self.transactor = Transactor(self.cluster, "x", "t", PARTITIONS, 2)
        # Two of them: the next one leaves no trace when it begins.
        self.transactor.run(True)
        self.transactor.run(True)
        self.controller = self.cluster.controller().node_id
        self.place = next(p for p in PARTITIONS if self.led_by(p) != self.controller)
        self.leader = self.led_by(self.place)
        self.group = self.cluster.members[self.leader].topics.get("t").group_of(self.place)
        self.wrote = {}

    def led_by(self, place):
        self.cluster.run_until(lambda: self.cluster.leader("t", place)[0] != -1)
        return self.cluster.leader("t", place)[0]

    def write(self, places=PARTITIONS):
        for partition in places:
            values = [f"{partition}-{len(self.wrote.get(partition, ()))}".encode()]
            list(self.transactor.write(partition, values))
            self.wrote.setdefault(partition, []).extend(values)

    def hand_over(self, group, source, target):
        """Begun, and over; not whether the target leads."""
        over = []
        self.cluster.members[source].leaderships.hand_over(group, target, lambda: over.append(1))
        return over

    def leads(self, group):
        """The nodes that believe so, with their terms."""
        return {
            node: member.host.groups[group].raft.term
            for node, member in self.cluster.members.items()
            if member.host.groups[group].raft.is_leader
        }

    def end(self):
        """The code with which the commit is refused, or NONE; readers see what that says."""
        transactor = self.transactor
        code = ErrorCode.none
        try:
            list(transactor.end(True))
        except GivenUp as error:
            code = error.args[0]
        if code is ErrorCode.none:
            transactor.committed.append(self.wrote)
        else:
            transactor.aborted.append(self.wrote)
            list(transactor.begin())
        self.cluster.lost = nothing_is_lost
        self.cluster.heal()
        check([transactor], all_seen(self.cluster))
        transactor.run(True)
        check([transactor], all_seen(self.cluster))
        return code


def test_a_transaction_goes_on_over_every_leader():
    scene = Scene(40)
    cluster = scene.cluster
    for round_ in range(4):
        scene.write()
        groups = [METADATA_GROUP, *next(iter(cluster.members.values())).topics.ranges]
        for group in groups[round_ % 2 :]:
            (source,) = scene.leads(group)
            target = next(node for node in cluster.names if node != source)
            over = scene.hand_over(group, source, target)
            cluster.run_until(lambda over=over: over)
            cluster.run_until(lambda group=group, target=target: target in scene.leads(group))
    assert scene.end() is ErrorCode.none


def behind_a_mark_that_nobody_answered():
    """The leader marks its log and is not heard by who is to lead. It goes on, what it takes then reaches nobody, and
    it dies."""
    scene = Scene(41)
    cluster, leader, group = scene.cluster, scene.leader, scene.group
    scene.write()
    cluster.lost = lambda node, number, message: (
        (node, number) == (leader, group) and (isinstance(message, TimeoutNow) or has_batches(message))
    )
    over = scene.hand_over(group, leader, scene.controller)
    cluster.run_until(lambda: over)
    assert leader in scene.leads(group)
    assert scene.transactor.produce(scene.place, [b"lost"], node=leader) is ErrorCode.none
    scene.wrote[scene.place].append(b"lost")
    cluster.cut_power(leader)
    cluster.run_until(lambda: scene.leads(group))
    return scene.end()


def test_a_mark_is_taken_back_before_anything_else_is_written():
    assert behind_a_mark_that_nobody_answered() in (*ABORT_AFTER, ErrorCode.producer_fenced)
    with goes_on_before_the_mark_is_taken_back(), pytest.raises(ValueError):
        behind_a_mark_that_nobody_answered()


def under_a_leader_that_is_wholly_lost():
    """The one that is handed the range takes a write, nothing of its term reaches anybody, and it dies: whoever leads
    next finds the mark of the term before it."""
    scene = Scene(42)
    cluster, leader, group = scene.cluster, scene.leader, scene.group
    scene.write([scene.place])
    (term,) = scene.leads(group).values()
    target = next(node for node in cluster.names if node not in (leader, scene.controller))
    cluster.lost = lambda node, number, message: (
        (node, number) == (target, group) and isinstance(message, AppendRequest)
    )
    scene.hand_over(group, leader, target)
    cluster.run_until(lambda: target in scene.leads(group))
    cluster.advance(3)
    assert scene.transactor.produce(scene.place, [b"lost"], node=target) is ErrorCode.none
    scene.wrote[scene.place].append(b"lost")
    cluster.cut_power(target)
    cluster.run_until(lambda: scene.leads(group))
    (next_term,) = scene.leads(group).values()
    assert next_term > term + 1
    return scene.end()


@pytest.mark.parametrize("mutant", [takes_lineages_for_intervals, keeps_the_term_that_let_it_in_first])
def test_a_term_between_two_that_is_lost_is_missed(mutant):
    assert under_a_leader_that_is_wholly_lost() in (*ABORT_AFTER, ErrorCode.producer_fenced)
    with mutant(), pytest.raises(ValueError):
        under_a_leader_that_is_wholly_lost()


def under_a_coordinator_of_which_nothing_is_left(*, served):
    """The coordinator hands over, and what the next one records reaches nobody, from its begin on or from when it
    serves. A transaction begins that leaves no trace; that coordinator dies, and the same transaction writes on."""
    scene = Scene(43)
    cluster, controller = scene.cluster, scene.controller
    target = next(node for node in cluster.names if node not in (controller, scene.leader))

    def lose():
        cluster.lost = lambda node, number, message: (
            (node, number) == (target, METADATA_GROUP) and has_batches(message)
        )

    if not served:
        lose()
    scene.hand_over(METADATA_GROUP, controller, target)
    cluster.run_until(lambda: target in scene.leads(METADATA_GROUP))
    if served:
        cluster.run_until(lambda: cluster.members[target].node.controller is not None)
        lose()
    else:
        cluster.advance(30)
    others = [p for p in PARTITIONS if scene.led_by(p) != target]
    first, second = others[0], others[-1]
    wrote = {first: [b"first"], second: [b"second"]}
    code = scene.transactor.produce(first, wrote[first], node=scene.led_by(first))
    cluster.cut_power(target)
    cluster.run_until(lambda: cluster.controller().node_id != target)
    cluster.lost = nothing_is_lost
    try:
        if code is not ErrorCode.none:
            list(scene.transactor._until(lambda: scene.transactor.produce(first, wrote[first], sequence=0)))
        list(scene.transactor.write(second, wrote[second]))
    except GivenUp:
        pass
    scene.wrote = wrote
    return scene.end()


def test_a_coordinator_serves_when_nobody_can_go_on_from_before_it():
    assert under_a_coordinator_of_which_nothing_is_left(served=False) is ErrorCode.none
    with serves_before_its_take_over_is_durable(), pytest.raises(ValueError):
        under_a_coordinator_of_which_nothing_is_left(served=False)


def test_an_older_coordinators_mark_counts_no_more():
    assert under_a_coordinator_of_which_nothing_is_left(served=True) is not ErrorCode.none
    with accepts_an_older_coordinators_mark(), pytest.raises(ValueError):
        under_a_coordinator_of_which_nothing_is_left(served=True)


def behind_a_coordinators_mark_that_nobody_answered():
    """As with a range's, and a transaction that leaves no trace begins behind it."""
    scene = Scene(44)
    cluster, controller = scene.cluster, scene.controller
    cluster.lost = lambda node, number, message: (
        (node, number) == (controller, METADATA_GROUP) and isinstance(message, TimeoutNow)
    )
    over = scene.hand_over(METADATA_GROUP, controller, scene.leader)
    cluster.run_until(lambda: over)
    cluster.lost = lambda node, number, message: (
        (node, number) == (controller, METADATA_GROUP) and has_batches(message)
    )
    others = [p for p in PARTITIONS if scene.led_by(p) != controller]
    scene.write(others[:1])
    cluster.cut_power(controller)
    cluster.run_until(lambda: cluster.controller().node_id != controller)
    cluster.lost = nothing_is_lost
    try:
        scene.write(others[-1:])
    except GivenUp:
        scene.wrote[others[-1]] = []
    return scene.end()


def test_a_coordinators_mark_is_taken_back_before_anything_else_goes_on():
    assert behind_a_coordinators_mark_that_nobody_answered() is not ErrorCode.none
    with goes_on_before_the_coordinators_mark_is_taken_back(), pytest.raises(ValueError):
        behind_a_coordinators_mark_that_nobody_answered()


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_transaction_aborts_where_leaders_are_handed_over(first):
    counts = Counter()
    seeds = range(first, min(first + CHUNK, SEEDS))
    for seed in seeds:
        try:
            counts.update(live_through_handovers(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert counts["committed"] > 20 * len(seeds)
    assert counts["leaderships"] > 10 * len(seeds)


@pytest.mark.parametrize("mutant", HANDOVER_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_handover_is_found(mutant):
    must_be_found(live_through_handovers, mutant, *HANDOVER_MUTANTS[mutant])
