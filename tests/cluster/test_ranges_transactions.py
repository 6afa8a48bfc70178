"""Transactions over ranges whose leaders are on several nodes, in virtual time.

SEALOG_RANGES_TXN_SEEDS: how many seeds of faults, 6 by default.
"""

from __future__ import annotations

import os

import pytest

from tests.cluster.sim_ranges import SimRanges
from tests.cluster.sim_transactors import Transactor, check, read_committed
from txn import keys

SEEDS = range(int(os.environ.get("SEALOG_RANGES_TXN_SEEDS", "6")))
PARTITIONS = [0, 1, 2, 3, 4, 5]


def all_seen(cluster, topic="t", partitions=PARTITIONS):
    """What a reader at each node gets, which must be the same and reach the end; per partition."""
    cluster.controller()
    cluster.whole()
    seen = {}

    def reached(node, partition):
        found = read_committed(cluster, node, topic, partition)
        if found is None:
            return False
        values, stable, high_watermark = found
        if stable != high_watermark:
            return False
        assert seen.setdefault(partition, values) == values, f"node {node} shows something else"
        return True

    for partition in partitions:
        left = {cluster.leader(topic, partition)[0]}
        while any(not reached(node, partition) for node in left):
            cluster.advance(50)
            left = {cluster.leader(topic, partition)[0]}
    return seen


def headers(cluster):
    view = cluster.controller().metadata.view
    return [key for key, _ in view.scan(keys.TXNS)]


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_transaction_over_three_leaders_commits_and_aborts(protocol):
    cluster = SimRanges(20)
    cluster.create_topic("t", 6)
    transactor = Transactor(cluster, "x", "t", PARTITIONS, protocol)
    for commit in (True, False, True, True, False):
        transactor.run(commit)
    assert (len(transactor.committed), transactor.ends) == (3, {})
    check([transactor], all_seen(cluster))
    # Settled: nothing of them is left but what is aborted.
    cluster.run_until(lambda: not headers(cluster))
    check([transactor], all_seen(cluster))


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_are_atomic_under_faults(seed):
    cluster = SimRanges(seed)
    rng = cluster.rng
    cluster.create_topic("t", 6)
    transactors = [
        Transactor(cluster, f"x{n}", "t", PARTITIONS, 1 + n % 2, rng.choice((2000, 60_000)), 0.1)
        for n in range(4)
    ]

    def fault():
        what = rng.random()
        if what < 0.4 and len(cluster.members) == 3:
            cluster.cut_power(rng.choice(cluster.names))
        elif what < 0.6:
            cluster.isolate(rng.choice(cluster.names))
        elif what < 0.7:
            cluster.loss = 0.1
        else:
            cluster.heal()

    def soon():
        """Faults come at whatever moment, not between two transactions."""
        if faults_go_on:
            fault()
            cluster.scheduler.call_later(int(10 ** rng.uniform(1, pace)), soon)

    faults_go_on = True
    pace = rng.uniform(2.5, 3.7)
    cluster.scheduler.call_later(200, soon)
    under_way = {transactor: transactor.steps() for transactor in transactors}
    done = 0
    while done < 40:
        transactor = rng.choice(transactors)
        if next(under_way[transactor], "over") == "over":
            under_way[transactor] = transactor.steps()
            done += 1
    faults_go_on = False
    cluster.heal()
    for steps in under_way.values():
        for _ in steps:
            pass
    for transactor in transactors:
        transactor.run(True)
    seen = all_seen(cluster)
    check(transactors, seen)
    cluster.run_until(lambda: not headers(cluster))
    for node in cluster.names:
        cluster.cut_power(node)
    cluster.heal()
    assert all_seen(cluster) == seen
    print(seed, [(len(t.committed), len(t.aborted), len(t.unknown), t.ends) for t in transactors])
