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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from broker.compaction_process import CompactionProcess
from broker.config import BrokerConfig, ConfigError, parse_address, parse_peers
from broker.leader_relay import LeaderRelay
from broker.node import Node
from broker.ranges.member import RangesMember
from broker.replication.folder import OF_RANGES, claim
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
from raftish.transport import Address, Transport
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

    member: Member | RangesMember

    def received(self, number: int, message: Message) -> None:
        self.member.received(number, message)

    def received_beats(self, peer: int, beats: Sequence[Beat]) -> None:
        self.member.received_beats(peer, beats)


class _Edges:
    """What a member of either kind is given of the world, and what it serves by."""

    def __init__(
        self, config: BrokerConfig, disk: RealDisk, secret: bytes, say: Callable[[str], None]
    ) -> None:
        self.config = config
        self.disk = disk
        self.say = say
        self.stop = asyncio.Event()
        self.failure: list[Exception] = []
        self.loop = asyncio.get_running_loop()
        self.scheduler = LoopScheduler(self.loop)
        self.receiver = _Receiver()
        self.transport = Transport(
            config.node_id,
            secret,
            time.time_ns(),
            self.receiver,
            secrets.token_bytes,
            random.random,
            report=lambda line: log.info("%s", line),
        )
        self.raft_config = Config(
            election_timeout_ms=config.election_timeout_ms,
            heartbeat_ms=config.election_timeout_ms / 8,
            retry_ms=config.election_timeout_ms / 2,
        )
        self.compaction = CompactionProcess(str(Path(config.data).resolve()))
        self.relay = LeaderRelay(lambda: self.receiver.member.leader_address())
        self.server: Server

    def fatal(self, error: Exception) -> None:
        self.failure.append(error)
        log.error("node %d cannot go on: %s", self.config.node_id, error)
        self.stop.set()

    def run_apart(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self.loop.run_in_executor(None, work).add_done_callback(lambda future: done(future.exception()))


def _member_of_one_disk(edges: _Edges, peers: Mapping[int, Address]) -> Member:
    """The leader's disk is replicated, through one group."""
    config = edges.config
    claim(edges.disk, config.node_id)
    for line in notes(edges.disk):
        log.warning("this folder was recovered without a majority: %s", line)
    known = StandbyView(config.node_id, lambda: member.leader(), lambda: member.brokers())
    standby = Standby(config, edges.scheduler, edges.relay, known)
    server = edges.server = Server(standby)

    def on_serve(node: Node) -> None:
        server.switch(node)
        assert node.cluster is not None
        # It ends with the node's leadership, as all that is on the node's scheduler.
        LeaderPlacement(node.store, node.cluster, node.scheduler, member.hand_over)
        edges.say(f"node {config.node_id} leads, in epoch {node.term}")

    member = Member(
        config.node_id,
        peers,
        edges.disk,
        edges.scheduler,
        config,
        edges.transport,
        random.random,
        uuid.uuid4,
        edges.run_apart,
        on_serve=on_serve,
        on_standby=lambda: server.switch(standby),
        fatal=edges.fatal,
        raft_config=edges.raft_config,
    )
    return member


def _member_of_ranges(edges: _Edges, peers: Mapping[int, Address]) -> RangesMember:
    """Each range is replicated through a group of its own."""
    config = edges.config
    claim(edges.disk, config.node_id, OF_RANGES)
    member = RangesMember(
        config.node_id,
        peers,
        edges.disk,
        edges.scheduler,
        config,
        edges.transport,
        random.random,
        uuid.uuid4,
        edges.relay,
        edges.compaction,
        on_ready=lambda: edges.say(f"node {config.node_id} takes part"),
        on_controller=lambda term: edges.say(f"node {config.node_id} leads, in epoch {term}"),
        fatal=edges.fatal,
        raft_config=edges.raft_config,
    )
    edges.server = Server(member.node)
    return member


async def serve_cluster(config: BrokerConfig, say: Callable[[str], None]) -> None:
    """Raises ConfigError, LockHeld, OSError, and what `Member` and `RangesMember` do."""
    peers = parse_peers(config.peers)
    if config.node_id not in peers:
        raise ConfigError(f"node {config.node_id} is not among the peers {sorted(peers)}")
    secret = cluster_secret(config)
    data = Path(config.data).resolve()
    data.mkdir(parents=True, exist_ok=True)
    loop = asyncio.get_running_loop()
    disk = RealDisk(str(data), loop.call_soon_threadsafe, flush_threads=config.flush_threads)
    lock = disk.lock("lock")
    try:
        edges = _Edges(config, disk, secret, say)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, edges.stop.set)
        of_ranges = config.groups == "ranges"
        member = edges.receiver.member = (
            _member_of_ranges(edges, peers) if of_ranges else _member_of_one_disk(edges, peers)
        )
        await edges.transport.start(peers[config.node_id], peers)
        bound = await edges.server.listen(*parse_address(config.listen))
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
        await edges.stop.wait()
        say("stopping")
        if isinstance(member, RangesMember) and not edges.failure:
            # While clients are served, so that they hear who leads now and no request of theirs is cut off.
            handed_over = loop.create_future()
            member.hand_all_over(lambda: handed_over.set_result(None))
            await handed_over
        # Nobody is served any more: what is answered from here on would be half a broker's.
        await edges.server.close()
        await edges.compaction.close()
        if not edges.failure:
            stopped = loop.create_future()
            member.stop(lambda: stopped.set_result(None))
            await stopped
        edges.relay.close()
        await edges.transport.close()
        if edges.failure:
            raise edges.failure[0]
    finally:
        disk.close()
        lock.release()
        log.info("process %d is done", os.getpid())
