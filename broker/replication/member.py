"""A node of a cluster without its sockets: takes part in the group, and runs the broker's node while it leads.

Disk, scheduler, network, randomness and another thread are handed in. `on_serve(node)` when clients may be served by
this node, `on_standby()` when they may not any more; `fatal` when this process has to end.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgpack

from broker.cluster_view import Broker
from broker.config import BrokerConfig
from broker.node import Node
from broker.node_registry import NodeRegistry
from broker.replication.arrival import Arrival
from broker.replication.disk import ReplicatedDisk
from broker.replication.folder import REMOVED_LINE, make_dir_durable, note_removed
from broker.replication.handover import hand_over
from broker.replication.hard_state import HardStateFile
from broker.replication.life import Life
from broker.replication.member_changes import MemberChanges
from broker.replication.neighbours import NAMED_MS, Address, Links, Neighbours
from broker.replication.raft_log import FileLog
from broker.replication.replica import GROUP, LogLimits, Replica, places_in_log
from broker.replication.store import Fatal, Store
from broker.replication.transfer import Fetch, Source
from broker.replication.view import View
from raftish.config import Config
from raftish.datagram import Beat
from raftish.entries import HardState
from raftish.host import Host
from raftish.membership import Membership
from raftish.messages import Message, Note
from storage.clock import Scheduler
from storage.compaction_job import Job, JobDone
from storage.disk import Disk

log = logging.getLogger("sealog")

RAFT_FOLDER: Final = "raft"
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
        peers: Mapping[int, Address],
        disk: Disk,
        scheduler: Scheduler,
        config: BrokerConfig,
        network: Links,
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
        self._scheduler = scheduler
        self._config = config
        self._new_uuid = new_uuid
        self._run_apart = run_apart
        self._on_serve = on_serve
        self._on_standby = on_standby
        self._fatal = fatal
        self._folder = disk
        make_dir_durable(disk, RAFT_FOLDER)
        self._hard_states = HardStateFile(disk, scheduler, f"{RAFT_FOLDER}/hard-state")
        self._limits = limits
        self._log = FileLog(disk, scheduler, f"{RAFT_FOLDER}/log", part_bytes=limits.part_bytes)
        if self._hard_states.is_new and self._log.last_index > 0:
            raise Fatal(
                "what this node promised is gone, though it took part: give it an empty folder, it fetches the state"
            )
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
        self._neighbours = Neighbours(
            node_id,
            peers,
            network,
            scheduler,
            logged=lambda: self.store.peers,
            members=self._members,
            words=self._words,
        )
        self._arrival = Arrival(
            node_id,
            self.store,
            self._neighbours,
            has_entries=self._has_entries,
            join=self._join,
            fetch=self._begin_fetch,
            fatal=fatal,
        )
        self._source = Source(self.store, self._neighbours.say)
        self._life: Life | None = None
        self._disk: ReplicatedDisk | None = None
        self._is_stopping = False

    def start(self) -> None:
        self._arrival.start(knows_a_group=self.store.members is not None or self._log.last_index > 0)
        self._neighbours.turn()

    # Who belongs here.

    def _has_entries(self) -> bool:
        return self.replica is not None and self.replica.group.raft.log.last_index > 0

    def _heard_gone(self, index: int) -> None:
        """The leader says that this node is no member, as of that entry."""
        if self._is_stopping or self.replica is None:
            return
        if index > self.replica.group.raft.memberships.index:
            self._removed()

    def _removed(self) -> None:
        self._is_stopping = True
        try:
            note_removed(self._folder)
        except OSError as error:
            log.warning("that this node was removed could not be noted: %s", error)
        self._fatal(Fatal(REMOVED_LINE))

    def _members(self) -> Collection[int] | None:
        """All that belong to the group, so far as is known here."""
        if self.replica is not None:
            return tuple(self.replica.group.raft.membership)
        return tuple(self.store.members[1]) if self.store.members is not None else None

    def _words(self) -> list[list[Any]]:
        """What this node says of itself."""
        words = self._arrival.words()
        host, port = self.advertised
        if port and self._members() is not None:
            words.append(["here", host, port, self._config.broker_rack or None, self.node is not None])
        return words

    # The group.

    def _join(self) -> None:
        self._neighbours.also = {}
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
        if self.store.members is None:
            # A folder of before members were kept in it: they are those that it was always started with.
            told = Membership(frozenset(self._neighbours.told))
            self.store.members = (self._log.first_index - 1, told)
        known = [self.store.members, *self._log.members_after(self.store.members[0])]
        self._neighbours.hints = places_in_log(self._log, self.store.index)
        replica.group = self._host.add(GROUP, self._log, self._hard_states.current, known, replica)
        if self.node_id not in known[-1][1] and known[-1][0] <= self.store.index:
            self._removed()

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
            self._neighbours.say,
            leader=self._neighbours.leader,
            done=self._fetched,
            failed=self._fatal,
        )
        self._fetch.start()

    def _fetched(self) -> None:
        log.warning("the state as of entry %d is here", self.store.index)
        self._fetch = None
        leader = self._neighbours.leader()
        if self.store.term > self._hard_states.current.term:
            # A node that lost its disk may have voted in that term: who leads in it had the vote.
            try:
                self._hard_states.write(GROUP, HardState(self.store.term, leader))
            except OSError as error:
                self._fatal(error)
                return
        self._hard_states.when_all_durable(
            lambda error: self._fatal(error) if error is not None else self._join()
        )

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
        group = self.replica.group
        node.cluster = View(self.node_id, group, self.brokers, self.here, self._scheduler)

        def ready(error: Exception | None) -> None:
            if life.is_over:
                return
            if error is not None:
                log.error("the node that leads cannot start: %s", error)
                return
            self.node = node
            registry = NodeRegistry(node.store, life.now_ms)
            MemberChanges(self, group, self._neighbours, registry, life)
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
        self._neighbours.also = {}
        self._on_standby()

    # What the network brings.

    def received(self, number: int, message: Message) -> None:
        if isinstance(message, Note):
            self._noted(message.source, message.payload)
        else:
            self._host.received(number, message)

    def received_beats(self, peer: int, beats: Sequence[Beat]) -> None:
        self._host.received_beats(peer, beats)

    def _noted(self, peer: int, payload: bytes) -> None:
        kind, *rest = msgpack.unpackb(payload, strict_map_key=False)
        if kind == "here":
            host, port, rack, leads = rest
            self._neighbours.heard_here(peer, Broker(peer, host, port, rack), leads=leads)
        elif kind == "new":
            self._arrival.heard_new(peer, *rest)
        elif kind == "old":
            self._arrival.heard_old(*rest)
        elif kind == "met":
            self._arrival.heard_met(*rest)
        elif kind == "gone":
            self._heard_gone(*rest)
        elif kind == "names?" and self.node is not None:
            self._source.asked_names(peer)
        elif kind == "part?" and self.node is not None:
            self._source.asked_part(peer, *rest)
        elif kind == "names" and self._fetch is not None:
            self._fetch.names(peer, *rest)
        elif kind == "part" and self._fetch is not None:
            self._fetch.part(peer, *rest)

    # For those who serve clients.

    def here(self) -> set[int]:
        """Those that were heard lately, and this one."""
        return {self.node_id, *self._neighbours.here()}

    def brokers(self) -> list[Broker]:
        """The members that are named to clients, and this one."""
        members = self._members() or self._neighbours.told
        named = {node: broker for node, broker in self._neighbours.here(NAMED_MS).items() if node in members}
        named[self.node_id] = Broker(self.node_id, *self.advertised, self._config.broker_rack or None)
        return [named[node] for node in sorted(named)]

    def leader_address(self) -> tuple[str, int] | None:
        """Where clients reach the leader; None where it is not known, or this node."""
        leader = self.replica.leader if self.replica is not None else self._neighbours.leader()
        found = self._neighbours.broker(leader) if leader is not None else None
        return (found.host, found.port) if found is not None else None

    def leader(self) -> tuple[int | None, int]:
        """(who leads, or None, the term)."""
        if self.replica is None:
            return self._neighbours.leader(), -1
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

        node.stop(
            lambda _: disk.when_all_committed(
                lambda _: hand_over(replica.group, target, self._scheduler, over)
            )
        )

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
            self._neighbours.close()
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
        group = self.replica.group if self.replica is not None else None
        node.stop(
            lambda _: disk.when_all_committed(lambda _: hand_over(group, None, self._scheduler, checkpoint))
        )


def _discard(_: object) -> None:
    """A start's report is the operator's of a single broker."""
