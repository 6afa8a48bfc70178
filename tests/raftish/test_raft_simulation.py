"""Thousands of runs over bad links, disks and clocks. More of them: SEALOG_RAFT_SEEDS=10000 (per kind)."""

from __future__ import annotations

import os

import pytest

from tests.raftish.checker import Violation
from tests.raftish.mutants import FAULTS, MUTANTS
from tests.raftish.world import World
from tests.support.coverage import untraced

CHUNK = 100
FAULTS_MS = 1500
STALE_MS = 1000


def chunks(seeds):
    return range(0, int(os.environ.get("SEALOG_RAFT_SEEDS", seeds)), CHUNK)


@untraced()
def live_through_faults(seed, voters):
    world = World(seed, voters)
    world.live_through(FAULTS_MS)
    return world.checker


@untraced()
def live_with_stale_leaders(seed):
    world = World(seed, 3, spare=0, jitter=0.05)
    world.live_with_stale_leaders(STALE_MS)
    return world.checker


def run_chunk(first, live, *args):
    committed = reads = elections = 0
    for seed in range(first, first + CHUNK):
        try:
            checker = live(seed, *args)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        committed += len(checker.committed)
        reads += checker.reads_answered
        elections += len(checker.leaders)
    # Runs in which nothing happens would find nothing.
    assert committed > 20 * CHUNK
    assert reads > 5 * CHUNK
    assert elections > 2 * CHUNK


@pytest.mark.parametrize("first", chunks(1400))
def test_three_nodes_and_a_spare_live_through_faults(first):
    run_chunk(first, live_through_faults, 3)


@pytest.mark.parametrize("first", chunks(400))
def test_five_nodes_and_a_spare_live_through_faults(first):
    run_chunk(first, live_through_faults, 5)


@pytest.mark.parametrize("first", chunks(300))
def test_no_stale_leader_answers_a_read(first):
    run_chunk(first, live_with_stale_leaders)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_core_is_found(mutant):
    kind, seeds = MUTANTS[mutant]
    with mutant():
        for seed in range(seeds):
            try:
                if kind == FAULTS:
                    live_through_faults(seed, 3 if seed % 2 else 5)
                else:
                    live_with_stale_leaders(seed)
            except (Violation, AssertionError) as found:
                print(f"seed {seed}: {found}")
                return
    pytest.fail(f"{seeds} seeds did not find it")


def test_the_same_seed_is_the_same_run():
    def said(seed):
        world = World(seed, 3)
        messages = []
        world.trace = messages.append
        world.live_through(300)
        return messages

    assert said(7) == said(7)
    assert said(7) != said(8)
