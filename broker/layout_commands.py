"""`sealog layout`, `split`, `merge` and `seal`: the ranges of a topic, seen and changed by hand."""

from __future__ import annotations

import shutil

import click

from broker.asking import ask, server_option
from broker.client import LayoutClient
from broker.layout_picture import draw, plan
from wire.layouts import Response


@click.command()
@server_option
@click.argument("topic")
@click.option(
    "--plan", "show_plan", is_flag=True, help="Only what the policy would change now, and why: a dry run."
)
def layout(bootstrap_server: str, topic: str, show_plan: bool) -> None:
    """Draw the segments of TOPIC: its ranges over time, with states, sizes and open transactions."""
    response = ask(LayoutClient, bootstrap_server, lambda client: client.describe(topic))
    width = shutil.get_terminal_size((120, 40)).columns
    for line in plan(response) if show_plan else draw(topic, response, width):
        click.echo(line)


@click.command()
@server_option
@click.argument("topic")
@click.option("--at", metavar="P[,P...]", help="Partitions at which a range shall begin.")
@click.option(
    "--into", metavar="N", type=click.IntRange(min=2), help="Split every range of the topic into N."
)
def split(bootstrap_server: str, topic: str, at: str | None, into: int | None) -> None:
    """Split ranges of TOPIC while it is in use. Nobody notices but the next flush."""
    if (at is None) == (into is None):
        raise click.UsageError("give either --at or --into")

    def call(client: LayoutClient) -> Response:
        if at is not None:
            return client.split(topic, _numbers(at))
        assert into is not None
        starts = []
        for first, last in client.describe(topic).ranges:
            count = last - first + 1
            starts += [first + part * count // into for part in range(1, into) if part * count // into]
        return client.split(topic, sorted(set(starts)) or [0])

    click.echo(_outcome(ask(LayoutClient, bootstrap_server, call)))


@click.command()
@server_option
@click.argument("topic")
@click.option(
    "--range", "span", metavar="FIRST-LAST", required=True, help="Partitions of neighbouring ranges."
)
def merge(bootstrap_server: str, topic: str, span: str) -> None:
    """Merge neighbouring ranges of TOPIC into one while it is in use."""
    first, dash, last = span.partition("-")
    if not dash or not first.isdigit() or not last.isdigit():
        raise click.BadParameter(f"{span!r} is not FIRST-LAST", param_hint="--range")
    click.echo(
        _outcome(
            ask(LayoutClient, bootstrap_server, lambda client: client.merge(topic, int(first), int(last)))
        )
    )


@click.command()
@server_option
@click.argument("topic")
@click.option(
    "--partition", metavar="P", type=click.IntRange(min=0), help="Only the range of this partition."
)
def seal(bootstrap_server: str, topic: str, partition: int | None) -> None:
    """Seal the active segments of TOPIC and go on in new ones. Open transactions are not in the way."""

    def call(client: LayoutClient) -> Response:
        partitions = (
            [partition] if partition is not None else [first for first, _ in client.describe(topic).ranges]
        )
        responses = [client.seal(topic, one) for one in partitions]
        return next((one for one in responses if one.changed), responses[0])

    response = ask(LayoutClient, bootstrap_server, call)
    click.echo("sealed" if response.changed else "nothing to seal: the active segments are empty")


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise click.BadParameter(f"{text!r} is not P[,P...]", param_hint="--at")
    return [int(part) for part in parts]


def _outcome(response: Response) -> str:
    ranges = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in response.ranges)
    return f"{'now' if response.changed else 'already'}: {ranges}"
