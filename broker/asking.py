"""What the commands that talk to a broker have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import click

from broker.client import PrivateClient
from wire.errors import KafkaError

Client = TypeVar("Client", bound=PrivateClient)
Answer = TypeVar("Answer")

server_option = click.option(
    "--bootstrap-server", metavar="HOST:PORT", required=True, help="The broker to ask."
)


PAUSE_S = 0.3


def ask(
    client_type: type[Client], server: str, call: Callable[[Client], Answer], *, patience_s: float = 0.0
) -> Answer:
    """One call; what goes wrong is said as a command says it.

    With `patience_s` a connection that the broker closes is tried again for so long, for calls that may be repeated:
    a node of a cluster closes it while it knows no leader, and when the leader changes.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            with client_type(server) as client:
                return call(client)
        except KafkaError as error:
            raise click.ClickException(str(error)) from error
        except (OSError, ValueError) as error:
            closed = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
            if not closed or time.monotonic() >= until:
                raise click.ClickException(f"{server}: {error}") from error
        time.sleep(PAUSE_S)
