"""Clusters of real processes under faults: nothing acknowledged is lost, and service comes back each time.

SEALOG_CLUSTER_FAULTS: how many faults brokers get, 100 by default. SEALOG_CLUSTER_SEED: repeats a plan.
"""

from __future__ import annotations

import os
import random

from tests.cluster.broker_run import run_brokers
from tests.cluster.campaign import Campaign, Limits
from tests.cluster.faults import KINDS, Fault, Trouble, troubles
from tests.cluster.line_load import LineLoad
from tests.cluster.machines import RaftishCluster
from tests.cluster.times import ServiceTimes
from tests.crash.isolated import isolated
from tests.history.violations import LOST_PLAIN

FAULTS = int(os.environ.get("SEALOG_CLUSTER_FAULTS", "100"))
FAULTS_AT_A_TIME = 25
NODES = (1, 2, 3)


def chosen_seed():
    return int(os.environ.get("SEALOG_CLUSTER_SEED", "0")) or random.randrange(1, 1 << 31)


def test_a_plan_has_every_kind_and_is_repeated_by_its_seed():
    plan = list(troubles(4, 2 * len(KINDS), NODES))
    assert plan == list(troubles(4, 2 * len(KINDS), NODES))
    assert plan != list(troubles(5, 2 * len(KINDS), NODES))
    firsts = [trouble.faults[0].kind for trouble in plan]
    assert sorted(firsts[: len(KINDS)]) == sorted(firsts[len(KINDS) :]) == sorted(KINDS)
    for trouble in plan:
        for fault in trouble.faults:
            assert all(fault.node in way for way in fault.ways(NODES))
            assert (fault.other is not None) == (fault.kind in ("part", "one way"))


def test_logs_lose_nothing_under_every_kind_of_fault(tmp_path):
    with RaftishCluster(tmp_path) as cluster:
        load = LineLoad(cluster, 1)
        campaign = Campaign(cluster, load, seed=chosen_seed(), faults=len(KINDS))
        violations = campaign.run()
    assert not violations, "\n".join(map(str, violations[:10]))
    assert sum(map(len, campaign.times.after.values())) == len(KINDS)


def test_a_log_that_acknowledges_too_early_is_found_out(tmp_path):
    """Cut off each node in turn: whoever leads goes on telling its writers that all is well."""
    plan = [Trouble((Fault("isolate", node),), 1.5, False) for node in NODES]
    with RaftishCluster(tmp_path, groups=1, hasty=True) as cluster:
        load = LineLoad(cluster, 1)
        campaign = Campaign(cluster, load, seed=1, faults=3, plan=plan, limits=Limits(back_s=30))
        kinds = {violation.kind for violation in campaign.run()}
    assert LOST_PLAIN in kinds


def test_brokers_lose_nothing_and_come_back_after_every_fault(tmp_path):
    seed, times = chosen_seed(), ServiceTimes()
    # In parts: what a client library's own assertion takes with it is one part, which is run once more.
    for part, begin in enumerate(range(0, FAULTS, FAULTS_AT_A_TIME)):
        count = min(FAULTS_AT_A_TIME, FAULTS - begin)
        times.add(isolated(shake_brokers, tmp_path / f"part-{part}", seed + part, count))
    print(times.table())


def shake_brokers(folder, seed, count):
    violations, times = run_brokers(folder, 3, seed, count)
    assert not violations, "\n".join(map(str, violations[:30]))
    return times
