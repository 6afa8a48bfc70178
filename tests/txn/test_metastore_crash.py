"""A crash at every single disk operation, with any part of what was not flushed kept, lost or torn.

After each the store must hold the state after some batch, with everything in it that was acknowledged as durable.
"""

from __future__ import annotations

import random

import pytest
from metastore_model import Pair, random_ops
from support.sim_disk import PowerCut

from txn.metastore import Put

BATCHES = 80


def serve(pair: Pair, seed: int) -> None:
    """Some service with waits, pauses and a clean restart in the middle."""
    rng = random.Random(seed)
    pair.open()
    for number in range(BATCHES):
        lsn = pair.apply(random_ops(rng, pair.model))
        if rng.random() < 0.4:
            pair.wait_durable(lsn)
        if rng.random() < 0.3:
            pair.wait_written()
        choice = rng.random()
        if choice < 0.4:
            pair.scheduler.run_turn()
        elif choice < 0.7:
            pair.scheduler.advance(rng.choice([1, 4, 30, 80]))
        if number == BATCHES // 2:
            stats = pair.store.stats()
            assert stats.snapshots or stats.snapshot_error
            pair.restart()


def begin(seed: int, *, snapshots_fail: bool = False) -> Pair:
    pair = Pair(seed)
    if snapshots_fail:
        pair.disk.fail("write", "snapshot", times=99)
    return pair


def count_changes(seed: int, *, snapshots_fail: bool = False) -> int:
    pair = begin(seed, snapshots_fail=snapshots_fail)
    serve(pair, seed)
    assert bool(pair.store.stats().snapshots) != snapshots_fail
    return pair.disk.changes


def go_on(pair: Pair, seed: int) -> None:
    """The recovered store serves, and comes back from a clean stop as it was."""
    rng = random.Random(seed)
    for _ in range(3):
        pair.wait_durable(pair.apply(random_ops(rng, pair.model)))
        pair.scheduler.advance(5)
    pair.restart()
    pair.crash(seed, keep="none")
    pair.open()
    assert pair.report.torn is None


@pytest.mark.parametrize("part", range(4))
def test_power_cut_at_every_disk_operation(part: int) -> None:
    seed = part
    for at in range(1, count_changes(seed) + 1):
        pair = Pair(seed)
        pair.disk.stop_after(at)
        with pytest.raises(PowerCut):
            serve(pair, seed)
        pair.crash(at * 7 + part)
        pair.open()
        if at % 3 == 0:
            go_on(pair, at)


@pytest.mark.parametrize("keep", ["none", "all", "prefix", "sectors"])
def test_power_cut_with_one_kind_of_loss(keep: str) -> None:
    seed = 9
    for at in range(1, count_changes(seed) + 1, 2):
        pair = Pair(seed)
        pair.disk.stop_after(at)
        with pytest.raises(PowerCut):
            serve(pair, seed)
        pair.crash(at, keep=keep)
        pair.open()


def test_power_cut_with_a_log_of_several_files() -> None:
    """Snapshots fail, so the log's files pile up; what is torn in one takes those after it along."""
    seed = 7
    cut = most = 0
    for at in range(1, count_changes(seed, snapshots_fail=True) + 1, 2):
        pair = begin(seed, snapshots_fail=True)
        pair.disk.stop_after(at)
        with pytest.raises(PowerCut):
            serve(pair, seed)
        pair.crash(at)
        most = max(most, len(pair.disk.list("a/meta")))
        pair.open()
        cut += any(name.startswith("a/meta/log") and name[-1] != "w" for name in pair.report.removed)
        go_on(pair, at)
    assert most > 3
    assert cut > 0


@pytest.mark.parametrize("killed", [False, True], ids=["after a power cut", "after a kill"])
def test_a_power_cut_at_every_operation_of_the_recovery(killed: bool) -> None:
    seed = 5
    recoveries = 0
    for at in range(1, count_changes(seed) + 1, 7):
        for second in range(1, 40):
            pair = Pair(seed)
            pair.disk.stop_after(at)
            with pytest.raises(PowerCut):
                serve(pair, seed)
            if killed:
                pair.kill()
            else:
                pair.crash(at)
            pair.disk.stop_after(second)
            try:
                pair.open()
            except PowerCut:
                pair.crash(at + second)
                pair.open()
                recoveries += 1
            else:
                break
    assert recoveries > 100


def test_a_killed_process_loses_nothing_written_not_even_to_a_later_power_cut() -> None:
    """Recovery flushes what the killed process wrote and renamed before it relies on it."""
    seed = 6
    for at in range(1, count_changes(seed) + 1):
        pair = Pair(seed)
        pair.disk.stop_after(at)
        with pytest.raises(PowerCut):
            serve(pair, seed)
        pair.kill()
        pair.open()
        pair.wait_durable(pair.apply([Put("/more", at)]))
        pair.scheduler.advance(4)
        assert pair.durable_lsn == pair.model.lsn
        pair.crash(at, keep="none")
        pair.open()
        assert pair.report.torn is None
