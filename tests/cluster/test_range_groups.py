"""Groups whose logs are ranges: simulated lives of three and five nodes, and replicas that are wrong on purpose.

`SEALOG_RANGE_SEEDS=2000` lives through more of them.
"""

from __future__ import annotations

import os

import pytest

from raftish.core import NotLeader
from tests.cluster.range_mutants import MUTANTS, WITHIN, found_in, run
from tests.cluster.range_retention_world import RetentionWorld
from tests.cluster.range_world import World
from tests.raftish.checker import Violation
from wire.errors import ErrorCode, KafkaError

SEEDS = int(os.environ.get("SEALOG_RANGE_SEEDS", "80"))


def test_nothing_acknowledged_is_lost_and_all_replicas_are_one() -> None:
    counts: dict[str, int] = {}
    acknowledged = segments = 0
    for seed in range(SEEDS):
        world = World(seed, voters=5 if seed % 5 == 4 else 3)
        try:
            world.live_through(700)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for name, count in world.counts.items():
            counts[name] = counts.get(name, 0) + count
        acknowledged += sum(len(client.acknowledged) for client in world.clients)
        segments += len(world.nodes[1].replica.segments)
    print(counts, acknowledged, segments)
    assert acknowledged > 30 * SEEDS
    assert segments > 3 * SEEDS
    assert counts["recoveries"] > 7 * SEEDS, "each node once at the begin and at the end, and some more"
    assert counts["truncations"] > SEEDS // 4
    assert counts["rolls undone"] > SEEDS // 40


def test_replicas_that_drop_their_begin_and_were_away_are_one_with_the_others() -> None:
    counts: dict[str, int] = {}
    acknowledged = 0
    for seed in range(SEEDS):
        world = RetentionWorld(seed, voters=5 if seed % 5 == 4 else 3)
        try:
            world.live_through(900)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for name, count in world.counts.items():
            counts[name] = counts.get(name, 0) + count
        acknowledged += sum(len(client.acknowledged) for client in world.clients)
    print(counts, acknowledged)
    assert acknowledged > 30 * SEEDS
    assert counts["dropped"] > 2 * SEEDS
    assert counts["restores"] > SEEDS // 6
    assert counts["begun"] > counts["restores"], "some were cut short"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_replica_that_is_wrong_is_found(mutant) -> None:
    found = found_in(mutant, range(mutant.first_seed, mutant.first_seed + WITHIN))
    assert found is not None, f"{mutant.name}: not found in {WITHIN} seeds from {mutant.first_seed} on"


def test_the_same_seeds_are_whole_without_a_mutant() -> None:
    for mutant in MUTANTS:
        if mutant.on_a_disk:
            run(mutant.first_seed, on_a_disk=True)


def quiet(voters=3, **more):
    world = World(3, voters, **more)
    world.scheduler.run_until(lambda: len(world.leaders()) == 1, max_ms=5000)
    world.scheduler.advance(100)
    return world


def test_a_commit_is_one_append_and_one_flush_on_each_node() -> None:
    world = quiet()
    leader = world.leaders()[0]
    path = leader.replica.active.path
    flushes = {node.name: node.disk.flushes[path] for node in world.nodes.values()}
    client = world.clients[3]
    world.faulty = True
    for partition in range(3):
        client.open[partition] = client._batch(partition)
        client._send(leader, partition)
    world.scheduler.run_until(lambda: client.is_idle, max_ms=1000)
    world.scheduler.advance(20)
    assert len(client.acknowledged) == 3
    for node in world.nodes.values():
        assert node.disk.flushes[path] == flushes[node.name] + 1


def test_a_follower_can_be_read_and_not_written() -> None:
    world = quiet()
    leader = world.leaders()[0]
    client = world.clients[3]
    world.faulty = True
    client.open[0] = client._batch(0)
    header, data, _ = client.open[0]
    client._send(leader, 0)
    world.scheduler.run_until(lambda: client.is_idle, max_ms=1000)
    world.scheduler.advance(60)
    for node in world.nodes.values():
        assert len(world.read(node, 0, whole=True)) == 1
        if node is leader:
            continue
        with pytest.raises(KafkaError) as refused:
            node.replica.append(0, header, data)
        assert refused.value.code is ErrorCode.not_leader_or_follower
        with pytest.raises(NotLeader):
            node.range.group.propose([b""], lambda error: None)


def test_who_waits_at_a_leader_that_is_cut_off_hears_of_it() -> None:
    world = quiet()
    leader = world.leaders()[0]
    others = [node for node in world.nodes.values() if node is not leader]
    for node in others:
        world.blocked |= {(leader.name, node.name), (node.name, leader.name)}
    header, data, _ = world.clients[3]._batch(0)
    told = []
    appended = leader.replica.append(0, header, data)
    leader.replica.when_durable(appended.lsn, told.append)
    world.scheduler.run_until(lambda: told, max_ms=1000)
    assert told[0].code is ErrorCode.not_leader_or_follower
    assert leader.replica.partition(0).end_offset == 1
    world.scheduler.run_until(lambda: any(node.replica.leads for node in others), max_ms=2000)
    world.blocked.clear()
    world.scheduler.run_until(lambda: leader.replica.partition(0).end_offset == 0, max_ms=2000)
    assert leader.replica.partition(0).epochs == []


def test_the_checker_sees_a_log_that_never_was() -> None:
    world = quiet()
    node = world.nodes[1]
    world.power_cut(node, "all")
    assert len(node.device.entries) >= 1
    node.device.entries = node.device.entries + node.device.entries[-1:]
    with pytest.raises(Violation, match="has lost entries"):
        world.start(node)
