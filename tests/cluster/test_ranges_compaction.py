"""Compacted topics on ranges with groups of their own: every replica by itself, and what readers see of any of them.

SEALOG_COMPACTION_SEEDS: how many seeds of faults, 6 by default. Faults that are planted: `compaction_mutants.py`.
"""

from __future__ import annotations

import os

import pytest
from support.sim_node import SimNode
from support.sim_producer import create_topic, produce_fields

from broker.ranges.compaction import needed_from
from broker.ranges.records import directory
from tests.cluster.compaction_mutants import PLANTED, WITHIN
from tests.cluster.planted import must_be_found
from tests.cluster.sim_compaction import (
    SETTINGS,
    SMALL,
    KeyedWriter,
    is_mark,
    key_of,
    last_of,
    partitions_at,
    run,
    shown,
)
from tests.cluster.sim_ranges import SimRanges
from wire.apis import ApiKey
from wire.errors import ErrorCode
from wire.records import Record, build_batch

SEEDS = range(int(os.environ.get("SEALOG_COMPACTION_SEEDS", "6")))


def world(seed, **settings):
    """A topic of one partition, and who writes to it."""
    cluster = SimRanges(seed, **SMALL)
    settings = {**SETTINGS, **settings}
    assert cluster.create_topic("t", 1, **settings).error_code is ErrorCode.none
    return cluster, KeyedWriter(cluster, "t", 0)


def write(writer, count):
    wanted = len(writer.acked) + count
    while len(writer.acked) < wanted:
        writer.step()


def hosted_at(cluster):
    return {node: next(iter(member.hosting.hosted.values())) for node, member in cluster.members.items()}


def rewritten(cluster, node):
    """How many of its segments compaction has written."""
    return sum(one.header.generation > 0 for one in hosted_at(cluster)[node].replica.segments)


def expected(writer):
    last = {}
    for value, offset in sorted(writer.acked.items(), key=lambda one: one[1]):
        last[key_of(value)] = (offset, value)
    return {key: one for key, one in last.items() if not is_mark(one[1])}


def check(cluster, writer):
    cluster.run_until(lambda: all(one.topics.get("t") is not None for one in cluster.members.values()))
    cluster.whole()
    for node, partition in partitions_at(cluster, 0):
        cluster.run_until(lambda one=partition: one.high_watermark == len(writer.acked))
        assert last_of(shown(partition)) == expected(writer), f"node {node}"


def test_every_replica_keeps_the_last_value_of_each_key_and_lets_go_of_the_rest():
    cluster, writer = world(1)
    write(writer, 120)
    cluster.whole()
    cluster.advance(3000)
    epochs = [partition.epochs for _, partition in partitions_at(cluster, 0)]
    for node, partition in partitions_at(cluster, 0):
        assert rewritten(cluster, node) > 3
        replica = hosted_at(cluster)[node].replica
        assert len(shown(partition)) < 60
        assert partition.log_start_offset == 0
        assert replica.first_index > 1
        # The files that were replaced are gone.
        names = [n for n in cluster.disks[node].list(directory(16 + 1)) if n.endswith(".seg")]
        assert len(names) == len(replica.segments)
    check(cluster, writer)
    assert epochs.count(epochs[0]) == 3
    # By any node that leads, and after a start.
    for node in cluster.names:
        cluster.cut_power(node)
    cluster.heal()
    check(cluster, writer)
    assert [partition.epochs[: len(epochs[0])] for _, partition in partitions_at(cluster, 0)] == epochs
    write(writer, 5)
    check(cluster, writer)


def test_a_topic_that_is_not_compacted_is_left_alone():
    cluster, writer = world(2, cleanup_policy="delete")
    write(writer, 60)
    cluster.advance(3000)
    assert cluster.jobs == {True: 0, False: 0}
    assert len(shown(next(partitions_at(cluster, 0))[1])) == len(writer.acked)


def test_records_without_keys_are_refused():
    cluster, writer = world(3)
    write(writer, 1)
    answer = cluster.ask(
        cluster.leader("t", 0)[0],
        ApiKey.PRODUCE,
        9,
        transactional_id=None,
        acks=-1,
        timeout=1000,
        topic_data=(
            {"name": "t", "partition_data": ({"index": 0, "records": build_batch([Record(None, b"x")])},)},
        ),
    )
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.invalid_record


def test_a_node_that_was_away_gets_what_was_left_and_marks_of_deletion_do_not_come_back():
    cluster, writer = world(4)
    write(writer, 20)
    cluster.whole()
    away = next(node for node in cluster.names if node != cluster.leader("t", 0)[0])
    cluster.cut_power(away)
    write(writer, 150)
    # Marks are gone for good where they were seen.
    cluster.advance(10_000)
    others = [node for node in cluster.names if node != away]
    assert all(rewritten(cluster, node) > 3 for node in others)
    cluster.heal()
    check(cluster, writer)
    assert rewritten(cluster, away) > 3, "it got the files, not the entries"
    replica = hosted_at(cluster)[away].replica
    assert all(one.cleaned_ms is None for one in replica.names.values())
    cluster.advance(3000)
    assert all(one.cleaned_ms is not None for one in replica.names.values())
    check(cluster, writer)
    cluster.cut_power(away)
    cluster.heal()
    check(cluster, writer)


def test_a_leader_leaves_alone_what_a_follower_that_answers_has_not_got():
    cluster, writer = world(5)
    write(writer, 3)
    cluster.whole()
    leader = cluster.leader("t", 0)[0]
    hosted = hosted_at(cluster)[leader]
    group = hosted.range.group
    slow = next(node for node in cluster.names if node != leader)
    progress = group.raft.leadership.progress[slow]
    assert needed_from(hosted) == hosted.replica.last_index + 1
    had = progress.match
    real = type(progress).acknowledged

    def acknowledged(self, index, now_ms):
        return real(self, had if self is progress else index, now_ms)

    type(progress).acknowledged = acknowledged
    try:
        write(writer, 60)
        cluster.advance(2000)
        assert needed_from(hosted) == had + 1
        assert rewritten(cluster, leader) == 0
        assert rewritten(cluster, slow) > 1, "followers need not ask"
    finally:
        type(progress).acknowledged = real
    cluster.whole()
    write(writer, 3)
    cluster.advance(3000)
    assert rewritten(cluster, leader) > 1


def test_segments_that_are_being_fetched_are_left_alone():
    cluster, writer = world(6)
    write(writer, 60)
    cluster.whole()
    leader = cluster.leader("t", 0)[0]
    other = next(node for node in cluster.names if node != leader)
    member = cluster.members[leader]
    before = rewritten(cluster, leader)
    write(writer, 40)
    for _ in range(6):
        member.hosting.restores.heard(other, ["segments?", 17])
        cluster.advance(700)
    assert member.hosting.restores.is_served(17)
    assert rewritten(cluster, leader) == before
    cluster.advance(13_000)
    assert rewritten(cluster, leader) > before


def test_it_keeps_what_a_broker_on_its_own_keeps_of_the_same_input():
    """When all of it is sealed and compacted: the same records at the same offsets."""
    seal = {"segment_ms": 20_000, "delete_retention_ms": 10**9}
    cluster, writer = world(7, **seal)
    write(writer, 100)
    cluster.whole()
    cluster.advance(25_000)
    given = sorted(writer.acked, key=writer.acked.get)
    alone = SimNode(compaction_interval_ms=700, retention_check_interval_ms=1500)
    settings = {key.replace("_", "."): str(value) for key, value in {**SETTINGS, **seal}.items()}
    client = alone.client()
    create_topic(client, "t", 1, **settings)
    for value in given:
        record = Record(key_of(value), None if is_mark(value) else value, timestamp=alone.scheduler.now_ms())
        client.ask(ApiKey.PRODUCE, 9, **produce_fields("t", {0: build_batch([record])}))
    alone.scheduler.advance(25_000)
    place = alone.node.topics.get("t").partitions[0]
    kept = shown(place)
    assert len(kept) < 20
    for _, partition in partitions_at(cluster, 0):
        # Of a segment's last batch the offset stays, and where segments end is not the same.
        assert shown(partition) == kept


@pytest.mark.parametrize("seed", SEEDS)
def test_the_last_values_stay_under_faults(seed):
    assert run(seed).records


def test_most_runs_are_about_compaction():
    """Now and then two nodes of three are away for nearly all of one."""
    counts = [run(seed) for seed in (0, 1, 2)]
    assert sum(one.rewritten for one in counts) > 30
    assert sum(one.gone for one in counts) > 300
    assert sum(one.restores for one in counts) > 3


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.mutant.__name__)
def test_a_planted_fault_is_found(planted):
    must_be_found(run, planted.mutant, planted.first_seed, WITHIN)
