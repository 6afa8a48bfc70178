"""`python -m demo`: exactly once over 336,776 real flights, the broker killed twice. Exit code 1 if not so."""

import contextlib
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from demo.flights import FLIGHTS_IN_FILE, data_file
from demo.plan import Plan
from demo.run import DemoFailed, Run, free_suffix
from demo.screen import Screen
from demo.server import BrokerFailed, Server

LEAST_FLIGHTS = 1_000
"""Fewer would not fill the transactions that the broker is killed in."""


@contextlib.contextmanager
def own_server(data: Path | None, keep: bool) -> Iterator[Server]:
    """A broker of our own, ended however the block is left; its folder goes unless it was given or is kept."""
    folder = data or Path(tempfile.mkdtemp(prefix="sealog-demo-"))
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.end()
        if data is None and not keep:
            shutil.rmtree(folder, ignore_errors=True)


@click.command()
@click.option("--bootstrap-server", metavar="HOST:PORT", help="Use a running broker; it is not killed then.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder for the broker's data, kept afterwards."
)
@click.option(
    "--flights",
    type=click.IntRange(LEAST_FLIGHTS, FLIGHTS_IN_FILE),
    default=FLIGHTS_IN_FILE,
    show_default=True,
    help="How many of the flights to stream.",
)
@click.option("--keep", is_flag=True, help="Keep the temporary folder with the broker's data.")
def main(bootstrap_server: str | None, data: Path | None, flights: int, keep: bool) -> None:
    """Stream the flights of 2013 through two topics in transactions, and count what comes out."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    # So that the broker and the workers are ended then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        data_file()
        started = time.monotonic()
        if bootstrap_server:
            holds = stream(bootstrap_server, flights, None)
        else:
            with own_server(data, keep) as server:
                holds = stream(server.bootstrap, flights, server)
                if keep and data is None:
                    click.echo(f"data kept in {server.folder}")
        click.echo(f"{'all holds' if holds else 'BROKEN'}, in {time.monotonic() - started:.0f} s")
    except (DemoFailed, BrokerFailed, FileNotFoundError) as error:
        click.echo(f"the demo could not finish: {error}", err=True)
        sys.exit(1)
    sys.exit(0 if holds else 1)


def stream(bootstrap: str, flights: int, server: Server | None) -> bool:
    plan = Plan(bootstrap, flights, free_suffix(bootstrap), kills=server is not None)
    with Screen(flights) as screen:
        screen.tell(
            f"{flights:,} flights through {plan.flights_topic} into {plan.totals_topic} on {bootstrap}"
        )
        run = Run(plan, screen, server)
        verdict = run.run()
    screen.show(verdict)
    in_doubt = sum(stage.in_doubt for stage in run.ledger.stages.values())
    click.echo(f"\n{in_doubt} transactions got no answer and were looked up")
    return verdict.holds


if __name__ == "__main__":
    main()
