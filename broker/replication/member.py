"""A node of a cluster without its sockets: takes part in the group, and runs the broker's node while it leads.

Disk, scheduler, network, randomness and another thread are handed in. `on_serve(node)` when clients may be served by
this node, `on_standby()` when they may not any more; `fatal` when this process has to end.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgpack

from broker.cluster_view import Broker
from broker.config import BrokerConfig
from broker.node import Node
from broker.replication.disk import ReplicatedDisk
from broker.replication.folder import make_dir_durable
from broker.replication.hard_state import HardStateFile
from broker.replication.life import Life
from broker.replication.raft_log import FileLog
from broker.replication.replica import GROUP, LogLimits, Replica
from broker.replication.store import Fatal, Store
from broker.replication.transfer import Fetch, Source
from broker.replication.view import View
from raftish.config import Config
from raftish.core import NotLeader, NotNow
from raftish.datagram import Beat
from raftish.host import GroupFailed, Host, Network
from raftish.membership import Membership
from raftish.messages import Message, Note
from storage.clock import Periodic, Scheduler
from storage.compaction_job import Job, JobDone
from storage.disk import Disk

log = logging.getLogger("sealog")

RAFT_FOLDER: Final = "raft"
HERE_MS: Final = 300
"""How often nodes tell each other where clients reach them."""
SILENT_MS: Final = 3000
"""Who was not heard for so long is away."""
NAMED_MS: Final = 60_000
"""Who was not heard for so long is not named to clients any more. librdkafka throws a node away that metadata do not
name, and by a race sends what comes next, elsewhere, before what it had under way to that node; it then gives other
batches in doubt a new epoch, and they are in the log twice. By its default, `socket.timeout.ms`, nothing is under way
after that time."""
STOP_PATIENCE_MS: Final = 3000

RunApart = Callable[[Callable[[], None], Callable[[BaseException | None], None]], None]
"""(work, done): runs `work` in another thread, then `done(error or None)` in a turn of the loop."""


class _NoCompaction:
    """A `broker.compactor.Worker`: another process would need the files under their own names."""

    def run(self, job: Job, done: JobDone) -> None:
        done(None)


class Member:
    """A `raftish.transport.Receiver`."""

    def __init__(
        self,
        node_id: int,
        peers: Sequence[int],
        disk: Disk,
        scheduler: Scheduler,
        config: BrokerConfig,
        network: Network,
        jitter: Callable[[], float],
        new_uuid: Callable[[], UUID],
        run_apart: RunApart,
        *,
        on_serve: Callable[[Node], None],
        on_standby: Callable[[], None],
        fatal: Callable[[Exception], None],
        raft_config: Config,
        limits: LogLimits = LogLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Blocks while it reads what is there. Raises OSError, `Fatal`, `CorruptRaftLog`."""
        self.node_id = node_id
        self.advertised = ("", 0)
        """Where clients reach this node; known once it listens."""
        self.node: Node | None = None
        self._peers = tuple(peers)
        self._scheduler = scheduler
        self._config = config
        self._network = network
        self._new_uuid = new_uuid
        self._run_apart = run_apart
        self._on_serve = on_serve
        self._on_standby = on_standby
        self._fatal = fatal
        self._heard: dict[int, tuple[Broker, int, bool]] = {}
        """Of each peer: where clients reach it, when that was heard, whether it leads."""
        make_dir_durable(disk, RAFT_FOLDER)
        self._hard_states = HardStateFile(disk, scheduler, f"{RAFT_FOLDER}/hard-state")
        self._limits = limits
        self._log = FileLog(disk, scheduler, f"{RAFT_FOLDER}/log", part_bytes=limits.part_bytes)
        self.store = Store(disk)
        self._host = Host(
            node_id,
            raft_config,
            scheduler,
            self._hard_states,
            network,
            jitter,
            tick_ms=raft_config.heartbeat_ms / 4,
        )
        self.replica: Replica | None = None
        self._fetch: Fetch | None = None
        self._source = Source(self.store, self._send_note)
        self._life: Life | None = None
        self._disk: ReplicatedDisk | None = None
        self._is_stopping = False
        self._here = Periodic(scheduler, HERE_MS, self._say_here)

    def start(self) -> None:
        if self.store.must_fetch:
            self._begin_fetch()
        else:
            self._join()

    # The group.

    def _join(self) -> None:
        replica = self.replica = Replica(
            self.node_id,
            self.store,
            self._log,
            self._scheduler,
            on_lead=self._lead,
            on_follow=self._follow,
            on_far_behind=self._far_behind,
            fatal=self._fatal,
            limits=self._limits,
        )
        members = [(self._log.first_index - 1, Membership(frozenset(self._peers)))]
        replica.group = self._host.add(GROUP, self._log, self._hard_states.current, members, replica)

    def _far_behind(self) -> None:
        """What this node needs is gone from the leader's log."""
        if self.replica is None or self._is_stopping:
            return
        log.warning("this node is too far behind the leader's log: it fetches the state")
        self.replica.close()
        self.replica = None
        self._host.remove(GROUP)
        try:
            self.store.begin_to_fetch()
        except OSError as error:
            self._fatal(error)
            return
        # What was written to log and hard state is durable before the group begins anew with it.
        self._hard_states.when_all_durable(
            lambda _: self._log.when_all_durable(lambda _: self._begin_fetch())
        )

    def _begin_fetch(self) -> None:
        self._fetch = Fetch(
            self.store,
            self._log,
            self._scheduler,
            self._send_note,
            leader=self._told_leader,
            done=self._fetched,
            failed=self._fatal,
        )
        self._fetch.start()

    def _fetched(self) -> None:
        log.warning("the state as of entry %d is here", self.store.index)
        self._fetch = None
        self._join()

    def _told_leader(self) -> int | None:
        leading = [(heard_ms, peer) for peer, (_, heard_ms, leads) in self._heard.items() if leads]
        return max(leading)[1] if leading else None

    # Leading.

    def _lead(self, term: int) -> None:
        assert self.replica is not None
        log.warning("node %d leads in term %d", self.node_id, term)
        life = self._life = Life(self._scheduler)
        disk = self._disk = self.replica.disk = ReplicatedDisk(
            self.store, life, self.replica.propose, on_lost=life.end
        )
        node = Node(
            disk,
            life,
            self._config,
            # Another leader's unflushed bytes are not here: as after a power cut, unless that one stopped cleanly.
            boot_id=self._new_uuid().hex,
            new_uuid=self._new_uuid,
            advertised=self.advertised,
            compaction_worker=_NoCompaction(),
            least_term=term,
        )
        node.cluster = View(
            self.node_id, self._peers, self.replica.group, self.brokers, self.here, self._scheduler
        )

        def ready(error: Exception | None) -> None:
            if life.is_over:
                return
            if error is not None:
                log.error("the node that leads cannot start: %s", error)
                return
            self.node = node
            self._on_serve(node)

        def started(error: BaseException | None) -> None:
            if life.is_over:
                return
            if error is not None and disk.failure is None:
                self._fatal(Fatal(f"the node that leads cannot start: {error!r}"))
                return
            if error is None:
                node.compactor.close()
            life.release()

        self._run_apart(lambda: _discard(node.start(ready)), started)

    def _follow(self) -> None:
        if self._life is not None:
            self._life.end()
            self._life = None
        if self._disk is not None:
            self._disk.fail(OSError(errno.EIO, "this node does not lead any more"))
            self._disk.close()
            self._disk = None
        if self.node is not None:
            log.warning("node %d does not lead any more", self.node_id)
            self.node = None
        self._on_standby()

    # What the network brings.

    def received(self, number: int, message: Message) -> None:
        if isinstance(message, Note):
            self._noted(message.source, message.payload)
        else:
            self._host.received(number, message)

    def received_beats(self, peer: int, beats: Sequence[Beat]) -> None:
        self._host.received_beats(peer, beats)

    def _send_note(self, peer: int, note: Sequence[Any]) -> None:
        payload: bytes = msgpack.packb(note)
        self._network.send(peer, [(GROUP, Note(self.node_id, peer, 0, payload))])

    def _noted(self, peer: int, payload: bytes) -> None:
        kind, *rest = msgpack.unpackb(payload)
        if kind == "here":
            host, port, rack, leads = rest
            self._heard[peer] = (Broker(peer, host, port, rack), self._scheduler.monotonic_ms(), leads)
        elif kind == "names?" and self.node is not None:
            self._source.asked_names(peer)
        elif kind == "part?" and self.node is not None:
            self._source.asked_part(peer, *rest)
        elif kind == "names" and self._fetch is not None:
            self._fetch.names(peer, *rest)
        elif kind == "part" and self._fetch is not None:
            self._fetch.part(peer, *rest)

    def _say_here(self) -> None:
        host, port = self.advertised
        if not port:
            return
        for peer in self._peers:
            if peer != self.node_id:
                self._send_note(
                    peer, ["here", host, port, self._config.broker_rack or None, self.node is not None]
                )

    # For those who serve clients.

    def here(self) -> set[int]:
        """Those that were heard lately, and this one."""
        since_ms = self._scheduler.monotonic_ms() - SILENT_MS
        return {
            self.node_id,
            *(peer for peer, (_, heard_ms, _) in self._heard.items() if heard_ms >= since_ms),
        }

    def brokers(self) -> list[Broker]:
        """Those that are named to clients, this one among them."""
        since_ms = self._scheduler.monotonic_ms() - NAMED_MS
        heard = [broker for broker, heard_ms, _ in self._heard.values() if heard_ms >= since_ms]
        here = Broker(self.node_id, *self.advertised, self._config.broker_rack or None)
        return sorted([here, *heard], key=lambda broker: broker.id)

    def leader_address(self) -> tuple[str, int] | None:
        """Where clients reach the leader; None where it is not known, or this node."""
        leader = self.replica.leader if self.replica is not None else self._told_leader()
        heard = self._heard.get(leader) if leader is not None else None
        return (heard[0].host, heard[0].port) if heard is not None else None

    def leader(self) -> tuple[int | None, int]:
        """(who leads, or None, the term)."""
        if self.replica is None:
            return self._told_leader(), -1
        return self.replica.leader, self.replica.group.raft.term

    def hand_over(self, target: int) -> None:
        """Let that node lead: the broker here stops cleanly, so that open transactions go on there.

        Where that node does not take over, this one leads on.
        """
        node, disk, life, replica = self.node, self._disk, self._life, self.replica
        if node is None or disk is None or life is None or replica is None or self._is_stopping:
            return
        self.node = None
        self._on_standby()

        def over() -> None:
            if self._life is life and replica.group.raft.is_leader and not self._is_stopping:
                self._follow()
                self._lead(replica.group.raft.term)

        node.stop(lambda _: disk.when_all_committed(lambda _: self._hand_over(over, target)))

    # The end.

    def stop(self, done: Callable[[], None]) -> None:
        """A leader's node stops cleanly, so that open transactions go on under the next leader; then a checkpoint."""
        self._is_stopping = True
        finished = False

        def finish() -> None:
            nonlocal finished
            if finished:
                return
            finished = True
            timer.cancel()
            self._here.close()
            self._host.close()
            if self._fetch is not None:
                self._fetch.close()
            done()

        timer = self._scheduler.call_later(STOP_PATIENCE_MS, finish)

        def checkpoint() -> None:
            if self.replica is None or self.replica.is_closed:
                finish()
            else:
                self.replica.checkpoint(finish)

        if self.node is None:
            checkpoint()
            return
        disk, node = self._disk, self.node
        assert disk is not None
        node.stop(lambda _: disk.when_all_committed(lambda _: self._hand_over(checkpoint)))

    def _hand_over(self, done: Callable[[], None], target: int | None = None) -> None:
        """Name the next leader, `target` or whoever has most, and wait until it is one."""
        group = self.replica.group if self.replica is not None else None
        leadership = group.raft.leadership if group is not None else None
        others: Mapping[int, Any] = leadership.progress if leadership is not None else {}
        best = max(
            ((progress.match, node) for node, progress in others.items() if node != self.node_id),
            default=None,
        )
        if group is None or best is None:
            done()
            return
        try:
            group.transfer(best[1] if target is None else target)
        except (NotLeader, NotNow, GroupFailed, ValueError) as error:
            log.info("leadership is not handed over: %s", error)
        waited = 0

        def look() -> None:
            nonlocal waited
            waited += 1
            if group.raft.is_leader and waited < 50:
                self._scheduler.call_later(20, look)
            else:
                done()

        look()


def _discard(_: object) -> None:
    """A start's report is the operator's of a single broker."""
