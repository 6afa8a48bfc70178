"""What the commands that talk to a broker have in common."""

from __future__ import annotations

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


def ask(client_type: type[Client], server: str, call: Callable[[Client], Answer]) -> Answer:
    """One call; what goes wrong is said as a command says it."""
    try:
        with client_type(server) as client:
            return call(client)
    except KafkaError as error:
        raise click.ClickException(str(error)) from error
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{server}: {error}") from error
