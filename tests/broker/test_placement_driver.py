"""The driver of placement, in virtual time, on a cluster that takes its time and loses orders."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from support.sim_loop import SimScheduler

from broker.node_registry import NodeRecord, after
from broker.placement import AddReplica, MoveLeader, Policy, RangeView, RemoveReplica
from broker.placement_driver import PlacementDriver


class Cluster:
    """Ranges whose groups do as they are told, later; `lossy`: one order in four gets lost."""

    def __init__(self, names, nodes=3, *, lossy=0):
        self.scheduler = SimScheduler()
        self.random = random.Random(lossy)
        self.lossy = lossy
        self.charge = True
        self.silent = set()
        self.orders = []
        self.records = {number: NodeRecord("UP") for number in range(1, nodes + 1)}
        replicas = tuple(self.records)[:3]
        self.by_name = {name: RangeView(name, replicas, 1, current=frozenset(replicas)) for name in names}
        self.driver = PlacementDriver(self, self.scheduler, Policy, interval_ms=1_000, patience_ms=5_000)

    def in_charge(self):
        return self.charge

    def nodes(self):
        return self.records

    def away(self):
        return self.silent

    def ranges(self):
        return list(self.by_name.values())

    def emptied(self, node):
        self.records[node] = after(self.records[node], "emptied", self.scheduler.now_ms())

    def order(self, move):
        self.orders.append(move)
        if not self.lossy or self.random.random() > 0.25:
            self.scheduler.call_later(self.random.randrange(10, 3_000), self._obey, move)

    def _obey(self, move):
        """What makes no sense any more is refused, as a leader does."""
        one = self.by_name[move.range]
        now_ms = self.scheduler.now_ms()
        match move:
            case AddReplica() if move.node not in one.replicas + one.learners:
                self.by_name[move.range] = replace(one, learners=(move.node,))
                self.scheduler.call_later(2_000, self._promote, move.range)
            case RemoveReplica() if move.node != one.leader:
                left = tuple(node for node in one.replicas if node != move.node)
                self.by_name[move.range] = replace(one, replicas=left, current=frozenset(left), learners=())
            case MoveLeader() if one.leader == move.source and move.target in one.replicas:
                self.by_name[move.range] = replace(one, leader=move.target, led_since_ms=now_ms)

    def _promote(self, name):
        one = self.by_name[name]
        if one.learners and one.learners[0] not in self.silent:
            voters = one.replicas + one.learners
            self.by_name[name] = replace(one, replicas=voters, learners=(), current=frozenset(voters))

    def event(self, node, event):
        self.records[node] = after(self.records.get(node), event, self.scheduler.now_ms())

    def leaders(self):
        return Counter(one.leader for one in self.by_name.values())

    def until(self, condition):
        deadline_ms = self.scheduler.now_ms() + 3_600_000
        while not condition():
            assert self.scheduler.now_ms() < deadline_ms, (self.driver.plan.lines(), self.by_name)
            self.scheduler.advance(500)


NAMES = [f"t {number}" for number in range(6)]


@pytest.mark.parametrize("lossy", [0, 1, 2, 3])
def test_a_life_of_a_cluster(lossy):
    cluster = Cluster(NAMES, lossy=lossy)
    cluster.until(lambda: cluster.leaders() == {1: 2, 2: 2, 3: 2})
    cluster.event(2, "drain")
    cluster.until(lambda: cluster.leaders()[2] == 0)
    cluster.event(2, "undrain")
    cluster.until(lambda: cluster.leaders() == {1: 2, 2: 2, 3: 2})
    cluster.event(4, "add")
    cluster.event(4, "start")
    cluster.until(lambda: sum(4 in one.replicas for one in cluster.ranges()) == 4)
    cluster.event(1, "remove")
    cluster.until(lambda: cluster.records[1].state == "REMOVED")
    for one in cluster.ranges():
        assert set(one.replicas) == {2, 3, 4}
    cluster.until(lambda: max(cluster.leaders().values()) - min(cluster.leaders().values()) <= 1)
    # And then it is quiet.
    cluster.scheduler.advance(60_000)
    before = len(cluster.orders)
    cluster.scheduler.advance(600_000)
    assert len(cluster.orders) == before


def test_a_node_that_comes_and_goes_gets_no_leaders_until_it_stays():
    cluster = Cluster(NAMES)
    cluster.by_name = {
        name: replace(one, leader=1 + at % 2) for at, (name, one) in enumerate(cluster.by_name.items())
    }
    for _ in range(20):
        cluster.silent = {3}
        cluster.scheduler.advance(4_000)
        cluster.silent = set()
        cluster.scheduler.advance(4_000)
    assert not cluster.orders
    cluster.until(lambda: cluster.leaders() == {1: 2, 2: 2, 3: 2})


def test_a_learner_whose_node_is_lost_is_given_up():
    cluster = Cluster(["t"], nodes=3)
    cluster.event(4, "add")
    cluster.event(4, "start")
    cluster.event(3, "remove")
    cluster.until(lambda: cluster.by_name["t"].learners == (4,))
    cluster.silent = {4}
    cluster.until(lambda: not cluster.by_name["t"].learners)
    cluster.until(lambda: cluster.by_name["t"].replicas == (1, 2))
    cluster.silent = set()
    cluster.until(lambda: cluster.by_name["t"].replicas == (1, 2, 4))


def test_an_order_is_not_repeated_before_its_time_and_then_it_is():
    cluster = Cluster(["a", "b"])
    cluster._obey = lambda move: None
    cluster.scheduler.advance(5_500)
    assert len(cluster.orders) == 1
    cluster.scheduler.advance(1_000)
    assert len(cluster.orders) == 2
    assert cluster.orders[0] == cluster.orders[1]


def test_who_is_not_in_charge_orders_nothing():
    cluster = Cluster(NAMES)
    cluster.charge = False
    cluster.scheduler.advance(60_000)
    assert not cluster.orders
    cluster.charge = True
    cluster.scheduler.advance(1_500)
    assert cluster.orders
    cluster.driver.close()
    before = len(cluster.orders)
    cluster.scheduler.advance(60_000)
    assert len(cluster.orders) == before
