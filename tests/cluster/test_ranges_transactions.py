"""Transactions over ranges whose leaders are on several nodes, in virtual time.

SEALOG_RANGES_TXN_SEEDS: how many seeds of faults, 24 by default.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.cluster.sim_ranges import SimRanges
from tests.cluster.sim_transactors import (
    ABORT_AFTER,
    PARTITIONS,
    GivenUp,
    Transactor,
    all_seen,
    check,
    headers,
    live_through_faults,
)
from tests.cluster.txn_mutants import MUTANTS, commits_over_a_change_of_leaders
from wire import group_transactions as messages
from wire.errors import ErrorCode

SEEDS = int(os.environ.get("SEALOG_RANGES_TXN_SEEDS", "24"))
CHUNK = 6


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


def over_a_change_of_leaders(protocol):
    """A leader is cut off from the others and goes on for a moment: what it takes then is lost. How the commit ends."""
    cluster = SimRanges(21)
    cluster.create_topic("t", 6)
    transactor = Transactor(cluster, "x", "t", PARTITIONS, protocol)
    transactor.run(True)
    controller = cluster.controller().node_id
    place = next(p for p in PARTITIONS if cluster.leader("t", p)[0] != controller)
    leader = cluster.leader("t", place)[0]
    if protocol == 1:
        list(transactor.add(PARTITIONS))
    wrote = {p: [f"lost-{p}".encode()] for p in PARTITIONS}
    for partition, values in wrote.items():
        list(transactor.write(partition, values))
    cluster.isolate(leader)
    # Clients reach it still, and know no other leader.
    answered = transactor.produce(place, [b"lost"], node=leader)
    assert answered is ErrorCode.none
    wrote[place].append(b"lost")
    cluster.run_until(lambda: cluster.leader("t", place, asking=controller)[0] not in (leader, -1))
    cluster.heal()
    cluster.whole()
    transactor.aborted.append(wrote)
    code = ErrorCode.none
    try:
        list(transactor.end(True))
    except GivenUp as error:
        code = error.args[0]
    if code in ABORT_AFTER:
        list(transactor.end(False))
        transactor.run(True)
    check([transactor], all_seen(cluster))
    assert len(transactor.committed) == 2
    return code


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_change_of_a_ranges_leader_aborts_and_the_producer_goes_on(protocol):
    assert over_a_change_of_leaders(protocol) in ABORT_AFTER
    with commits_over_a_change_of_leaders(), pytest.raises(AssertionError):
        over_a_change_of_leaders(protocol)


@pytest.mark.parametrize("away", ["nobody", "the controller", "all"])
def test_a_group_of_transactions_ends_as_one_whoever_coordinates(away):
    """Two vote and win, a third votes for an attempt that is superseded, a fourth has not voted."""
    cluster = SimRanges(22)
    cluster.create_topic("t", 6)
    names = ("old", "one", "two", "late")
    old, one, two, late = (
        Transactor(cluster, name, "t", PARTITIONS, 1 + n % 2) for n, name in enumerate(names)
    )
    wrote = {name: {p: [f"{name}-{p}".encode()] for p in PARTITIONS} for name in names}
    old.vote("s", 1, "a", wrote["old"])
    winners = [each.vote("s", 1, "b", wrote[each.name]) for each in (one, two)]
    list(late.begin())
    for partition, values in wrote["late"].items():
        if late.protocol == 1:
            list(late.add([partition]))
        list(late.write(partition, values))
    if away == "the controller":
        cluster.cut_power(cluster.controller().node_id)
    elif away == "all":
        for node in cluster.names:
            cluster.cut_power(node)
        cluster.heal()
        cluster.controller()
    commit = messages.Commit(sink="s", batch=1, attempt="b", members=tuple(winners))
    done = one.ask_group(commit)
    assert (done.error, done.members) == (0, 2)
    assert one.ask_group(commit).repeated
    cluster.heal()
    list(late.leave(ErrorCode.producer_fenced))
    one.committed.append(wrote["one"])
    two.committed.append(wrote["two"])
    old.aborted.append(wrote["old"])
    late.aborted.append(wrote["late"])
    check([old, one, two, late], all_seen(cluster))
    cluster.run_until(lambda: not headers(cluster))
    for each in (old, one, two, late):
        each.run(True)
    check([old, one, two, late], all_seen(cluster))


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_transactions_are_whole_under_faults(first):
    counts = Counter()
    for seed in range(first, min(first + CHUNK, SEEDS)):
        try:
            counts.update(live_through_faults(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert counts["committed"] > CHUNK
    assert counts["aborted"] > CHUNK


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_broker_is_found(mutant):
    first, seeds = MUTANTS[mutant]
    with mutant():
        for seed in range(first, first + seeds):
            try:
                live_through_faults(seed)
            except Exception as found:  # noqa: BLE001 - what a wrong broker runs into
                print(f"seed {seed}: {type(found).__name__} {str(found)[:200]}")
                return
    pytest.fail(f"{seeds} seeds did not find it")
