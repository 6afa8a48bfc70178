"""A node of a cluster whose ranges have groups of their own, without its sockets: docs/raft.md, section 8.

    ALONE -> JOINED        it takes part once all nodes of a new cluster have met (`founding`)

Disk, scheduler, network and randomness are handed in. `on_ready` when it takes part; `fatal` when this process has to
end. One host drives all groups; notes between nodes carry who leads what, snapshots of the metadata, and requests to
hand a range over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgpack

from broker.cluster_view import NOBODY, Broker
from broker.compactor import Worker
from broker.config import BrokerConfig
from broker.ranges.arrival import Arrival
from broker.ranges.compaction import RangeCompactor
from broker.ranges.controller import Controller
from broker.ranges.hosting import Hosting
from broker.ranges.leaders import Leaders
from broker.ranges.leaderships import Leaderships
from broker.ranges.log_starts import LogStarts, note_of
from broker.ranges.member_changes import MetadataMembers
from broker.ranges.moving import Moving
from broker.ranges.node import RangesNode
from broker.ranges.record_watch import RecordWatch
from broker.ranges.records import RangeRecord
from broker.ranges.retention import RangeRetention
from broker.ranges.settings import FollowedSettings
from broker.ranges.topics import RangeTopics
from broker.ranges.transactions import RangeTransactions
from broker.ranges.view import RangesView
from broker.replication.folder import make_dir_durable
from broker.replication.hard_states import HardStateTable
from broker.replication.life import Life
from broker.replication.metadata_group import METADATA_GROUP, MetadataGroup
from broker.replication.neighbours import NAMED_MS, Address, Links, Neighbours
from broker.replication.standby import Relay
from broker.replication.store import Fatal
from raftish.config import Config
from raftish.datagram import Beat
from raftish.host import Group, Host
from raftish.membership import Membership
from raftish.messages import Message, Note
from storage.clock import Paced, Scheduler
from storage.disk import Disk
from storage.replica import RangeReplica
from txn import keys
from txn.metastore import MetaStore, Options, StoreFailed

log = logging.getLogger("sealog")

METADATA_FOLDER: Final = "raft/metadata"
HARD_STATES: Final = "raft/hard-states"
LOOK_MS: Final = 10
"""How often the controller looks, at most, whether topics that it makes have come to be."""
LEADS_AGAIN_TURNS: Final = 10
"""Who leads what is said when it changes, and in every so many of the turns in which a node says where it is."""


class RangesMember:
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
        relay: Relay,
        compaction_worker: Worker,
        *,
        on_ready: Callable[[], None],
        on_controller: Callable[[int], None],
        fatal: Callable[[Exception], None],
        raft_config: Config,
    ) -> None:
        """Blocks while it reads what is there. `on_controller(term)`: this node leads the metadata. Raises OSError,
        `Fatal`, `CorruptRaftLog`, `CorruptStore`."""
        self.node_id = node_id
        self.advertised = ("", 0)
        """Where clients reach this node; known once it listens."""
        self._scheduler = scheduler
        self._config = config
        self._new_uuid = new_uuid
        self._on_ready = on_ready
        self._on_controller = on_controller
        self._fatal = fatal
        self._disk = disk
        self._told = dict(peers)
        make_dir_durable(disk, METADATA_FOLDER)
        make_dir_durable(disk, "ranges")
        self._arrival = Arrival(
            node_id,
            list(peers),
            disk,
            lambda: new_uuid().int >> 72,
            join=self._join,
            has_nothing=lambda: not self.metadata.replicated.applied_lsn,
            fatal=fatal,
        )
        self._hard_states = HardStateTable(disk, scheduler, HARD_STATES)
        self.host = Host(
            node_id,
            raft_config,
            scheduler,
            self._hard_states,
            network,
            jitter,
            tick_ms=raft_config.heartbeat_ms / 4,
        )
        self._neighbours = Neighbours(
            node_id,
            peers,
            network,
            scheduler,
            logged=self._places_on_record,
            members=self._members,
            words=self._words,
        )
        self._arrival.neighbours = self._neighbours
        self._neighbours.hints = self._arrival.places
        self.metadata = MetadataGroup(
            node_id,
            disk,
            scheduler,
            METADATA_FOLDER,
            keys.SCHEMA,
            send=lambda peer, note: self._neighbours.say(peer, ["metadata", list(note)]),
            on_lead=self._lead,
            on_follow=self._follow,
            fatal=fatal,
            options=Options(snapshot_log_bytes=config.snapshot_log_bytes, written_is_durable=True),
        )
        if self._hard_states.is_new and (self.metadata.log.last_index or disk.list("ranges")):
            raise Fatal(
                "what this node promised is gone, though it took part: its folder must not be used any more"
            )
        self.leaders = Leaders()
        self._turns = 0
        self.topics = RangeTopics(config, self._replica_of)
        self.hosting = Hosting(
            node_id,
            disk,
            scheduler,
            self.host,
            self._hard_states,
            log_config=self.topics.log_config,
            on_open=self._opened,
            on_gone=self.topics.gone,
            on_progress=self._progressed,
            on_transactional=lambda group, batches: self.transactions.committed(group, batches),
            on_leader=self._leader_changed,
            on_end=self._ended,
            fatal=fatal,
            send=lambda peer, note: self._neighbours.say(peer, ["range", note]),
        )
        self.log_starts = LogStarts(
            scheduler,
            self.topics,
            self.hosting.replica_of,
            self.hosting.front_of,
            lambda *wish: self._wish_log_starts(*wish),
        )
        self._retention = RangeRetention(
            scheduler,
            self.topics,
            self.hosting,
            self.log_starts,
            interval_ms=config.retention_check_interval_ms,
        )
        self.view = RangesView(
            node_id,
            scheduler,
            self.topics,
            self.hosting,
            self.leaders,
            named=self.brokers,
            here=self.here,
            metadata=lambda: self._metadata_group,
            default_replication_factor=config.default_replication_factor,
        )
        self.transactions = RangeTransactions(
            node_id,
            scheduler,
            self.topics,
            self.view,
            say=lambda node, words: self._neighbours.say(node, ["transactions", words]),
            metadata=lambda: self.metadata.view,
            nodes=self._members,
            first_number=new_uuid().int >> 76,
        )
        self._looks = Paced(scheduler, LOOK_MS, self._look)
        self._compactor = RangeCompactor(
            scheduler,
            self.topics,
            self.hosting,
            compaction_worker,
            self.transactions.outcomes.resolved,
            interval_ms=config.compaction_interval_ms,
            max_keys=config.limits.compaction_keys,
        )
        self.leaderships = Leaderships(
            node_id,
            scheduler,
            self.hosting,
            self.view,
            self.leaders,
            self._neighbours.say,
            metadata=lambda: self.metadata if self._metadata_group is not None else None,
            controller=lambda: self._controller,
            members=lambda: self._members() or (),
            look=self._looks.wake,
        )
        self.moving = Moving(
            node_id,
            self.hosting,
            scheduler,
            leader_of=lambda group: self.view.of_group(group).leader,
            here=self.here,
            say=self._neighbours.say,
            came=self.leaderships.changed,
            dropped=self._tell_dropped,
            hand_over=self.leaderships.hand_over,
        )
        self._settings = FollowedSettings(config, self._reconfigured)
        self.node = RangesNode(
            self._settings.settings,
            scheduler,
            self.topics,
            self.view,
            relay,
            self._cluster_id,
            self.log_starts,
            self.transactions.admissions,
        )
        self._records = RecordWatch(
            self.topics,
            self.hosting,
            self.moving,
            on_gone=self._range_is_gone,
            on_settled=self._looks.wake,
        )
        self._metadata_group: Group | None = None
        self._named_by_record_until_ms = scheduler.monotonic_ms() + NAMED_MS
        self._life: Life | None = None
        self._controller: Controller | None = None
        """From when it has taken over on; it serves when that is durable."""
        self._is_stopping = False

    def start(self) -> None:
        """Raises OSError, `Fatal`."""
        self.hosting.start()
        if self._arrival.is_done:
            self._join()
        self._neighbours.turn()

    # Coming in.

    def _join(self) -> None:
        if METADATA_GROUP not in self._hard_states:
            self._hard_states.add(METADATA_GROUP, 0)
        self._hard_states.when_all_durable(self._joined)

    def _joined(self, error: Exception | None) -> None:
        if error is not None:
            self._fatal(error)
            return
        state = self._hard_states.state(METADATA_GROUP)
        self.metadata.join(self.host, state, Membership(frozenset(self._arrival.founding.peers)))
        self._metadata_group = self.metadata.group
        view = self.metadata.view
        self._settings.watch(view)
        self._records.watch(view)
        self.transactions.watch(view)
        self.log_starts.watch(view)
        view.watch(lambda _: self._arrival.note_places(self._places_on_record()), prefix=keys.NODES)
        self._on_ready()
        # Where clients reach it: who is not heard is placed nothing on.
        self._neighbours.turn()

    # The ranges.

    def _reconfigured(self, config: BrokerConfig) -> None:
        self.topics.reconfigure(config)
        if self.node.controller is not None:
            self.node.controller.reconfigure()

    def _range_is_gone(self, group: int, record: RangeRecord | None) -> None:
        self.leaderships.forget(group)
        if self.node.controller is not None:
            self.node.controller.forget_range(group, record)

    def _look(self) -> None:
        if self.node.controller is not None:
            self.node.controller.topics.look()
            self.node.controller.layouts.look()

    def _replica_of(self, group: int) -> RangeReplica | None:
        return self.hosting.replica_of(group)

    def _opened(self, group: int) -> None:
        self.topics.opened(group)
        self.log_starts.opened(group)
        self.moving.touch(group)

    def _ended(self, group: int) -> None:
        """Its leader tells the controller of it."""
        self.leaderships.changed([group])
        self._looks.wake()

    def _progressed(self, group: int, partitions: Iterable[int]) -> None:
        self.log_starts.progressed(group)
        self.topics.progressed(group, partitions)

    def _wish_log_starts(self, topic: str, topic_id: bytes, offsets: dict[int, int]) -> None:
        leader = self.view.controller()
        if leader == self.node_id:
            self._wished_log_starts(topic, topic_id, offsets)
        elif leader != NOBODY:
            self._neighbours.say(leader, note_of(topic, topic_id, offsets))

    def _wished_log_starts(self, topic: str, topic_id: bytes, offsets: dict[int, int]) -> None:
        if self.node.controller is not None:
            self.node.controller.record_log_starts(topic, topic_id, offsets)

    def _leader_changed(self, group: int) -> None:
        self.topics.wake(group)
        self.moving.touch(group)
        self.leaderships.changed([group])
        self._looks.wake()

    def _cluster_id(self) -> str:
        record = self.metadata.view.get(keys.NODE)
        return str(record.value["cluster_id"]) if record is not None else ""

    # Leading the metadata.

    def _lead(self, store: MetaStore, term: int) -> None:
        if self._is_stopping:
            return
        life = self._life = Life(self._scheduler)
        life.release()
        self._lead_all(store, term, life)

    def _lead_all(self, store: MetaStore, term: int, life: Life) -> None:
        """Once all topics that are on record are known here: what a transaction wrote to another one is gone."""
        if not (self.topics.knows_all(store) and store.takes()):
            life.call_later(1, self._lead_all, store, term, life)
            return
        try:
            controller = Controller(
                store,
                term,
                life,
                self._settings.settings,
                self.topics,
                self.view,
                members=self._voters,
                peer_address=self._peer_address,
                hand_over=self.leaderships.ask_to_hand_over,
                new_uuid=self._new_uuid,
                participants=self.transactions.participants(life),
                settlement=self.transactions.settlement(store, life),
                confirm=self.metadata.confirm,
            )
        except StoreFailed as error:
            log.info("the metadata cannot be led: %s", error)
            life.end()
            self._life = None
            return
        self._controller = controller
        store.when_durable(
            controller.taken_over_lsn, lambda error: self._serve(controller, life, store, error)
        )

    def _serve(self, controller: Controller, life: Life, store: MetaStore, error: Exception | None) -> None:
        """What it took over is committed."""
        if error is not None or life.is_over:
            return
        self.transactions.lead(controller)
        self.node.serve_as(controller)
        assert self._metadata_group is not None
        MetadataMembers(
            self, self._metadata_group, self._neighbours, controller.registry, life, store, self._arrival
        )
        self._on_controller(controller.term)

    def _follow(self) -> None:
        if self._life is not None:
            self.node.serve_as(None)
            self.transactions.follow(self._life)
            self._life.end()
            self._life = self._controller = None
            self._neighbours.also = {}

    def hand_over(self, target: int) -> None:
        """The metadata: it leads it no more."""
        self.leaderships.hand_over(METADATA_GROUP, target)

    def _peer_address(self, node: int) -> str:
        return self._neighbours.places([node]).get(node, "")

    # What the network brings.

    def received(self, number: int, message: Message) -> None:
        if isinstance(message, Note):
            self._noted(message.source, message.payload)
        else:
            self.host.received(number, message)

    def received_beats(self, peer: int, beats: Sequence[Beat]) -> None:
        self.host.received_beats(peer, beats)

    def _noted(self, peer: int, payload: bytes) -> None:
        kind, *rest = msgpack.unpackb(payload, strict_map_key=False)
        if kind == "here":
            host, port, rack, leads = rest
            self._neighbours.heard_here(peer, Broker(peer, host, port, rack), leads=leads)
        elif kind == "founding":
            self._arrival.heard_founding(peer, *rest)
        elif kind in ("new", "met", "places"):
            self._arrival.noted(kind, peer, rest)
        elif kind == "gone":
            self._heard_gone(*rest)
        elif kind == "metadata" and self._metadata_group is not None:
            self.metadata.heard(peer, rest[0])
        elif kind == "leads":
            self.leaderships.heard(peer, rest[0])
        elif kind == "led":
            self.leaderships.heard_some(peer, *rest)
        elif kind == "transactions":
            self.transactions.heard(peer, rest[0])
        elif kind == "range":
            self.hosting.heard(peer, rest[0])
        elif kind == "log starts":
            self._wished_log_starts(*rest)
        elif kind == "hand over":
            self.leaderships.hand_over(*rest)
        elif kind == "dropped":
            self._heard_dropped(peer, *rest)
        elif kind in ("member?", "no member"):
            self.moving.noted(kind, peer, rest)

    def _members(self) -> Collection[int] | None:
        group = self._metadata_group
        return tuple(group.raft.membership) if group is not None else None

    def _voters(self) -> Collection[int]:
        group = self._metadata_group
        return group.raft.membership.voters if group is not None else ()

    def _places_on_record(self) -> dict[int, str]:
        """Where nodes are reached, as the metadata says."""
        return {
            keys.parse_cluster_node(key): record.value["peer"]
            for key, record in self.metadata.view.scan(keys.NODES)
            if record.value["peer"]
        }

    def _words(self) -> list[list[Any]]:
        """What this node says of itself, again and again."""
        self._turns += 1
        words = self._arrival.words(again=self._turns % LEADS_AGAIN_TURNS == 1 or self._is_alone())
        host, port = self.advertised
        if port and not self._arrival.is_coming:
            words.append(["here", host, port, self._config.broker_rack or None, self._leads_metadata()])
        if self._turns % LEADS_AGAIN_TURNS == 0:
            words.append(self.leaderships.words())
            if self._leads_metadata():
                words.append(["places", self._neighbours.places(self._members() or ())])
        if self._metadata_group is not None:
            # What is applied by now is told in a later turn: no record may be missed because its news is under way.
            self._scheduler.call_soon(self.hosting.viewed, self.metadata.replicated.applied_lsn)
        return words

    def _is_alone(self) -> bool:
        """Nobody may have heard yet that this cluster has begun."""
        return self._metadata_group is None or self._metadata_group.leader is None

    def _leads_metadata(self) -> bool:
        return self._metadata_group is not None and self._metadata_group.raft.is_leader

    def _tell_dropped(self, group: int) -> None:
        controller = self.view.controller()
        if controller == self.node_id:
            self._heard_dropped(self.node_id, group)
        elif controller != NOBODY:
            self._neighbours.say(controller, ["dropped", group])

    def _heard_dropped(self, peer: int, group: int) -> None:
        if self.node.controller is not None:
            self.node.controller.placement.moves.dropped(group, peer)

    # For those who serve clients.

    def here(self) -> set[int]:
        """Those that were heard lately, and this one."""
        return {self.node_id, *self._neighbours.here()}

    def brokers(self) -> list[Broker]:
        """The members that are named to clients, and this one. Whom a node that has just started did not hear yet is
        where the records have it."""
        members = self._members() or self._told
        named = {node: broker for node, broker in self._neighbours.here(NAMED_MS).items() if node in members}
        if self._scheduler.monotonic_ms() < self._named_by_record_until_ms:
            named = {**self._on_record(members), **named}
        named[self.node_id] = Broker(self.node_id, *self.advertised, self._config.broker_rack or None)
        return [named[node] for node in sorted(named)]

    def _on_record(self, members: Iterable[int]) -> dict[int, Broker]:
        found = {}
        for node in members:
            record = self.metadata.view.get(keys.cluster_node(node))
            host, _, port = record.value["address"].rpartition(":") if record is not None else ("", "", "")
            if record is not None and port:
                found[node] = Broker(node, host, int(port), record.value["rack"] or None)
        return found

    def leader_address(self) -> tuple[str, int] | None:
        """Where clients reach the metadata's leader; None where it is not known, or this node."""
        leader = self.view.controller()
        found = self._neighbours.broker(leader) if leader != self.node_id else None
        return (found.host, found.port) if found is not None else None

    # The end.

    def _heard_gone(self, index: int) -> None:
        """The metadata's leader says that this node is no member, as of that entry."""
        group = self._metadata_group
        if self._is_stopping or group is None or index <= group.raft.memberships.index:
            return
        self._is_stopping = True
        self.leaderships.close()
        self._arrival.end()

    def hand_all_over(self, done: Callable[[], None]) -> None:
        """Other nodes lead: nobody waits for an election, transactions go on. This one leads nothing again."""
        self._is_stopping = True
        for group in self.host.groups.values():
            group.raft.may_stand = False
        self.leaderships.hand_all_over(done)

    def stop(self, done: Callable[[], None]) -> None:
        """Leaders are handed over; then all is flushed."""

        def over() -> None:
            self.leaderships.close()
            self._follow()
            self._close(done)

        self.hand_all_over(over)

    def _close(self, done: Callable[[], None]) -> None:
        self._retention.close()
        self._compactor.close()
        self.log_starts.close()
        self._neighbours.close()
        self.moving.close()
        self._looks.close()
        self.host.close()
        self.hosting.close()
        self.metadata.close()
        done()
