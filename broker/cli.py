"""The `sealog` command."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from pathlib import Path
from typing import cast

import click

from broker.config import ConfigError, load

LATER = {
    "cluster": ("broker.cluster_commands", "cluster"),
    "dump": ("broker.dump_command", "dump"),
    "group-transactions": ("broker.group_commands", "group_transactions"),
    "layout": ("broker.layout_commands", "layout"),
    "merge": ("broker.layout_commands", "merge"),
    "seal": ("broker.layout_commands", "seal"),
    "split": ("broker.layout_commands", "split"),
}
"""Commands that are not needed to serve, and where they are."""


class Commands(click.Group):
    """Imports what a command needs when it is called: `serve` shall be up soon."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LATER])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in LATER:
            return super().get_command(ctx, cmd_name)
        module, name = LATER[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="sealog")
def main() -> None:
    """sealog: a transactional event log that speaks the Kafka protocol."""


@main.command()
@click.option("--data", metavar="DIR", help="Where the log is kept; made if need be.  [default: sealog-data]")
@click.option(
    "--listen", metavar="HOST:PORT", help="Address to serve Kafka clients on.  [default: 127.0.0.1:9092]"
)
@click.option(
    "--config", "config_file", metavar="FILE", help="Settings in TOML; options given here win over it."
)
@click.option("--node-id", type=int, help="This node's number.  [default: 1]")
@click.option(
    "--peers",
    metavar="ID@HOST:PORT,...",
    help="All nodes of the cluster, this one too, where they reach each other.  [default: none, a broker alone]",
)
@click.option(
    "--groups",
    type=click.Choice(["disk", "ranges"]),
    help="What a cluster replicates: the leader's disk, or (opt-in, young) each range by itself, with leaders on "
    "all nodes.  [default: disk]",
)
@click.option(
    "--cluster-secret-file",
    metavar="FILE",
    help="What only the nodes know.  [default: $SEALOG_CLUSTER_SECRET]",
)
@click.option("-v", "--verbose", is_flag=True, help="Log every connection that is closed, and why.")
def serve(
    data: str | None,
    listen: str | None,
    config_file: str | None,
    node_id: int | None,
    peers: str | None,
    groups: str | None,
    cluster_secret_file: str | None,
    verbose: bool,
) -> None:
    """Serve Kafka clients until SIGTERM or Ctrl-C."""
    # The message schemas import this testing library when it is installed, for a second and 20 MB of nothing.
    cast(dict[str, object], sys.modules).setdefault("hypothesis", None)

    # Nearly all that the modules make lives on: the collector would walk it again and again, in vain. It begins when
    # the node is there.
    gc.disable()

    from broker.serve import serve as run
    from storage.real_disk import LockHeld
    from wire.errors import KafkaError

    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        config = load(
            config_file,
            data=data,
            listen=listen,
            node_id=node_id,
            peers=peers.split(",") if peers is not None else None,
            groups=groups,
            cluster_secret_file=cluster_secret_file,
        )
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    try:
        run(config, lambda line: click.echo(line))
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    except LockHeld as error:
        raise click.ClickException(f"{config.data}: another sealog serves this folder ({error})") from error
    except _found_in_the_folder() as error:
        raise click.ClickException(f"{config.data}: {error}") from error
    except KafkaError as error:
        # Damage that was met by a reader: where the transactions of a log are looked for.
        raise click.ClickException(f"{config.data}: {error.message}") from error
    except OSError as error:
        raise click.ClickException(str(error)) from error
    finally:
        gc.enable()


def _found_in_the_folder() -> tuple[type[Exception], ...]:
    """What says that a folder is not one to serve from. Half of it is a cluster's: a broker alone imports none of that
    to be up."""
    from broker.data_folder import ForeignFolder
    from broker.replication.raft_log import CorruptRaftLog
    from broker.replication.store import Fatal
    from storage.format import CorruptLog
    from txn.metastore import MetaStoreError
    from txn.recovery import LostCommit

    return ForeignFolder, CorruptLog, CorruptRaftLog, Fatal, MetaStoreError, LostCommit


@main.command()
@click.argument("directory", metavar="DIR")
def check(directory: str) -> None:
    """Inspect a data folder without changing it; exits with 1 if something in it is damaged."""
    from storage.check import check_directory
    from storage.real_disk import RealDisk

    if not Path(directory).is_dir():
        raise click.ClickException(f"{directory} is not a folder")
    disk = RealDisk(directory, lambda callback, *args: callback(*args))
    damaged = 0
    for finding in check_directory(disk):
        damaged += finding.damaged
        click.echo(str(finding))
    if damaged:
        raise click.ClickException(f"{damaged} damaged file(s)")
