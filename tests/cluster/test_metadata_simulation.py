"""Hundreds of runs of a metadata group over bad links, disks and processes. More: SEALOG_METADATA_SEEDS=5000."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.cluster.metadata_mutants import MUTANTS
from tests.cluster.metadata_world import World
from tests.support.coverage import untraced

CHUNK = 20
FAULTS_MS = 700


def chunks(first, seeds):
    return range(first, first + int(os.environ.get("SEALOG_METADATA_SEEDS", seeds)), CHUNK)


@untraced()
def live_through_faults(seed, voters):
    world = World(seed, voters)
    world.live_through(FAULTS_MS)
    return world.checker.counts


def run_chunk(first, voters):
    counts = Counter()
    for seed in range(first, first + CHUNK):
        try:
            counts.update(live_through_faults(seed, voters))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    # Runs in which nothing happens would find nothing.
    for what, least in (("durable", 20), ("unknown", 3), ("taken back", 3), ("reads", 2), ("events", 50)):
        assert counts[what] >= least * CHUNK, (what, counts)
    for what in ("restores", "snapshots"):
        assert counts[what] > CHUNK // 10, (what, counts)


@pytest.mark.parametrize("first", chunks(0, 200))
def test_three_nodes_and_a_spare_live_through_faults(first):
    run_chunk(first, 3)


@pytest.mark.parametrize("first", chunks(100_000, 20))
def test_five_nodes_and_a_spare_live_through_faults(first):
    run_chunk(first, 5)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_group_is_found(mutant):
    with mutant():
        for seed in range(MUTANTS[mutant]):
            try:
                live_through_faults(seed, 3 if seed % 2 else 5)
            except Exception as found:  # noqa: BLE001 - what a wrong group runs into
                print(f"seed {seed}: {type(found).__name__} {found}")
                return
    pytest.fail(f"{MUTANTS[mutant]} seeds did not find it")


def test_the_same_seed_is_the_same_run():
    def told(seed):
        world = World(seed, 3)
        world.live_through(300)
        return world.checker.entries, world.checker.counts

    assert told(7) == told(7)
    assert told(7) != told(8)
