"""Power cuts and kills at every point: nothing promised is lost, nothing torn comes back.

The auditor in range_model.py holds the truth; these tests drive it through many lives.
"""

from __future__ import annotations

import contextlib
import random

import pytest
from range_model import Crashes, Owner
from support.sim_disk import PowerCut

LIVES = 5


def live(owner: Owner, steps: int) -> None:
    """One life of the process: at most this many steps, or until the power is cut."""
    for _ in range(steps):
        owner.random_step()


@pytest.mark.parametrize("block", range(12))
def test_many_lives_of_one_log(block: int) -> None:
    met = Crashes()
    for seed in range(block * 12, block * 12 + 12):
        owner = Owner(seed=seed)
        owner.create()
        rng = random.Random(seed)
        for _ in range(LIVES):
            owner.disk.stop_after(rng.randint(1, 150))
            with contextlib.suppress(PowerCut):
                live(owner, 60)
            killed = rng.random() < 0.3
            if killed:
                owner.kill()
            else:
                owner.power_cut(rng.randrange(1 << 30))
            interruptions = 0 if killed else rng.choice((0, 0, 1, 2))
            owner.recover(killed=killed, interruptions=interruptions, seed=rng.randrange(1 << 30))
            met.count(owner.report)
        assert not owner.failures
    assert met.entries
    assert met.cuts
    assert met.checkpoints
