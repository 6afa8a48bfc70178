"""Two thousand runs of a whole broker in virtual time; and the simulation itself: one seed is one run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.actor import decode
from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.plan import FAULT_KINDS, Plan, draw_plan
from tests.simulation.shrink import shrink
from tests.simulation.simulation import simulate
from tests.support.sim_node import batch
from wire.batch import parse_header
from wire.errors import KafkaError

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 2_000
FIRST = 100
AT_ONCE = 190


def run_seeds(seeds: range) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in seeds:
        result = simulate(draw_plan(seed))
        found = "\n".join(result.violations[:10])
        assert not result.failed, f"./run simulate --seeds 1 --first-seed {seed}\n{found}"
        total.update(result.stats)
    return total


@pytest.mark.parametrize("first", range(FIRST, SEEDS, AT_ONCE))
def test_no_seed_finds_anything(first: int) -> None:
    """In a process of its own, where nothing is measured that would make it slower."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.simulation",
            *f"--no-shrink --seeds {AT_ONCE} --first-seed {first}".split(),
        ],
        env={name: value for name, value in os.environ.items() if not name.startswith("COV_")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{AT_ONCE} seeds, " in run.stdout


@pytest.mark.parametrize("seed", [109456, 113113, 117525, 117528, 119827, 121455, 144276])
def test_seeds_of_the_long_run_that_found_something(seed: int) -> None:
    """A sink forgot an attempt; a start met damage; a compacted file could not be opened; a topic
    grew after the metadata store had failed; offsets of before were answered after it had."""
    result = simulate(draw_plan(seed))
    assert not result.failed, result.violations[:10]


def test_a_simulated_reader_checks_a_batch_before_it_leaves_it_out() -> None:
    """Seed 182733 of the long run: a flipped byte made a batch of records look like a control batch."""
    good = batch(b"value", producer_id=1, epoch=0, sequence=0, transactional=True)
    assert decode(good, 0) == ([(0, "value")], 1)
    flipped = bytearray(good)
    flipped[22] ^= 0x20
    assert parse_header(flipped).is_control
    with pytest.raises(KafkaError, match="CRC"):
        decode(flipped, 0)


def test_the_seeds_do_what_they_are_for() -> None:
    """The first hundred, which find nothing either: but all that should happen in them does."""
    total = run_seeds(range(FIRST))
    wanted = [f"fault: {kind}" for kind in (*sorted(set(FAULT_KINDS)), "damage")]
    wanted += [
        "transactions committed",
        "transactions aborted",
        "group transactions committed",
        "layout changes",
    ]
    wanted += ["records acknowledged", "records read", "rebalances", "zombies", "topics deleted"]
    wanted += [
        "settings changed",
        "records deleted from the front",
        "transactions that went on after a start",
    ]
    wanted += ["damage that a start refused"]
    missing = [what for what in wanted if not total[what]]
    assert not missing, f"{missing} did not happen: {total}"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    with planted(name):
        for seed in range(mutant.first, mutant.first + mutant.seeds):
            if simulate(draw_plan(seed)).failed:
                return
    pytest.fail(f"{name} was not found within {mutant.seeds} seeds")


def test_the_documentation_names_them_all() -> None:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    for name, mutant in MUTANTS.items():
        what = " ".join((mutant.plant.__doc__ or "").split()).rstrip(".")
        where = f"{mutant.seeds} from {mutant.first}" if mutant.first else str(mutant.seeds)
        assert f"| `{name}` | {what} | {where} |" in text


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_is_one_run(seed: int) -> None:
    first, second = simulate(draw_plan(seed)), simulate(draw_plan(seed))
    assert first.trace == second.trace
    assert first.stats == second.stats
    assert first.trace != simulate(draw_plan(seed + 1)).trace


def test_the_order_of_sets_does_not_matter() -> None:
    script = (
        "from tests.simulation.plan import draw_plan\n"
        "from tests.simulation.simulation import simulate\n"
        "print([simulate(draw_plan(seed)).trace for seed in range(24)])"
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


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_survives_its_file(seed: int) -> None:
    plan = draw_plan(seed)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_failure_is_made_small() -> None:
    with planted("acknowledge-before-flush"):
        seed = next(seed for seed in range(20) if simulate(draw_plan(seed)).failed)
        plan = draw_plan(seed)
        small = shrink(plan, lambda smaller: simulate(smaller).failed, tries=25)
        assert simulate(small).failed
    assert len(small.actors) + len(small.faults) < len(plan.actors) + len(plan.faults)


def test_a_failing_seed_says_how_to_repeat_it() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.simulation",
        "--seeds",
        "20",
        "--mutant",
        "wrong-index",
        "--no-shrink",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout
    assert "again: ./run simulate --seeds 1 --first-seed" in run.stdout
    assert "--mutant wrong-index" in run.stdout
