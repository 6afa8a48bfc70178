"""`sealog cluster status`, `add`, `drain` and `remove`: the nodes of a cluster, seen and changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from broker.asking import ask, server_option
from broker.client import ClusterClient
from broker.cluster_picture import draw, merge
from broker.cluster_progress import Stage, coming_in, follow, going_out, status_of
from wire.cluster import Response

PATIENCE_S = 10.0
"""Elections are over by then."""
node_argument = click.argument("node", type=click.IntRange(min=0))
wait_option = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Tell how far it is until it is done."
)
timeout_option = click.option(
    "--timeout", "timeout_s", type=float, default=3600.0, show_default=True, help="Seconds to wait at most."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would follow.")


@click.group()
def cluster() -> None:
    """See and change the nodes of a cluster."""


@cluster.command()
@server_option
@click.option("--all", "every_range", is_flag=True, help="Every range, not the first ones.")
@click.option(
    "--plan", "show_plan", is_flag=True, help="Only the next moves of leaders and replicas, and why."
)
def status(bootstrap_server: str, every_range: bool, show_plan: bool) -> None:
    """Draw the nodes, and for every range who leads, who follows, and who is behind.

    Any node can be asked; it names the others, and each is asked for what it leads.
    """
    first = ask(ClusterClient, bootstrap_server, ClusterClient.status, patience_s=PATIENCE_S)
    answers: dict[int, Response | None] = {first.node_id: first}
    for node in first.nodes:
        if node.id not in answers and node.address:
            answers[node.id] = status_of(node.address, timeout_s=2.0)
    seen = merge(answers)
    lines: Sequence[str] = (
        seen.plan or ["nothing to move"] if show_plan else draw(seen, every_range=every_range)
    )
    for line in lines:
        click.echo(line)


@cluster.command()
@server_option
@node_argument
@click.option("--peer", metavar="HOST:PORT", required=True, help="Where the other nodes reach it.")
@click.option("--rack", default="", help="Where it stands.")
@wait_option
@timeout_option
@dry_run_option
def add(
    bootstrap_server: str, node: int, peer: str, rack: str, wait: bool, timeout_s: float, dry_run: bool
) -> None:
    """Let NODE, a number that none has, come in when it is started.

    It gets what the others have, and counts in the majority when it has nearly all of it.
    """
    _change(
        bootstrap_server,
        lambda client: client.add(node, peer, rack, dry_run=dry_run),
        f"node {node} may start",
    )
    if wait and not dry_run:
        _follow(bootstrap_server, coming_in, node, timeout_s)


@cluster.command()
@server_option
@node_argument
@click.option("--undo", is_flag=True, help="Let it lead and take replicas again.")
@dry_run_option
def drain(bootstrap_server: str, node: int, undo: bool, dry_run: bool) -> None:
    """Move what NODE leads, and the replicas that another node can take, off it: before it is stopped for long."""
    said = f"node {node} takes part again" if undo else f"node {node} is being drained"
    _change(bootstrap_server, lambda client: client.drain(node, undo=undo, dry_run=dry_run), said)


@cluster.command()
@server_option
@node_argument
@wait_option
@timeout_option
@dry_run_option
def remove(bootstrap_server: str, node: int, wait: bool, timeout_s: float, dry_run: bool) -> None:
    """Take NODE out of the cluster for good, whether it is there or not; if it leads, it hands over first.

    Its process ends when it hears that it is out. To come back it needs an empty folder, and to be added.
    """
    _change(bootstrap_server, lambda client: client.remove(node, dry_run=dry_run), f"node {node} is leaving")
    if wait and not dry_run:
        _follow(bootstrap_server, going_out, node, timeout_s)


@cluster.command("recover-unsafe")
@click.option("--data", metavar="DIR", required=True, help="The folder of a node that is stopped.")
@click.option(
    "--accept-data-loss",
    is_flag=True,
    help="Do it. Without this option it is only said what would be done, and what may be lost.",
)
def recover_unsafe(data: str, accept_data_loss: bool) -> None:
    """LOSES DATA. Let a stopped node go on alone when a majority of the nodes is gone for good.

    What the others acknowledged without this node is lost. Of several nodes that are left take the one whose log ends
    highest, and no other; those that are gone must never start again with the folders that they had.
    """
    # Only an operator in need imports it.
    from broker.recover_command import recover

    recover(data, click.echo, accept_data_loss=accept_data_loss)


def _follow(server: str, stage: Callable[[int, Response], Stage], node: int, timeout_s: float) -> None:
    if not follow(server, stage, node, click.echo, timeout_s=timeout_s):
        raise click.ClickException(f"not done after {timeout_s:g} s; it goes on: sealog cluster status")


def _change(server: str, call: Callable[[ClusterClient], Response], said: str) -> None:
    response = ask(ClusterClient, server, call, patience_s=PATIENCE_S)
    if response.changed:
        click.echo(said)
    for line in response.plan:
        click.echo(f"  {line}")
