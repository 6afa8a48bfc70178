"""`./run model [SCENARIO...] [--states N]`: explores each scenario, whole unless a number says where to end."""

from __future__ import annotations

import argparse
import logging
import sys

from model.explore import explore
from model.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run model", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--states", type=int, default=1 << 60)
    parser.add_argument("--finish-every", type=int, default=4, help="which states are let run to their end")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = 0
    for name in chosen.scenarios or SCENARIOS:
        result = explore(SCENARIOS[name], max_states=chosen.states, finish_every=chosen.finish_every)
        print(
            f"{name}: {result.states} states, {result.steps} steps, {result.ends} run to their end, "
            f"{'all within the bounds' if result.whole else 'not all'}, {result.seconds:.0f} s",
            flush=True,
        )
        if result.found is not None:
            print(result.found)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
