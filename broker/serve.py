"""`sealog serve`: a node on a real disk, a real loop and real sockets, until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import uvloop

from broker.allocator import keep_freed_memory
from broker.compaction_process import CompactionProcess
from broker.config import BrokerConfig, parse_address
from broker.node import Node
from broker.scheduler import LoopScheduler
from broker.server import Server
from storage.real_disk import RealDisk

log = logging.getLogger("sealog")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """What this boot of the kernel is called. Where nothing says so, every start counts as another boot: safe."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return str(uuid.uuid4())


def serve(config: BrokerConfig, say: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT; a clean stop then. `say` prints a line for the person who started it."""
    _allow_files()
    keep_freed_memory()
    if config.peers:
        # Not before: a broker alone is up sooner without what only a cluster needs.
        from broker.cluster_serve import serve_cluster

        uvloop.run(serve_cluster(config, say))
    else:
        uvloop.run(_serve(config, say))


def _allow_files() -> None:
    """As many open files as the system lets us have: each range keeps one open, and so does each connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(config: BrokerConfig, say: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    data = Path(config.data).resolve()
    data.mkdir(parents=True, exist_ok=True)
    disk = RealDisk(str(data), loop.call_soon_threadsafe, flush_threads=config.flush_threads)
    lock = disk.lock("lock")
    compaction = CompactionProcess(str(data))
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        host, port = parse_address(config.listen)
        advertised = parse_address(config.advertised_listener or config.listen)
        node = Node(
            disk,
            LoopScheduler(loop),
            config,
            boot_id=boot_id(),
            new_uuid=uuid.uuid4,
            advertised=advertised,
            compaction_worker=compaction,
        )
        ready: asyncio.Future[None] = loop.create_future()
        # A start makes objects and drops none: the collector would walk over all topics again and again, in vain.
        gc.disable()
        report = node.start(lambda error: ready.set_exception(error) if error else ready.set_result(None))
        await ready
        server = Server(node)
        bound = await server.listen(host, port)
        if config.advertised_listener is None:
            node.advertised = (advertised[0], bound[1])
        found = report.transactions
        say(f"sealog listens on {bound[0]}:{bound[1]}, data in {data}")
        say(
            f"start {report.term}: {len(node.topics)} topics, recovered transactions: {found.committed} committed, "
            f"{found.aborted + found.unknown} aborted, {found.resumed} still open"
        )
        # What lives after the start lives long: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        gc.enable()
        await stop.wait()
        say("stopping")
        await server.close()
        await compaction.close()
        stopped: asyncio.Future[None] = loop.create_future()
        node.stop(lambda _: stopped.set_result(None))  # a failed store has said so itself
        await stopped
    finally:
        disk.close()
        lock.release()
        log.info("process %d is done", os.getpid())
