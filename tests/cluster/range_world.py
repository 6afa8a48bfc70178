"""Nodes whose group's log is a real range on a simulated disk: what clients, power cuts and cut links make of it.

Everything is in virtual time and from one seed. The world keeps its own account: of every batch that was acknowledged,
of every byte that was ever readable below a high watermark, and of what each device must hold (by `Checker`, which
knows raft alone, and `Recovered`, which knows what a power cut may leave).
"""

from __future__ import annotations

import random
import uuid
from collections import deque

from broker.replication.range_group import RangeGroup
from raftish import membership as members
from raftish.config import Config
from raftish.core import NotLeader, NotNow
from raftish.entries import Entry, HardState
from raftish.host import GroupFailed, Host
from raftish.membership import Change, ChangeRefused, Membership, Step
from raftish.messages import AppendRequest
from storage.cache import SegmentCache
from storage.check import check_directory
from storage.layout import LogConfig, RangeHooks, RangeIdentity
from storage.producers import ProducerBudget, ProducerStates
from storage.replica_recovery import ANY_TERM, ReplicaRecovery, create_replica, open_replica
from tests.raftish.checker import Checker, require
from tests.raftish.file_log import FileHardStates
from tests.raftish.world import Disk as Device
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimScheduler
from wire.batch import TRANSACTIONAL_BIT, parse_header, validate_produced
from wire.errors import ErrorCode, KafkaError
from wire.records import Record, build_batch

TOPIC = uuid.UUID("6f0c1b5e-0000-4000-8000-0000000000bb")
FOLDER = "topics/t/0"
PARTITIONS = 3
LIMITS = Config(
    election_timeout_ms=100,
    heartbeat_ms=25,
    retry_ms=60,
    max_message_bytes=600,
    max_inflight_messages=4,
    max_inflight_bytes=3000,
    max_uncommitted_bytes=4000,
)
LOG = LogConfig(
    segment_bytes=2500,
    run_bytes=300,
    preallocate_first_bytes=512,
    preallocate_max_bytes=2048,
    checkpoint_bytes=700,
    close_checkpoint_bytes=300,
    footer_step_bytes=256,
    max_batch_bytes=5000,
)
GROUP = 1
RETRY = {ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error}


class Clock:
    """A node's scheduler in one of its lives: nothing happens while it is paused, nor after it is dead."""

    def __init__(self, world):
        self.alive = True
        self.paused_until = 0.0
        self._world = world
        self._ready = deque()

    def now_ms(self):
        return self._world.scheduler.now_ms()

    def monotonic_ms(self):
        return self._world.scheduler.monotonic_ms()

    def call_soon(self, callback, *args):
        self._ready.append((callback, args))
        self._world.scheduler.call_soon(self._next)

    def call_later(self, delay_ms, callback, *args):
        return self._world.scheduler.call_later(delay_ms, self.call_soon, callback, *args)

    def _next(self):
        if not self.alive:
            return
        wait_ms = self.paused_until - self._world.now
        if wait_ms > 0:
            self._world.scheduler.call_later(wait_ms, self._next)
            return
        callback, args = self._ready.popleft()
        callback(*args)


class Node:
    def __init__(self, name, device):
        self.name = name
        self.device = device
        """What must be on the disk, as the core was told."""
        self.disk = SimDisk()
        self.clock = None
        self.host = None
        self.range = None
        self.flush_ms = 3.0
        self.heard = []

    @property
    def replica(self):
        return self.range.replica

    @property
    def raft(self):
        return self.range.group.raft

    @property
    def awake(self):
        return self.host is not None and self.range.group.failure is None


class World:
    def __init__(self, seed, voters=3, *, log=LOG):
        self.seed = seed
        self.rng = random.Random(seed)
        self.scheduler = SimScheduler(start_ms=1_000_000, seed=seed)
        self.log = log
        self.membership = Membership(frozenset(range(1, voters + 1)))
        self.nodes = {name: Node(name, Device(self.membership)) for name in sorted(self.membership.voters)}
        devices = {node.name: node.device for node in self.nodes.values()}
        self.checker = Checker(devices, LIMITS.election_timeout_ms, 20)
        self.blocked = set()
        self.drop = self.duplicate = 0.0
        self.delay_ms = 2.0
        self.segment_ids = 1
        self.readable = [{} for _ in range(PARTITIONS)]
        """Per partition, base offset -> (end offset, bytes) of all that was ever below a high watermark."""
        self.clients = [Client(self, number) for number in range(6)]
        self.counts = {"truncations": 0, "rolls undone": 0, "recoveries": 0, "reads": 0}
        self.faulty = False
        for node in self.nodes.values():
            self.create(node)
        self._tick_reads()

    @property
    def now(self):
        return self.scheduler._now_ms

    def later(self, delay_ms, callback, *args):
        self.scheduler.call_later(delay_ms, callback, *args)

    # Nodes.

    def allocate(self):
        self.segment_ids += 1
        return self.segment_ids

    def hooks(self):
        def publish(event, done):
            raise AssertionError("a replica rolls by entries")

        return RangeHooks(self.allocate, publish)

    def create(self, node):
        made = []
        node.disk.scheduler = self.scheduler
        create_replica(
            node.disk,
            self.scheduler,
            lambda log, error: made.append(log),
            directory=FOLDER,
            topic_id=TOPIC,
            first=0,
            last=PARTITIONS - 1,
            segment_id=1,
            created_ms=1,
            members=members.encode(self.membership),
            hooks=self.hooks(),
            config=self.log,
        )
        self.scheduler.run_until(lambda: made)
        made[0].close()
        self.start(node)

    def open(self, node, scheduler):
        return open_replica(
            node.disk,
            scheduler,
            directory=FOLDER,
            topic_id=TOPIC,
            first=0,
            last=PARTITIONS - 1,
            hooks=self.hooks(),
            config=self.log,
            cache=SegmentCache(max_files=2, max_runs=40),
        )

    def start(self, node):
        clock = node.clock = Clock(self)
        node.disk.scheduler = clock
        node.disk.flush_delay_ms = lambda path: node.flush_ms * self.rng.random() * 2
        hard_states = FileHardStates(node.disk, clock, "hard-states")
        replica, _ = self.open(node, clock)
        replica._drop_child = self._counted(replica._drop_child)
        hard_state = hard_states.found.get(GROUP, HardState(0, None))
        self._recovered(node, replica, hard_state)
        node.host = Host(
            node.name, LIMITS, clock, hard_states, Wire(self, node.name), self.rng.random, tick_ms=10
        )
        self.checker.restarted(node.name, clock.monotonic_ms())
        if replica.commit_index:
            self.checker.commit(node.name, replica.commit_index, hard_state.term, leads=False)
        node.range = self.range_group(node, replica)
        group = node.range.join(node.host, GROUP, hard_state)
        self._watch(node, group.raft)

    def range_group(self, node, replica):
        return RangeGroup(node.name, replica)

    def _counted(self, drop_child):
        def counted(rolled):
            self.counts["rolls undone"] += 1
            drop_child(rolled)

        return counted

    def _watch(self, node, raft):
        take_output, persisted = raft.take_output, raft.persisted
        node.heard.clear()

        def taken():
            output = take_output()
            if output.truncate_from is not None:
                self.counts["truncations"] += 1
            self.checker.output(node.name, raft, output, node.clock.monotonic_ms())
            # What it answered in this turn may have been answered before it heard the last of this.
            for heard in node.heard:
                self.checker.delivered(*heard)
            node.heard.clear()
            if output.seq:
                node.device.pending.append(output)
            return output

        def settled(seq, now_ms):
            pending = node.device.pending
            count = sum(output.seq <= seq for output in pending)
            if count:
                node.device.settle(count)
            persisted(seq, now_ms)

        raft.take_output, raft.persisted = taken, settled

    def _recovered(self, node, replica, hard_state):
        """A power cut leaves the log as it was at some moment since the last flush, or a prefix of that."""
        device = node.device
        found = []
        index = 1
        while index <= replica.last_index:
            found += [
                Entry(stored.term, stored.index, stored.kind, stored.payload)
                for stored in replica.entries(index, replica.last_index, 500)
            ]
            index = found[-1].index + 1
        states = [list(device.entries)]
        sure = len(device.entries)
        for output in device.pending:
            state = states[-1]
            if output.truncate_from is not None:
                state = state[: output.truncate_from - 1]
                sure = min(sure, len(state))
            states.append(state + list(output.entries))
        require(len(found) >= sure, node.name, "has lost entries", len(found), "of", sure)
        require(
            any(found == state[: len(found)] for state in states),
            node.name,
            "has a log that never was:",
            [(entry.term, entry.index) for entry in found][-8:],
        )
        device.pending.clear()
        device.entries = found
        device.hard_state = hard_state
        self.counts["recoveries"] += 1

    def power_cut(self, node, keep="random"):
        if node.host is not None:
            node.host.close()
            node.clock.alive = False
            node.host = None
            node.disk = node.disk.crash(self.rng.getrandbits(40), keep=keep)
            self.checker.crashed(node.name)

    def kill(self, node):
        if node.host is not None:
            node.host.close()
            node.clock.alive = False
            node.host = None
            node.disk = node.disk.kill()
            self.checker.crashed(node.name)

    def restart(self, node):
        if node.host is None:
            self.start(node)

    def leaders(self):
        return [node for node in self.nodes.values() if node.awake and node.replica.leads]

    # Links.

    def send(self, source, target, message):
        rng = self.rng
        if (source, target) in self.blocked or rng.random() < self.drop or target not in self.nodes:
            return
        self.later(rng.random() * self.delay_ms, self._arrive, message)
        if rng.random() < self.duplicate:
            self.later(rng.random() * self.delay_ms * 10, self._arrive, message)

    def _arrive(self, message):
        node = self.nodes[message.target]
        if node.host is not None:
            node.clock.call_soon(self._deliver, node, message)

    def _deliver(self, node, message):
        node.heard.append((message, node.raft.term, node.clock.monotonic_ms()))
        node.host.received(GROUP, message)

    # Readers.

    def _tick_reads(self):
        self.later(7, self._tick_reads)
        node = self.rng.choice(list(self.nodes.values()))
        if node.awake:
            self.read(node, self.rng.randrange(PARTITIONS))

    def read(self, node, partition, *, whole=False):
        log = node.replica.partition(partition)
        high_watermark = log.high_watermark
        require(log.high_watermark <= log.end_offset, "a high watermark above the end")
        known = self.readable[partition]
        begin = log.log_start_offset
        offset = begin if whole else self.rng.randint(begin, high_watermark)
        result = node.replica.read(
            partition, offset, limit_offset=high_watermark, max_bytes=1 << 20 if whole else 700
        )
        self.counts["reads"] += 1
        at = None
        for batch in result.batches:
            require(at is None or batch.base_offset == at, "a gap before offset", batch.base_offset)
            at = batch.last_offset + 1
            said = (at, bytes(batch.data))
            require(
                known.setdefault(batch.base_offset, said) == said,
                node.name,
                "changes what was readable in",
                partition,
                "at",
                batch.base_offset,
            )
        if whole:
            require((at or begin) == high_watermark, "the log ends at", at, "not at", high_watermark)
        return result.batches

    # Looking at a node from its files alone.

    def check_against_files(self, node):
        """All that a replica has in memory is what a scan of its files makes of them."""
        replica = node.replica
        if replica._queue or replica._pending or replica.state != "OPEN":
            return
        identity = RangeIdentity(FOLDER, TOPIC, 0, PARTITIONS - 1, ANY_TERM)
        scan = ReplicaRecovery(node.disk, identity, self.log, SegmentCache(), self.scheduler.now_ms())
        try:
            scan.look_along(None)
            self._compare(node, replica, scan)
        finally:
            scan.close()

    def _compare(self, node, replica, scan):
        mine = [(s.segment_id, s.numbering.first_index, s.numbering.last_index) for s in replica.segments]
        found = [
            (f.segment.segment_id, f.segment.numbering.first_index, f.segment.numbering.last_index)
            for f in scan.found
        ]
        require(mine == found, node.name, "has segments", mine, "its files", found)
        require(
            [s.numbering.terms for s in replica.segments] == [f.segment.numbering.terms for f in scan.found],
            node.name,
            "has other terms than its files",
        )
        for log, seen in zip(replica._partitions, scan.partitions, strict=True):
            require(log.end_offset == seen.end_offset, node.name, "ends at", log.end_offset, seen.end_offset)
            require(log.epochs == seen.epochs, node.name, "has leader epochs", log.epochs, seen.epochs)
            require(states(log.producers) == states(seen.producers), node.name, "has other producers")
            for one, other in zip(log.indexes, seen.indexes, strict=True):
                one.segment.load(one)
                other.segment.load(other)
                require(
                    (one.start_offset, one.end_offset, one.size_bytes, one.max_timestamp)
                    == (other.start_offset, other.end_offset, other.size_bytes, other.max_timestamp),
                    node.name,
                    "has another index",
                )

    # A whole run.

    def live_through(self, faults_ms):
        self.faulty = True
        self._links()
        for client in self.clients:
            self.later(self.rng.random() * 20, client.act)
        self.later(self.rng.random() * 150, self._fault)
        self.later(30, self._look)
        self.scheduler.advance(faults_ms)
        self.faulty = False
        self.heal()
        self.scheduler.run_until(self.is_whole, max_ms=8000)
        self.check_at_rest()

    def heal(self):
        self.blocked.clear()
        self.drop = self.duplicate = 0.0
        self.delay_ms = 2.0
        for node in self.nodes.values():
            node.flush_ms = 3.0
            if node.clock is not None:
                node.clock.paused_until = 0.0
            if node.host is not None and node.range.group.failure is not None:
                raise AssertionError(f"{node.name} failed: {node.range.group.failure}")
            self.restart(node)

    def is_whole(self):
        if any(not client.is_idle for client in self.clients) or len(self.leaders()) != 1:
            return False
        leader = self.leaders()[0]
        last = leader.replica.last_index
        return all(
            node.awake
            and node.replica.last_index == last == node.replica.commit_index
            and not node.device.pending
            and node.replica._roller.state == "IDLE"
            and not node.replica._rolled
            for node in self.nodes.values()
        )

    def check_at_rest(self):
        self.checker.all_kept(list(self.nodes))
        first = next(iter(self.nodes.values()))
        wanted = first.device.entries
        for node in self.nodes.values():
            require(node.device.entries == wanted, node.name, "has another log than", first.name)
            self.check_against_files(node)
            for finding in check_directory(node.disk, FOLDER):
                require(finding.status == "ok", finding)
            for partition in range(PARTITIONS):
                batches = self.read(node, partition, whole=True)
                log = node.replica.partition(partition)
                require(log.high_watermark == log.end_offset, "not all is readable at rest")
                check_rebuilt(log, batches)
        for client in self.clients:
            client.check(first)
        require(
            len({tuple(s.segment_id for s in n.replica.segments) for n in self.nodes.values()}) == 1,
            "rolls differ",
        )
        for node in self.nodes.values():
            self.kill(node)
            self.restart(node)

    def _look(self):
        if self.faulty:
            self.later(40, self._look)
            node = self.rng.choice(list(self.nodes.values()))
            if node.awake:
                self.check_against_files(node)

    def _links(self):
        self.drop, self.duplicate = self.rng.choice(((0, 0), (0.1, 0.1), (0.25, 0.05)))
        self.delay_ms = self.rng.choice((1, 3, 15))

    def _fault(self):
        rng = self.rng
        if not self.faulty:
            return
        self.later(20 + rng.random() * 110, self._fault)
        nodes = list(self.nodes.values())
        names = list(self.nodes)
        leading = self.leaders()
        node = rng.choice(leading) if leading and rng.random() < 0.6 else rng.choice(nodes)
        draw = rng.random()
        if draw < 0.28:
            self.power_cut(node, rng.choice(("random", "random", "sectors", "none")))
            self.later(rng.random() * 120, self.restart, node)
            if rng.random() < 0.15:
                for other in nodes:
                    self.power_cut(other)
                    self.later(rng.random() * 60, self.restart, other)
        elif draw < 0.33:
            self.kill(node)
            self.later(rng.random() * 60, self.restart, node)
        elif draw < 0.55:
            self.blocked |= {(node.name, other) for other in names} | {(other, node.name) for other in names}
            self.later(60 + rng.random() * 250, self.blocked.clear)
        elif draw < 0.62:
            self.blocked |= {(node.name, other) for other in names}
        elif draw < 0.70:
            if node.clock is not None:
                node.clock.paused_until = self.now + rng.random() * 300
        elif draw < 0.76:
            node.flush_ms = rng.choice((0.5, 3, 40))
        elif draw < 0.80 and node.awake and node.raft.is_leader:
            self._change(node)
        else:
            self.blocked.clear()
            self._links()

    def _change(self, node):
        """A learner that never answers, and away with it: entries of no partition."""
        group = node.range.group
        try:
            if self.rng.random() < 0.3:
                group.transfer(self.rng.choice(list(self.nodes)))
            elif 99 in node.raft.membership:
                group.change_members(Change(Step.REMOVE, 99), lambda error: None)
            else:
                group.change_members(Change(Step.ADD_LEARNER, 99), lambda error: None)
        except (NotLeader, NotNow, ChangeRefused, GroupFailed):
            pass


class Wire:
    def __init__(self, world, node):
        self._world = world
        self._node = node

    def send(self, peer, messages):
        for _, message in messages:
            if isinstance(message, AppendRequest):
                # As through a socket: nothing of the sender's memory.
                entries = tuple(
                    Entry(e.term, e.index, e.kind, bytes(memoryview(e.payload))) for e in message.entries
                )
                message = AppendRequest(
                    message.source,
                    message.target,
                    message.term,
                    message.prev_index,
                    message.prev_term,
                    message.commit,
                    entries,
                )
            self._world.send(self._node, peer, message)

    def send_beats(self, peer, beats):
        for _, message in beats:
            self._world.send(self._node, peer, message)


class Client:
    """An idempotent producer: one batch under way per partition, sent again until it is acknowledged."""

    def __init__(self, world, number):
        self.world = world
        self.producer_id = 100 + number
        self.transactional = number % 3 == 0
        self.size = (20, 20, 20, 60, 200, 0)[number]
        self.sequences = [0] * PARTITIONS
        self.open = [None] * PARTITIONS
        """Per partition, the batch that is not acknowledged: (header, bytes, attempt)."""
        self.acknowledged = []
        """(partition, sequence, base offset, last offset)"""
        self.attempts = 0

    @property
    def is_idle(self):
        return not any(self.open)

    def act(self):
        world, rng = self.world, self.world.rng
        if world.faulty or not self.is_idle:
            world.later(2 + rng.random() * 12, self.act)
        leaders = world.leaders()
        if not leaders:
            return
        node = rng.choice(leaders)
        if node.clock.paused_until > world.now:
            return
        for partition in range(PARTITIONS):
            if self.open[partition] is None:
                if not world.faulty or rng.random() < 0.5:
                    continue
                self.open[partition] = self._batch(partition)
            elif self.open[partition][2] > world.now:
                continue
            self._send(node, partition)

    def _batch(self, partition):
        count = self.world.rng.choice((1, 1, 2, 3))
        value = b"%d.%d" % (self.producer_id, self.sequences[partition])
        data = build_batch(
            [Record(None, value.ljust(self.size, b"x"), timestamp=1000) for _ in range(count)],
            attributes=TRANSACTIONAL_BIT if self.transactional else 0,
            producer_id=self.producer_id,
            producer_epoch=0,
            base_sequence=self.sequences[partition],
        )
        return [validate_produced(data), data, 0.0]

    def _send(self, node, partition):
        world = self.world
        batch = self.open[partition]
        header, data, _ = batch
        batch[2] = world.now + 150
        replica = node.replica
        try:
            appended = replica.append(partition, header, data, txn_seq=7 if self.transactional else 0)
        except KafkaError as error:
            require(error.code in RETRY, node.name, "answers", error)
            batch[2] = world.now + 5
            return

        def durable(error):
            if self.open[partition] is not batch:
                return
            if error is not None:
                batch[2] = 0.0
                return
            require(
                replica.partition(partition).high_watermark > appended.last_offset,
                node.name,
                "acknowledges what is above its high watermark",
            )
            self.open[partition] = None
            self.sequences[partition] += header.record_count
            self.acknowledged.append(
                (partition, header.base_sequence, appended.base_offset, appended.last_offset)
            )

        replica.when_durable(appended.lsn, durable)

    def check(self, node):
        """Every batch once, in order, and every acknowledged one where it was said to be."""
        for partition in range(PARTITIONS):
            mine = {}
            expected = 0
            for batch in self.world.read(node, partition, whole=True):
                if batch.producer_id == self.producer_id:
                    header = parse_header(batch.data)
                    require(header.base_sequence == expected, "doubled or lost:", header, "not", expected)
                    expected += header.record_count
                    mine[header.base_sequence] = (batch.base_offset, batch.last_offset)
            for at, sequence, base, last in self.acknowledged:
                if at == partition:
                    require(mine.get(sequence) == (base, last), "acknowledged and lost:", sequence, base)


def states(producers):
    return {key: (state.epoch, state.batches) for key, state in producers.states.items()}


def check_rebuilt(log, batches):
    """Producers and leader epochs are those that a reader of the whole log finds."""
    rebuilt = ProducerStates(ProducerBudget(1000, 1000))
    epochs = []
    for batch in batches:
        header = parse_header(batch.data)
        if header.producer_id >= 0:
            rebuilt.update(header, batch.base_offset, 0)
        if not epochs or epochs[-1][0] != batch.term:
            epochs.append((batch.term, batch.base_offset))
        require(header.leader_epoch == batch.term, "a batch of another term than its entry")
    require(states(rebuilt) == states(log.producers), "other producers than in the log")
    require(epochs == log.epochs, "other leader epochs than in the log:", log.epochs, epochs)
