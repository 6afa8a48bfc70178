"""Patches the broker by the mutant named first and runs it with the other arguments."""

import sys

from broker.cli import main
from tests.crash.mutants import MUTANTS

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    main(prog_name="sealog-mutant")
