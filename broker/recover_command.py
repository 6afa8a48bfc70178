"""`sealog cluster recover-unsafe`: on the folder of a node that is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from broker.replication.member import RAFT_FOLDER
from broker.replication.raft_log import CorruptRaftLog
from broker.replication.store import Fatal
from broker.replication.unsafe_recovery import CannotRecover, Found, Recovery
from broker.scheduler import LoopScheduler
from storage.real_disk import LockHeld, RealDisk


def recover(data: str, say: Callable[[str], None], *, accept_data_loss: bool) -> None:
    """Raises ClickException for what cannot be, or was not confirmed."""
    if not Path(data).is_dir():
        raise click.ClickException(f"{data} is not a folder")
    loop = asyncio.new_event_loop()
    disk = RealDisk(data, loop.call_soon_threadsafe)
    try:
        lock = disk.lock("lock")
        try:
            recovery = Recovery(disk, LoopScheduler(loop), RAFT_FOLDER)
            try:
                for line in _warning(recovery.found):
                    say(line)
                if not accept_data_loss:
                    raise click.ClickException("nothing was changed. To do it: --accept-data-loss")
                say(recovery.carry_out(datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ")))
                say("Start it as before; it leads. Then add nodes with empty folders: sealog cluster add")
            finally:
                recovery.close()
        finally:
            lock.release()
    except LockHeld as error:
        raise click.ClickException(f"{data}: the node is running ({error}): stop it first") from error
    except (CannotRecover, CorruptRaftLog, Fatal, OSError) as error:
        raise click.ClickException(f"{data}: {error}") from error
    finally:
        disk.close()
        loop.close()


def _warning(found: Found) -> list[str]:
    return [
        f"node {found.node}: its log ends with entry {found.last_index} of term {found.last_term}; entries up to "
        f"{found.applied_index} were committed for certain",
        f"the members are {', '.join(str(node) for node in found.voters)}; without {found.others} it will be alone",
        "WHAT MAY BE LOST: every record, commit and abort that the others acknowledged and this log does not have;",
        "  transactions that were committed there may be aborted here, and offsets are given again.",
        "  What this log has and nobody had acknowledged yet becomes committed.",
        f"Nodes {found.others} must NEVER start again with the folders that they had: they could go on as another "
        "cluster.",
        "If more nodes are left, run this without --accept-data-loss on each: the highest (term, entry) has most.",
    ]
