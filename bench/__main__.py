"""`./run bench`: the price of a transaction."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from contextlib import nullcontext
from pathlib import Path

import click
import confluent_kafka
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.local_broker import local_broker
from bench.systems import shims as shim
from bench.transactions import Row, measure


@click.command()
@click.option("--partitions", default="1,10,50", show_default=True, help="Widths of a turn.")
@click.option("--turns", default=300, show_default=True, help="Counted turns of each kind and width.")
@click.option(
    "--flush-delay-ms", default=0.0, show_default=True, help="Delay every flush of the broker by this."
)
@click.option(
    "--bootstrap-server", metavar="HOST:PORT", help="Measure a running broker instead of a fresh one."
)
@click.option("--data", type=click.Path(path_type=Path), help="Where the fresh broker's folder is made.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures there as well.")
def main(
    partitions: str,
    turns: int,
    flush_delay_ms: float,
    bootstrap_server: str | None,
    data: Path | None,
    json_file: Path | None,
) -> None:
    """p50 and p99 of begin..commit over some partitions, plain against transactional, in one run."""
    widths = [int(width) for width in partitions.split(",")]
    env = {}
    if flush_delay_ms:
        env = shim.preload(shim.build("slowflush")) | shim.slow_flushes(int(flush_delay_ms * 1000))
    console = Console()
    where = nullcontext(bootstrap_server) if bootstrap_server else local_broker(data, env)
    with where as address, Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(widths) * (turns + max(1, turns // 10)))
        rows = measure(address, widths, turns, lambda: progress.advance(task))
    console.print(_table(rows))
    console.print(
        f"librdkafka {confluent_kafka.libversion()[0]}, Python {platform.python_version()}, {os.cpu_count()} CPUs, "
        f"1 KB records, one per partition and turn, {turns} turns"
        + (f", every flush delayed by {flush_delay_ms} ms" if flush_delay_ms else "")
    )
    if json_file:
        json_file.write_text(
            json.dumps([dataclasses.asdict(row) for row in rows], indent=2), encoding="utf-8"
        )


def _table(rows: list[Row]) -> Table:
    table = Table(title="one turn, milliseconds")
    for name in ("partitions", "plain p50", "plain p99", "txn p50", "txn p99", "txn / plain (p50)"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.partitions),
            f"{row.plain.p50_ms:.2f}",
            f"{row.plain.p99_ms:.2f}",
            f"{row.txn.p50_ms:.2f}",
            f"{row.txn.p99_ms:.2f}",
            f"{row.price:.2f}",
        )
    return table


main(prog_name="./run bench")
