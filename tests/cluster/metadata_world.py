"""The nodes of a metadata group in virtual time: links, disks and processes misbehave by a seed, clients go on."""

from __future__ import annotations

import contextlib
import random

import msgpack
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from broker.replication.folder import make_dir_durable
from broker.replication.hard_state import HardStateFile
from broker.replication.metadata_group import MetadataGroup
from broker.replication.replica import LogLimits
from raftish.config import Config
from raftish.core import NotLeader, NotNow
from raftish.host import GroupFailed, Host
from raftish.membership import Change, ChangeRefused, Membership, Step
from tests.cluster.metadata_checker import Checker, Watcher, index_key, require
from txn.metastore import (
    BatchLost,
    Check,
    Conflict,
    Delete,
    IndexSpec,
    Options,
    OutcomeUnknown,
    Put,
    PutSequential,
    Schema,
    StoreFailed,
)

RAFT = Config(
    election_timeout_ms=100,
    heartbeat_ms=25,
    retry_ms=60,
    max_message_bytes=600,
    max_inflight_messages=4,
    max_uncommitted_bytes=6000,
    promote_lag=30,
)
OPTIONS = Options(
    snapshot_log_bytes=700,
    snapshot_turn_records=5,
    snapshot_turn_bytes=300,
    snapshot_pause_ms=1,
    allocate_bytes=1000,
)
LIMITS = LogLimits(part_bytes=1000, keep_bytes=500)
SCHEMA = Schema(indexes={"n": IndexSpec("/i/", index_key)})
KEYS = [f"/i/{n}" for n in range(5)] + [f"/k/{n}" for n in range(5)]
FIRST = "meta"


class Process:
    """A scheduler of one life of one node: it can be stopped for a while, and for good."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self.is_over = False
        self._held = None
        self.now_ms = scheduler.now_ms
        self.monotonic_ms = scheduler.monotonic_ms

    def call_soon(self, callback, *args):
        self._scheduler.call_soon(self._run, callback, args)

    def call_later(self, delay_ms, callback, *args):
        return self._scheduler.call_later(delay_ms, self._run, callback, args)

    def _run(self, callback, args):
        if self.is_over:
            return
        if self._held is not None:
            self._held.append((callback, args))
        else:
            callback(*args)

    @property
    def is_paused(self):
        return self._held is not None

    def pause(self):
        if self._held is None:
            self._held = []

    def go_on(self):
        held, self._held = self._held, None
        for callback, args in held or ():
            self.call_soon(callback, *args)


class Node:
    """One life."""

    def __init__(self, world, name, disk, process):
        self.world = world
        self.name = name
        self.process = process
        self.disk = disk
        self.watchers = []
        self.restores = 0
        make_dir_durable(disk, FIRST)
        hard_states = HardStateFile(disk, process, f"{FIRST}/hard-state")
        self.host = Host(name, RAFT, process, hard_states, self, world.rng.random, tick_ms=10)
        self.meta = MetadataGroup(
            name,
            disk,
            process,
            FIRST,
            SCHEMA,
            send=self._send_note,
            on_lead=lambda store, term: None,
            on_follow=lambda: None,
            fatal=self._fatal,
            options=OPTIONS,
            limits=LIMITS,
            part_bytes=200,
        )
        self.spy()
        self.meta.join(self.host, hard_states.current, world.first)

    def spy(self):
        meta, checker = self.meta, self.world.checker
        committed = meta.committed
        restore = meta.replicated.restore
        taken_back = meta.replicated._state.undo
        begin = meta.replicated.snapshots.begin
        take_fetched = meta.replicated.snapshots.take_fetched

        def begun(*args):
            self.world.hazard(self, 0.06, 15)
            begin(*args)

        def taken(*args):
            self.world.hazard(self, 0.15, 8)
            take_fetched(*args)

        def spied(entries):
            for entry in entries:
                checker.committed(self.name, entry)
            committed(entries)
            self.check()

        def restored(image):
            self.restores += 1
            checker.counts["restores"] += 1
            restore(image)
            self.check()

        def undone(batches, *args):
            checker.counts["taken back"] += len(batches)
            taken_back(batches, *args)

        meta.committed, meta.replicated.restore, meta.replicated._state.undo = spied, restored, undone
        meta.replicated.snapshots.begin, meta.replicated.snapshots.take_fetched = begun, taken

    def check(self):
        """Where nothing is uncommitted, what is read here is what is committed here."""
        replicated = self.meta.replicated
        if replicated.view.lsn <= replicated.applied_lsn:
            contents = {key: tuple(record) for key, record in replicated.view.scan("")}
            indexed = list(replicated.view.scan_index("n"))
            self.world.checker.state(self.name, replicated.applied_lsn, contents, indexed)

    def _fatal(self, error):
        self.world.failures.append(error)

    # A network.

    def send(self, peer, messages):
        for number, message in messages:
            self.world.carry(self.name, peer, lambda node, n=number, m=message: node.host.received(n, m))

    def send_beats(self, peer, beats):
        self.world.carry(self.name, peer, lambda node: node.host.received_beats(self.name, beats))

    def _send_note(self, peer, note):
        packed = msgpack.packb(note)
        self.world.carry(self.name, peer, lambda node: node.meta.heard(self.name, msgpack.unpackb(packed)))


class World:
    def __init__(self, seed, voters, *, spare=1):
        self.rng = random.Random(seed)
        self.scheduler = SimScheduler()
        self.checker = Checker()
        self.checker.node_restores = lambda name: self.nodes[name].restores if name in self.nodes else 0
        self.names = range(1, voters + spare + 1)
        self.first = Membership(frozenset(range(1, voters + 1)))
        self.disks = {name: SimDisk(self.scheduler) for name in self.names}
        self.nodes = {}
        self.failures = []
        self.cut = set()
        self.loss = self.twice = 0.0
        self.delay_ms = 3.0
        self.values = 0
        self.is_faulty = True
        for name in self.names:
            self.start(name, keep="none")

    # Nodes.

    def start(self, name, keep="random"):
        if name in self.nodes:
            return
        process = Process(self.scheduler)
        old = self.disks[name]
        disk = (
            old.kill(process)
            if keep == "kill"
            else old.crash(self.rng.random(), keep=keep, scheduler=process)
        )
        disk.flush_delay_ms = lambda path: disk.slowness * self.rng.random() * 2
        disk.slowness = 2.0
        self.disks[name] = disk
        self.nodes[name] = Node(self, name, disk, process)

    def stop(self, name):
        node = self.nodes.pop(name, None)
        if node is not None:
            node.process.is_over = True

    def up(self):
        return [node for node in self.nodes.values() if not node.process.is_paused]

    def leaders(self):
        return [node for node in self.up() if node.meta.store is not node.meta.view]

    def carry(self, source, target, deliver):
        if (source, target) in self.cut or self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < self.twice else 1):
            self.scheduler.call_later(self.rng.random() * self.delay_ms, self._arrive, target, deliver)

    def _arrive(self, target, deliver):
        node = self.nodes.get(target)
        if node is not None:
            node.process.call_soon(deliver, node)

    # Clients.

    def act(self):
        rng = self.rng
        if not self.is_faulty:
            return
        self.scheduler.call_later(rng.random() * 7, self.act)
        up = self.up()
        if not up:
            return
        node = rng.choice(self.leaders() or up) if rng.random() < 0.95 else rng.choice(up)
        draw = rng.random()
        if draw < 0.72:
            for _ in range(rng.choice((1, 1, 2, 4))):
                self.write(node)
        elif draw < 0.86:
            self.read(node)
        elif draw < 0.92:
            self.watch(rng.choice(up))
        elif draw < 0.95:
            self.use(node, lambda group: group.transfer(rng.choice(self.names)))
        elif draw < 0.99:
            self.change_members(node)
        elif node.watchers:
            node.watchers.pop(rng.randrange(len(node.watchers))).watch.cancel()

    def some_ops(self, store):
        rng = self.rng
        ops = []
        keys = set()
        for _ in range(rng.choice((1, 1, 2, 3))):
            key = rng.choice(KEYS)
            if rng.random() < 0.25:
                key = next((key for key, _ in store.scan("/q/", limit=1)), key)
            if key in keys:
                continue
            keys.add(key)
            record = store.get(key)
            actual = record.version if record is not None else 0
            expect = rng.choice((actual, actual, -1))
            self.values += 1
            value = rng.choice(
                ({"n": rng.randrange(4), "v": self.values}, self.values, "x" * rng.randrange(60))
            )
            draw = rng.random()
            if draw < 0.55:
                ops.append(Put(key, value, expect))
            elif draw < 0.75:
                ops.append(Delete(key, expect))
            elif draw < 0.9:
                ops.append(PutSequential("/q/", self.values))
            else:
                ops.append(Check(key, actual))
        return ops

    def write(self, node):
        store = node.meta.store
        ops = self.some_ops(store)
        term = node.meta.group.raft.term
        before = store.lsn
        try:
            applied = store.apply(ops)
        except (Conflict, StoreFailed):
            require(store.lsn == before, "a refused batch changed the state")
            return
        if applied.lsn == before:
            return
        batch = self.checker.asked(ops, applied, term)

        def done(error):
            kinds = {type(None): "durable", OutcomeUnknown: "unknown", BatchLost: "lost"}
            require(type(error) in kinds, "who waits is told", repr(error))
            self.checker.told(batch, kinds[type(error)])

        if self.rng.random() < 0.9:
            store.when_durable(applied.lsn, done)

    def read(self, node):
        key = self.rng.choice(KEYS)
        floor = self.checker.floor
        record = node.meta.store.get(key)
        node.meta.confirm(lambda error: self.checker.read(key, record, floor) if error is None else None)

    def watch(self, node):
        low = self.rng.randrange(3)
        what = self.rng.choice(
            (
                {"prefix": ""},
                {"prefix": "/i/"},
                {"key": self.rng.choice(KEYS)},
                {"index": ("n", (low,), (low + 2,))},
            )
        )
        node.watchers.append(Watcher(self.checker, node.name, node.meta, **what))

    def use(self, node, action):
        with contextlib.suppress(NotLeader, NotNow, ChangeRefused, GroupFailed):
            action(node.meta.group)

    def change_members(self, node):
        membership = node.meta.group.raft.membership
        changes = [Change(Step.ADD_LEARNER, name) for name in self.names if name not in membership]
        changes += [Change(Step.PROMOTE, name) for name in membership.learners] * 2
        if len(membership.voters) > 2:
            changes += [Change(Step.REMOVE, self.rng.choice(sorted(membership.voters)))]
        if changes:
            change = self.rng.choice(changes)
            self.use(node, lambda group: group.change_members(change, lambda error: None))

    # Faults.

    def fault(self):
        rng = self.rng
        if not self.is_faulty:
            return
        self.scheduler.call_later(20 + rng.random() * 120, self.fault)
        names = list(self.names)
        leading = [node.name for node in self.leaders()]
        name = rng.choice(leading) if leading and rng.random() < 0.6 else rng.choice(names)
        draw = rng.random()
        if draw < 0.25:
            keep = "kill" if rng.random() < 0.3 else "random"
            for victim in names if rng.random() < 0.1 else [name]:
                self.stop(victim)
                # Long enough, sometimes, for the others' logs to leave it behind.
                self.scheduler.call_later(rng.random() * rng.choice((80, 400)), self.start, victim, keep)
        elif draw < 0.42:
            self.cut |= {(name, other) for other in names} | {(other, name) for other in names}
        elif draw < 0.50:
            self.cut |= {(name, other) for other in names}
        elif draw < 0.58:
            self.cut |= {(other, name) for other in names}
        elif draw < 0.66 and name in self.nodes:
            process = self.nodes[name].process
            process.pause()
            self.scheduler.call_later(rng.random() * 250, process.go_on)
        elif draw < 0.72 and name in self.nodes:
            self.nodes[name].disk.slowness = rng.choice((0.5, 2, 20))
        else:
            self.cut.clear()
            self.loss, self.twice = rng.choice(((0, 0), (0.05, 0.1), (0.2, 0.05)))
            self.delay_ms = rng.choice((1, 3, 15))

    def hazard(self, node, probability, within_ms):
        """A power cut, perhaps, at a moment when it could do harm."""
        if self.is_faulty and self.rng.random() < probability:

            def cut():
                if self.nodes.get(node.name) is node:
                    self.stop(node.name)
                    self.scheduler.call_later(self.rng.random() * 50, self.start, node.name)

            self.scheduler.call_later(self.rng.random() * within_ms, cut)

    def run(self, duration_ms):
        self.scheduler.advance(duration_ms)
        require(not self.failures, "a node failed:", self.failures)

    def live_through(self, faults_ms):
        """Faults for so long, then none: all members must come to the same state."""
        self.scheduler.call_later(0, self.act)
        self.scheduler.call_later(self.rng.random() * 150, self.fault)
        self.run(faults_ms)
        self.is_faulty = False
        self.cut.clear()
        self.loss = self.twice = 0.0
        self.delay_ms = 3.0
        for name in self.names:
            self.start(name)
            self.nodes[name].process.go_on()
            self.nodes[name].disk.slowness = 2.0
        for _ in range(200):
            self.run(20)
            if self._is_whole():
                break
        else:
            require(False, "not whole again after 4 s:", self.describe())
        self.finish()

    def _is_whole(self):
        leaders = self.leaders()
        if len(leaders) != 1:
            return False
        group = leaders[0].meta.group
        members = [self.nodes[name].meta for name in group.raft.membership]
        last = group.raft.log.last_index
        return group.raft.commit == last and all(
            meta.replicated.applied_lsn == last and meta.group.leader == leaders[0].name for meta in members
        )

    def describe(self):
        return {
            name: (node.meta.role, node.meta.group.raft.term, node.meta.replicated.applied_lsn)
            for name, node in self.nodes.items()
        }

    def finish(self):
        self.scheduler.run_ready()
        for node in self.nodes.values():
            node.check()
            for watcher in node.watchers:
                watcher.finish()
            self.checker.counts["snapshots"] += node.meta.replicated.snapshots.written
        self.checker.finish()
        for batch in self.checker.batches.values():
            if self.checker._is_committed(batch):
                require(batch.outcome != "lost", "batch", batch.lsn, "is there and was told to be lost")
