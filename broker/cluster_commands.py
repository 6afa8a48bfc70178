"""`sealog cluster status`, `add`, `drain` and `remove`: the nodes of a cluster, seen and changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from broker.asking import ask, server_option
from broker.client import ClusterClient
from broker.cluster_picture import draw, merge
from wire.cluster import Response
from wire.errors import KafkaError

node_argument = click.argument("node", type=click.IntRange(min=0))
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
    first = ask(ClusterClient, bootstrap_server, ClusterClient.status)
    answers: dict[int, Response | None] = {first.node_id: first}
    for node in first.nodes:
        if node.id not in answers and node.address:
            answers[node.id] = _status_of(node.address)
    seen = merge(answers)
    lines: Sequence[str] = (
        seen.plan or ["nothing to move"] if show_plan else draw(seen, every_range=every_range)
    )
    for line in lines:
        click.echo(line)


def _status_of(address: str) -> Response | None:
    try:
        with ClusterClient(address, timeout_s=2.0) as client:
            return client.status()
    except (OSError, ValueError, KafkaError):
        return None


@cluster.command()
@server_option
@node_argument
@click.option("--peer", metavar="HOST:PORT", required=True, help="Where the other nodes reach it.")
@click.option("--rack", default="", help="Where it stands.")
@dry_run_option
def add(bootstrap_server: str, node: int, peer: str, rack: str, dry_run: bool) -> None:
    """Let NODE, a number that none has, come in when it is started."""
    _change(
        bootstrap_server,
        lambda client: client.add(node, peer, rack, dry_run=dry_run),
        f"node {node} may start",
    )


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
@dry_run_option
def remove(bootstrap_server: str, node: int, dry_run: bool) -> None:
    """Take NODE out of the cluster for good, whether it is there or not: its replicas go to others, if there are any.

    It may be stopped when it is not in the status any more.
    """
    _change(bootstrap_server, lambda client: client.remove(node, dry_run=dry_run), f"node {node} is leaving")


def _change(server: str, call: Callable[[ClusterClient], Response], said: str) -> None:
    response = ask(ClusterClient, server, call)
    if response.changed:
        click.echo(said)
    for line in response.plan:
        click.echo(f"  {line}")
