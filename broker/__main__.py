"""`python -m broker` is the `sealog` command."""

from broker.cli import main

main(prog_name="sealog")
