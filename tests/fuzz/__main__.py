"""`./run fuzz [TARGET...] [--seconds N] [--seed S] [--guided]`: one target after the other, each for so long.

A finding ends it with the command that repeats it; the input of a finding lies in .cache/fuzz. `--guided` lets atheris
(`pip install atheris`) choose the changes by what they reach, for one target that takes bytes.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from pathlib import Path

from fuzz.target import Finding, Seeded
from fuzz.targets import TARGETS

FOUND = Path(__file__).resolve().parents[2] / ".cache" / "fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run fuzz", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="per target")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, help="so many seeds instead of a time")
    parser.add_argument("--guided", action="store_true", help="by coverage, with atheris")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}")
    logging.disable(logging.CRITICAL)
    names = chosen.targets or list(TARGETS)
    if chosen.guided:
        return guided(parser, names, chosen.seconds)
    return max(blind(name, chosen.seed, chosen.seconds, chosen.count) for name in names)


def blind(name: str, first_seed: int, seconds: float, count: int | None) -> int:
    """Seeds from `first_seed` on; the exit code."""
    TARGETS[name].run(first_seed)  # makes the corpus: that is not what the time is for
    began = time.monotonic()
    seed = first_seed
    while seed < first_seed + count if count else time.monotonic() < began + seconds:
        try:
            TARGETS[name].run(seed)
        except Finding as finding:
            traceback.print_exc()
            FOUND.mkdir(parents=True, exist_ok=True)
            (FOUND / f"{name}-{seed}").write_bytes(finding.data)
            print(f"{name}: found with ./run fuzz {name} --seed {seed} --count 1", flush=True)
            return 1
        seed += 1
    print(f"{name}: {seed - first_seed} inputs, nothing found", flush=True)
    return 0


def guided(parser: argparse.ArgumentParser, names: list[str], seconds: float) -> int:
    import atheris  # type: ignore[import-not-found, unused-ignore]

    if len(names) != 1 or isinstance(TARGETS[names[0]], Seeded):
        parser.error("--guided takes one target, of those that read bytes")
    target = TARGETS[names[0]]
    corpus = FOUND / f"corpus-{target.name}"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.inputs()):
        (corpus / f"made-{number}").write_bytes(data)
    # What the corpus has imported by now is instrumented in place.
    atheris.instrument_all()
    arguments = [sys.argv[0], f"-max_total_time={int(seconds)}", f"-artifact_prefix={FOUND}/", str(corpus)]
    atheris.Setup(arguments, target.check)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
