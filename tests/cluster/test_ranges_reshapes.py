"""Ranges with groups of their own are split and merged, in virtual time: under load, over faults.

SEALOG_RESHAPE_SEEDS: how many seeds of faults, 12 by default.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from support.sim_node import batch

from tests.cluster import sim_moves
from tests.cluster.planted import must_be_found
from tests.cluster.reshape_mutants import MUTANTS
from tests.cluster.sim_ranges import Operator, SimRanges, Writer
from tests.cluster.sim_reshapes import Reshaper, check_epochs, layout, spans
from tests.cluster.sim_transactors import PARTITIONS, Transactor, all_seen, live_through_faults
from tests.cluster.sim_transactors import check as check_transactions
from tests.cluster.test_ranges_retention import live_with_retention
from wire.apis import ApiKey
from wire.errors import ErrorCode

SEEDS = int(os.environ.get("SEALOG_RESHAPE_SEEDS", "12"))
CHUNK = 6


def written(cluster, writers, count):
    for writer in writers:
        goal = len(writer.acked) + count
        while len(writer.acked) < goal:
            writer.step()


def settled(cluster, count):
    """Only so many ranges are on record, and all is at rest."""
    cluster.run_until(lambda: all(len(one.topics.ranges) == count for one in cluster.members.values()))


def check(cluster, writers):
    """All that was acknowledged is there, at its offset, once."""
    cluster.controller()
    cluster.whole()
    for writer in writers:
        leader = cluster.leader("t", writer.partition)[0]
        values = cluster.read(leader, "t", writer.partition)[1]
        assert {value: values.index(value) for value in writer.acked} == writer.acked
        assert len(values) == len(set(values))


def test_a_range_splits_and_its_partitions_go_on():
    cluster = SimRanges(31)
    cluster.create_topic("t", 6)
    writers = [Writer(cluster, "t", n) for n in range(6)]
    written(cluster, writers, 3)
    assert spans(cluster, "t") == [(0, 1), (2, 3), (4, 5)]
    answer = layout(cluster, "split", "t", at=(1, 5))
    assert (answer.error, answer.changed) == (0, True), answer
    assert answer.ranges == ((0, 0), (1, 1), (2, 3), (4, 4), (5, 5))
    written(cluster, writers, 3)
    check(cluster, writers)
    answer = layout(cluster, "split", "t", at=(1, 5))
    assert (answer.error, answer.changed) == (0, False), answer


def test_ranges_merge_and_split_again_and_again():
    cluster = SimRanges(32)
    cluster.create_topic("t", 6)
    writers = [Writer(cluster, "t", n) for n in range(6)]
    written(cluster, writers, 2)
    for _ in range(3):
        answer = layout(cluster, "merge", "t", first=0, last=5)
        assert (answer.error, answer.changed) == (0, True), answer
        assert answer.ranges == ((0, 5),)
        written(cluster, writers, 2)
        answer = layout(cluster, "split", "t", at=(2, 3))
        assert (answer.error, answer.changed) == (0, True), answer
        assert answer.ranges == ((0, 1), (2, 2), (3, 5))
        written(cluster, writers, 2)
    settled(cluster, 3)
    check(cluster, writers)
    for node in cluster.names:
        cluster.cut_power(node)
    cluster.heal()
    check(cluster, writers)
    written(cluster, writers, 2)
    assert layout(cluster, "show", "t").ranges == ((0, 1), (2, 2), (3, 5))


def test_a_write_that_waits_for_the_coordinators_word_goes_on_in_the_successor():
    """The range ends while its leader asks: the coordinator lets nobody write to it any more, and says so."""
    cluster = SimRanges(35)
    cluster.create_topic("t", 3)
    transactor = Transactor(cluster, "x", "t", [0, 1, 2], 2)
    transactor.run(True)
    served = cluster.controller().transactions.asking._served
    admit, heard = served["admit"], []
    served["admit"] = lambda words, answer: heard.append(answer(None))
    node = cluster.leader("t", 0)[0]
    client = cluster.client(node)
    number = client.send(
        ApiKey.PRODUCE,
        12,
        transactional_id="x",
        acks=-1,
        timeout=1000,
        topic_data=({"name": "t", "partition_data": ({"index": 0, "records": first_batch(transactor)},)},),
    )
    cluster.run_until(lambda: heard)
    assert layout(cluster, "merge", "t", first=0, last=2).changed
    settled(cluster, 1)
    assert number not in client.answers
    served["admit"] = admit
    cluster.run_until(lambda: number in client.answers, max_ms=3000)
    code = client.answers[number].responses[0].partition_responses[0].error_code
    leads = cluster.leader("t", 0)[0] == node
    assert code is (ErrorCode.none if leads else ErrorCode.not_leader_or_follower)


def first_batch(transactor):
    return batch(
        b"value", producer_id=transactor.producer_id, epoch=transactor.epoch, sequence=0, transactional=True
    )


def reshape_through_faults(seed):
    """How each transaction ended, and how many changes of ranges were seen done."""
    reshapers = []

    def beside(cluster):
        reshapers.append(Reshaper(cluster, "t", len(PARTITIONS), cluster.rng.choice((100, 500, 2000))))
        return reshapers[0].end

    counts = live_through_faults(seed, beside=beside)
    check_epochs(reshapers[0].cluster, "t")
    return counts | {"changes": reshapers[0].done}


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_transactions_pass_through_changes_of_ranges_under_faults(first):
    counts = Counter()
    for seed in range(first, min(first + CHUNK, SEEDS)):
        try:
            counts.update(reshape_through_faults(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert counts["committed"] > CHUNK
    assert counts["changes"] > CHUNK


def test_a_node_that_comes_later_gets_what_came_before():
    """It has no replica of the parents; then they are gone, and so are two of the first nodes' replicas."""
    cluster = SimRanges(33)
    cluster.create_topic("t", 3)
    writers = [Writer(cluster, "t", n) for n in range(3)]
    written(cluster, writers, 20)
    assert layout(cluster, "merge", "t", first=0, last=2).changed
    written(cluster, writers, 3)
    assert layout(cluster, "split", "t", at=(1,)).changed
    written(cluster, writers, 3)
    operator = Operator(cluster)
    for node, goes in ((3, 0), (4, 1)):
        cluster.come(node, (0, 1, 2))
        operator.wants("add", node)
        operator.finish()
        operator.wants("remove", goes)
        operator.finish()
        written(cluster, writers, 2)
    settled(cluster, 2)
    check(cluster, writers)
    for node in (3, 4):
        member = cluster.members[node]
        replicas = [one.replica for one in member.hosting.hosted.values()]
        assert replicas
        assert all(replica.ancestry.segments for replica in replicas)
    for node in tuple(cluster.members):
        cluster.cut_power(node)
    cluster.heal()
    check(cluster, writers)


def test_members_that_are_away_for_good_do_not_keep_a_change_from_its_end():
    """One is cut from power while ranges are merged; it is removed, and others take its place."""
    cluster = SimRanges(34)
    cluster.create_topic("t", 3)
    writers = [Writer(cluster, "t", n) for n in range(3)]
    written(cluster, writers, 5)
    away = next(node for node in cluster.names if cluster.members[node].node.controller is None)
    cluster.cut_power(away)
    assert layout(cluster, "merge", "t", first=0, last=2).changed
    written(cluster, writers, 2)
    cluster.advance(2000)
    assert any(record.retired for record in cluster.controller().topics.ranges.values())
    operator = Operator(cluster)
    others = [node for node in cluster.names if node != away]
    cluster.come(3, others)
    operator.wants("add", 3)
    operator.finish()
    operator.wants("remove", away)
    operator.finish()
    settled(cluster, 1)
    check(cluster, writers)
    written(cluster, writers, 2)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_replicas_move_beside_changes_of_ranges_under_faults(first):
    changes = 0
    for seed in range(first, min(first + CHUNK, SEEDS)):
        reshapers = []

        def beside(cluster, reshapers=reshapers):
            reshapers.append(Reshaper(cluster, "t", 4, cluster.rng.choice((300, 1000, 3000))))
            return reshapers[0].end

        try:
            sim_moves.run(seed, beside)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        changes += reshapers[0].done
    assert changes > CHUNK


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_is_deleted_goes_beside_changes_of_ranges_under_faults(first):
    changes = moved = 0
    for seed in range(first, min(first + CHUNK, SEEDS)):
        reshapers = []

        def beside(cluster, reshapers=reshapers):
            reshapers.append(Reshaper(cluster, "t", 3, cluster.rng.choice((100, 300, 1000))))
            return reshapers[0].end

        try:
            cluster = live_with_retention(seed, beside)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        changes += reshapers[0].done
        moved += sum(one.log_start_offset for one in cluster.members[0].topics.get("t").partitions)
    assert changes > CHUNK // 2
    assert moved > CHUNK


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_broker_is_found(mutant):
    must_be_found(reshape_through_faults, mutant, *MUTANTS[mutant])


def test_a_close_that_comes_again_ends_no_write_of_the_next_transaction():
    """Under the first protocol both have one epoch; the question of before may be on its way still."""
    cluster = SimRanges(36)
    cluster.create_topic("t", 1)
    transactor = Transactor(cluster, "x", "t", [0], 1)
    node = cluster.leader("t", 0)[0]
    admissions = cluster.members[node].transactions.admissions
    closes = []
    close = admissions._close
    admissions._asking._served["close"] = lambda words, answer: (closes.append(words), close(words, answer))
    transactor.run(True)
    assert closes
    served = cluster.controller().transactions.asking._served
    admit = served["admit"]

    def late(words, answer):
        close(closes[-1], lambda _: None)
        admit(words, answer)

    list(transactor.add([0]))
    wrote = {0: [b"next"]}
    served["admit"] = late
    list(transactor.write(0, wrote[0]))
    list(transactor.end(True))
    transactor.committed.append(wrote)
    check_transactions([transactor], all_seen(cluster, partitions=[0]))
    assert not transactor.ends
