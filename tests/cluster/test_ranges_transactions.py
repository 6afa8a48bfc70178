"""Transactions over ranges whose leaders are on several nodes, in virtual time.

SEALOG_RANGES_TXN_SEEDS: how many seeds of faults, 24 by default.
"""

from __future__ import annotations

import os
from collections import Counter

import msgpack
import pytest

from broker.replication.metadata_group import METADATA_GROUP
from raftish.messages import AppendRequest, Note
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
    headers,
    live_through_faults,
)
from tests.cluster.txn_mutants import (
    MUTANTS,
    a_new_coordinator_aborts_what_is_preparing,
    a_new_coordinator_commits_what_is_preparing,
    an_untraced_transaction_is_not_missed,
    commits_over_a_change_of_leaders,
    gives_up_where_the_store_takes_nothing_now,
    says_once_where_it_wrote,
    stands_before_it_is_committed,
)
from txn import keys
from wire import group_transactions as messages
from wire.apis import ApiKey
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


def lost_while_it_is_prepared(*, coordinator_too):
    """What a transaction wrote to one range reaches no other node; its record is durable when that leader dies. Whether
    the producer heard of success."""
    cluster = SimRanges(23)
    cluster.create_topic("t", 6)
    transactor = Transactor(cluster, "x", "t", PARTITIONS, 2)
    transactor.run(True)
    controller = cluster.controller().node_id
    place = next(p for p in PARTITIONS if cluster.leader("t", p)[0] != controller)
    leader = cluster.leader("t", place)[0]
    group = cluster.members[leader].topics.get("t").group_of(place)
    cluster.lost = lambda node, number, message: (
        (node, number) == (leader, group) and isinstance(message, AppendRequest)
    )
    wrote = {p: [f"half-{p}".encode()] for p in PARTITIONS}
    for partition, values in wrote.items():
        list(transactor.write(partition, values))
    client = cluster.client(controller)
    number = client.send(
        ApiKey.END_TXN,
        5,
        transactional_id="x",
        producer_id=transactor.producer_id,
        producer_epoch=transactor.epoch,
        committed=True,
    )
    cluster.run_until(
        lambda: any(
            record.value["state"] == "PREPARING"
            for node in cluster.names
            if node not in (controller, leader)
            for _, record in cluster.members[node].metadata.view.scan(keys.TXNS)
        )
    )
    cluster.cut_power(leader)
    if coordinator_too:
        cluster.cut_power(controller)
        cluster.start(controller)
    cluster.lost = nothing_is_lost
    cluster.controller()
    cluster.advance(3000)
    cluster.heal()
    answer = client.answers.get(number)
    committed = answer is not None and answer.error_code is ErrorCode.none
    (transactor.committed if committed else transactor.aborted).append(wrote)
    check([transactor], all_seen(cluster))
    return committed


@pytest.mark.parametrize("coordinator_too", [False, True])
def test_what_a_range_lost_is_never_committed(coordinator_too):
    assert not lost_while_it_is_prepared(coordinator_too=coordinator_too)
    mutant = a_new_coordinator_commits_what_is_preparing if coordinator_too else stands_before_it_is_committed
    with mutant(), pytest.raises((AssertionError, ValueError)):
        lost_while_it_is_prepared(coordinator_too=coordinator_too)


def while_the_metadata_are_handed_over():
    """The coordinator, asked for a commit, is to hand over to a node that is not there before it can record that."""
    cluster = SimRanges(25)
    cluster.create_topic("t", 6)
    transactor = Transactor(cluster, "x", "t", PARTITIONS, 1)
    transactor.run(True)
    controller = cluster.controller()
    away = next(node for node in cluster.names if node != controller.node_id)
    cluster.cut_power(away)
    cluster.run_until(lambda: all(cluster.leader("t", p)[0] in cluster.members for p in PARTITIONS))
    wrote = {p: [f"late-{p}".encode()] for p in PARTITIONS}
    list(transactor.add(PARTITIONS))
    for partition, values in wrote.items():
        list(transactor.write(partition, values))

    def at_the_end():
        """When the request is there, and its ranges are asked."""
        cluster.scheduler.call_later(1.1, controller.leaderships.hand_over, METADATA_GROUP, away)
        transactor.at_the_end = lambda: None

    transactor.at_the_end = at_the_end
    list(transactor.end(True))
    transactor.committed.append(wrote)
    cluster.heal()
    transactor.run(True)
    for node in cluster.names:
        cluster.cut_power(node)
    cluster.heal()
    check([transactor], all_seen(cluster))


def test_an_end_that_cannot_be_recorded_at_once_waits_for_it():
    while_the_metadata_are_handed_over()
    with gives_up_where_the_store_takes_nothing_now(), pytest.raises(ValueError):
        while_the_metadata_are_handed_over()


def with_answers_of_participants_lost():
    """The coordinator hears each leader's first two answers to no question of an end."""
    cluster = SimRanges(25)
    cluster.create_topic("t", 6)
    transactor = Transactor(cluster, "x", "t", PARTITIONS, 2)
    transactor.run(True)
    wrote = {partition: [b"%d" % partition] for partition in PARTITIONS}
    for partition, values in wrote.items():
        list(transactor.write(partition, values))
    controller, lost = cluster.controller().node_id, Counter()

    def is_lost(node, number, message):
        if node == controller or not isinstance(message, Note):
            return False
        kind, *rest = msgpack.unpackb(message.payload, strict_map_key=False)
        is_answer = kind == "transactions" and rest[0][0] == "told"
        lost[node] += is_answer
        return is_answer and lost[node] <= 2

    cluster.lost = is_lost
    list(transactor.end(True))
    assert min(lost.values()) > 2
    view = cluster.members[controller].metadata.view
    ops = [record.value for _, record in view.scan(keys.TXN_OPS)]
    # What is not in the record is not waited for, so a leader's end may take it.
    assert {index for op in ops for index, _, _ in op["writes"]} == set(PARTITIONS)
    transactor.committed.append(wrote)
    check([transactor], all_seen(cluster))


def test_a_leader_says_again_where_a_transaction_wrote():
    with_answers_of_participants_lost()
    with says_once_where_it_wrote(), pytest.raises(AssertionError, match="Extra items"):
        with_answers_of_participants_lost()


def over_a_change_of_coordinators():
    """Transactions v2 that leave no trace when they begin: the first part is written under one coordinator, the second
    under another. Whether that is committed."""
    cluster = SimRanges(24)
    cluster.create_topic("t", 6)
    transactor = Transactor(cluster, "x", "t", PARTITIONS, 2)
    transactor.run(True)
    transactor.run(True)
    controller = cluster.controller().node_id
    led = {p: cluster.leader("t", p)[0] for p in PARTITIONS}
    first, second = [p for p in PARTITIONS if led[p] != controller][:2]
    cluster.lost = lambda node, number, message: (
        (node, number) == (controller, METADATA_GROUP) and isinstance(message, AppendRequest)
    )
    list(transactor.write(first, [b"first"]))
    cluster.cut_power(controller)
    cluster.lost = nothing_is_lost
    assert cluster.controller().node_id != controller
    wrote = {first: [b"first"], second: [b"second"]}
    try:
        list(transactor.write(second, [b"second"]))
        list(transactor.end(True))
    except GivenUp as error:
        list(transactor.leave(error.args[0]))
        transactor.aborted.append(wrote)
        committed = False
    else:
        transactor.committed.append(wrote)
        committed = True
    cluster.heal()
    transactor.run(True)
    check([transactor], all_seen(cluster))
    return committed


def test_an_untraced_transaction_does_not_go_on_under_another_coordinator():
    assert not over_a_change_of_coordinators()
    with an_untraced_transaction_is_not_missed(), pytest.raises(ValueError):
        over_a_change_of_coordinators()


def end_a_group(away):
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


@pytest.mark.parametrize("away", ["nobody", "the controller", "all"])
def test_a_group_of_transactions_ends_as_one_whoever_coordinates(away):
    end_a_group(away)


def test_what_is_preparing_is_not_aborted_by_a_new_coordinator():
    with a_new_coordinator_aborts_what_is_preparing(), pytest.raises(AssertionError):
        end_a_group("the controller")


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
    must_be_found(live_through_faults, mutant, *MUTANTS[mutant])
