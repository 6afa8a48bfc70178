"""`sealog serve --peers`: a node of a cluster on a real disk, a real loop and real sockets, until a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from broker.config import BrokerConfig, ConfigError, parse_address, parse_peers
from broker.leader_relay import LeaderRelay
from broker.node import Node
from broker.replication.folder import claim
from broker.replication.leader_placement import LeaderPlacement
from broker.replication.member import Member
from broker.replication.standby import Standby
from broker.replication.standby_view import StandbyView
from broker.replication.unsafe_recovery import notes
from broker.scheduler import LoopScheduler
from broker.server import Server
from raftish.config import Config
from raftish.datagram import Beat
from raftish.messages import Message
from raftish.transport import Transport
from storage.real_disk import RealDisk

log = logging.getLogger("sealog")

SECRET_VARIABLE = "SEALOG_CLUSTER_SECRET"
MIN_SECRET_BYTES = 16


def cluster_secret(config: BrokerConfig) -> bytes:
    """Raises ConfigError."""
    if config.cluster_secret_file:
        try:
            secret = Path(config.cluster_secret_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"the cluster's secret: {error}") from error
    else:
        secret = os.environ.get(SECRET_VARIABLE, "").encode()
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"a cluster needs a secret of {MIN_SECRET_BYTES} bytes at least, the same on all nodes: "
            f"cluster_secret_file, or ${SECRET_VARIABLE}"
        )
    return secret


class _Receiver:
    """Member and transport need each other."""

    member: Member

    def received(self, number: int, message: Message) -> None:
        self.member.received(number, message)

    def received_beats(self, peer: int, beats: Sequence[Beat]) -> None:
        self.member.received_beats(peer, beats)


async def serve_cluster(config: BrokerConfig, say: Callable[[str], None]) -> None:
    """Raises ConfigError, LockHeld, OSError, and what `Member` does."""
    loop = asyncio.get_running_loop()
    peers = parse_peers(config.peers)
    if config.node_id not in peers:
        raise ConfigError(f"node {config.node_id} is not among the peers {sorted(peers)}")
    secret = cluster_secret(config)
    data = Path(config.data).resolve()
    data.mkdir(parents=True, exist_ok=True)
    disk = RealDisk(str(data), loop.call_soon_threadsafe, flush_threads=config.flush_threads)
    lock = disk.lock("lock")
    stop = asyncio.Event()
    failure: list[Exception] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def fatal(error: Exception) -> None:
        failure.append(error)
        log.error("node %d cannot go on: %s", config.node_id, error)
        stop.set()

    def run_apart(work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        loop.run_in_executor(None, work).add_done_callback(lambda future: done(future.exception()))

    try:
        claim(disk, config.node_id)
        for line in notes(disk):
            log.warning("this folder was recovered without a majority: %s", line)
        receiver = _Receiver()
        transport = Transport(
            config.node_id,
            secret,
            time.time_ns(),
            receiver,
            secrets.token_bytes,
            random.random,
            report=lambda line: log.info("%s", line),
        )
        scheduler = LoopScheduler(loop)
        relay = LeaderRelay(lambda: member.leader_address())
        known = StandbyView(config.node_id, lambda: member.leader(), lambda: member.brokers())
        standby = Standby(config, scheduler, relay, known)
        server = Server(standby)

        def on_serve(node: Node) -> None:
            server.switch(node)
            assert node.cluster is not None
            # It ends with the node's leadership, as all that is on the node's scheduler.
            LeaderPlacement(node.store, node.cluster, node.scheduler, member.hand_over)
            say(f"node {config.node_id} leads, in epoch {node.term}")

        member = receiver.member = Member(
            config.node_id,
            peers,
            disk,
            scheduler,
            config,
            transport,
            random.random,
            uuid.uuid4,
            run_apart,
            on_serve=on_serve,
            on_standby=lambda: server.switch(standby),
            fatal=fatal,
            raft_config=Config(
                election_timeout_ms=config.election_timeout_ms,
                heartbeat_ms=config.election_timeout_ms / 8,
                retry_ms=config.election_timeout_ms / 2,
            ),
        )
        await transport.start(peers[config.node_id], peers)
        bound = await server.listen(*parse_address(config.listen))
        if config.advertised_listener is None:
            member.advertised = (parse_address(config.listen)[0], bound[1])
        else:
            member.advertised = parse_address(config.advertised_listener)
        member.start()
        say(f"sealog listens on {bound[0]}:{bound[1]}, data in {data}")
        say(f"node {config.node_id}, told of the nodes {sorted(peers)}")
        gc.collect()
        gc.freeze()
        gc.enable()
        await stop.wait()
        say("stopping")
        # Nobody is served any more: what is answered from here on would be half a broker's.
        await server.close()
        if not failure:
            stopped = loop.create_future()
            member.stop(lambda: stopped.set_result(None))
            await stopped
        relay.close()
        await transport.close()
        if failure:
            raise failure[0]
    finally:
        disk.close()
        lock.release()
        log.info("process %d is done", os.getpid())
