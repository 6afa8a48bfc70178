"""`./run simulate`: many seeds, each a whole broker with its clients and faults in virtual time."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.plan import Plan, draw_plan
from tests.simulation.shrink import shrink
from tests.simulation.simulation import Result, simulate

PROGRESS_S = 10.0


def run_seed(work: tuple[int, str | None]) -> Result:
    seed, mutant = work
    with planted(mutant):
        return simulate(draw_plan(seed))


def run_seeds(seeds: Iterable[int], mutant: str | None, jobs: int) -> Iterator[Result]:
    work = ((seed, mutant) for seed in seeds)
    if jobs == 1:
        yield from map(run_seed, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seed, work, chunksize=4)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (100)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first seed that fails")
    parser.add_argument(
        "--mutant", choices=sorted(MUTANTS), help="plant a fault in the broker, to see it found"
    )
    parser.add_argument("--trace", action="store_true", help="print what happens, for one seed")
    parser.add_argument("--plan", type=Path, help="run a plan from a file, in place of seeds")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args()
    if options.plan is not None:
        return show(Plan.from_json(options.plan.read_text(encoding="utf-8")), options.mutant)
    if options.trace:
        return show(draw_plan(options.first_seed), options.mutant)
    gc.collect()
    gc.freeze()
    began = told = time.monotonic()
    total: Counter[str] = Counter()
    virtual_ms, done, failed = 0.0, 0, []
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    # Whoever stops a long run still gets its table.
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    for result in run_seeds(seeds, options.mutant, options.jobs):
        done += 1
        total.update(result.stats)
        virtual_ms += result.virtual_ms
        if result.failed:
            failed.append(result.seed)
            report(result, options.mutant)
            if not options.keep_going:
                break
        if stopped:
            break
        now = time.monotonic()
        if now - told > PROGRESS_S:
            told = now
            print(
                f"{done} of {len(seeds)} seeds, {len(failed)} failed, {done / (now - began):.1f} a second",
                flush=True,
            )
    print_table(total, done, virtual_ms / 1000, time.monotonic() - began)
    if not failed:
        return 0
    print(f"FAILED: {len(failed)} of {done} seeds: {', '.join(map(str, failed[:20]))}")
    if not options.no_shrink:
        print_shrunk(failed[0], options.mutant)
    return 1


def command(seed: int, mutant: str | None) -> str:
    return f"./run simulate --seeds 1 --first-seed {seed}" + (f" --mutant {mutant}" if mutant else "")


def report(result: Result, mutant: str | None) -> None:
    print(f"seed {result.seed} (trace {result.trace}):")
    for violation in result.violations[:10]:
        print(f"    {violation[:400]}")
    print(f"  again: {command(result.seed, mutant)}", flush=True)


def print_table(total: Counter[str], seeds: int, virtual_s: float, real_s: float) -> None:
    print(
        f"{seeds} seeds, {virtual_s:,.0f} virtual seconds in {real_s:,.1f} s: {seeds / real_s:.1f} seeds a second"
    )
    for what, count in sorted(total.items()):
        print(f"  {what:<60} {count:>12,}")


def print_shrunk(seed: int, mutant: str | None) -> None:
    with planted(mutant):
        small = shrink(draw_plan(seed), lambda plan: simulate(plan).failed)
        result = simulate(small, keep_log=True)
    print(
        f"shrunk to {len(small.actors)} clients, {len(small.faults)} faults, {small.duration_ms} ms; for --plan:"
    )
    print(small.to_json())
    print_log(result, last=60)


def print_log(result: Result, last: int) -> None:
    for at_ms, what in (result.log or [])[-last:]:
        print(f"  {at_ms:>12.3f}  {what[:300]}")
    for violation in result.violations[:20]:
        print(f"  {violation}")


def show(plan: Plan, mutant: str | None) -> int:
    with planted(mutant):
        result = simulate(plan, keep_log=True)
    print_log(result, last=1_000_000)
    print(f"trace {result.trace}")
    return int(result.failed)


if __name__ == "__main__":
    sys.exit(main())
