"""`sealog group-transactions`: see and end batches that many producers write together."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from broker.asking import ask, server_option
from broker.client import GroupTransactionClient
from wire.group_transactions import Member, Response


@click.group("group-transactions")
def group_transactions() -> None:
    """See and end batches that many producers write as one."""


@group_transactions.command()
@server_option
@click.argument("sink")
def describe(bootstrap_server: str, sink: str) -> None:
    """The last committed batch of SINK, and the batches that are not decided."""
    response = ask(GroupTransactionClient, bootstrap_server, lambda client: client.describe(sink))
    if response.batch >= 0:
        click.echo(
            f"last committed: batch {response.batch}, attempt {response.attempt}, {response.members} members"
        )
    else:
        click.echo("nothing committed yet")
    for one in response.undecided:
        until = datetime.fromtimestamp(one.deadline_ms / 1000, UTC).isoformat(timespec="seconds")
        click.echo(
            f"undecided: batch {one.batch}, attempt {one.attempt or '(none)'}, "
            f"{one.voted} of {one.members} members have voted, aborts at {until}"
        )


@group_transactions.command()
@server_option
@click.argument("sink")
@click.argument("batch", type=int)
@click.argument("attempt")
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="TXID,PID,EPOCH",
    help="A winner, as it wrote; every member that is not named is discarded.",
)
def commit(bootstrap_server: str, sink: str, batch: int, attempt: str, members: tuple[str, ...]) -> None:
    """Commit BATCH of SINK with the members named."""
    winners = [_member(text) for text in members]
    response = ask(
        GroupTransactionClient, bootstrap_server, lambda client: client.commit(sink, batch, attempt, winners)
    )
    click.echo(_outcome(response, "committed"))


@group_transactions.command()
@server_option
@click.argument("sink")
@click.argument("batch", type=int)
@click.argument("attempt")
def abort(bootstrap_server: str, sink: str, batch: int, attempt: str) -> None:
    """Discard ATTEMPT at BATCH of SINK."""
    response = ask(
        GroupTransactionClient, bootstrap_server, lambda client: client.abort(sink, batch, attempt)
    )
    click.echo(_outcome(response, "discarded"))


def _member(text: str) -> Member:
    parts = text.rsplit(",", 2)
    if len(parts) != 3 or not all(part.isdigit() for part in parts[1:]):
        raise click.BadParameter(f"{text!r} is not TXID,PID,EPOCH")
    return Member(parts[0], int(parts[1]), int(parts[2]))


def _outcome(response: Response, word: str) -> str:
    if response.repeated and response.members:
        return (
            f"batch {response.batch} was done before: attempt {response.attempt}, {response.members} members"
        )
    return f"batch {response.batch}, attempt {response.attempt}: {word}, {response.members} members"
