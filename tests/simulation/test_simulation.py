"""The simulation itself: one seed is one run, whatever the interpreter does, and what fails can be made small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutants import planted
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.shrink import shrink
from tests.simulation.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_is_one_run(seed: int) -> None:
    first, second = simulate(draw_plan(seed)), simulate(draw_plan(seed))
    assert first.trace == second.trace
    assert first.stats == second.stats


def test_the_order_of_sets_does_not_matter() -> None:
    script = (
        "from tests.simulation.plan import draw_plan\n"
        "from tests.simulation.simulation import simulate\n"
        "print([simulate(draw_plan(seed)).trace for seed in range(8)])"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1


def test_a_plan_survives_its_file() -> None:
    plan = draw_plan(1)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_failure_is_made_small() -> None:
    with planted("acknowledge-before-flush"):
        seed = next(seed for seed in range(20) if simulate(draw_plan(seed)).failed)
        plan = draw_plan(seed)
        small = shrink(plan, lambda smaller: simulate(smaller).failed, tries=40)
        assert simulate(small).failed
    assert len(small.actors) + len(small.faults) < len(plan.actors) + len(plan.faults)
