"""`python -m tests.cluster`: faults on a cluster of real processes, on demand."""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import click

from tests.cluster.campaign import Campaign
from tests.cluster.line_load import LineLoad
from tests.cluster.machines import RaftishCluster


@click.command()
@click.option("--faults", default=100, show_default=True, help="How many.")
@click.option("--seed", type=int, help="Repeats a plan of faults.  [default: another one each time]")
@click.option("--nodes", default=3, show_default=True)
@click.option("--target", type=click.Choice(["brokers", "logs"]), default="brokers", show_default=True)
@click.option(
    "--groups",
    type=click.Choice(["disk", "ranges"]),
    default="disk",
    show_default=True,
    help="What brokers replicate.",
)
@click.option("--keep", metavar="DIR", help="Where data and logs of the nodes stay.  [default: removed]")
def main(faults: int, seed: int | None, nodes: int, target: str, groups: str, keep: str | None) -> None:
    """Kill, stop, cut off and slow down the nodes of a cluster under load, and judge what clients saw."""
    seed = seed or random.randrange(1, 1 << 31)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        violations = run(target, folder, nodes, seed, faults, groups)
    for violation in violations[:30]:
        click.echo(violation)
    sys.exit(1 if violations else 0)


def run(target: str, folder: Path, nodes: int, seed: int, faults: int, groups: str = "disk") -> list[object]:
    if target == "logs":
        with RaftishCluster(folder, nodes) as cluster:
            load = LineLoad(cluster, seed)
            violations = Campaign(cluster, load, seed=seed, faults=faults).run()
            click.echo(load.report())
            return list(violations)
    from tests.cluster.broker_run import run_brokers

    found, _ = run_brokers(folder, nodes, seed, faults, groups=groups)
    return list(found)


if __name__ == "__main__":
    main()
