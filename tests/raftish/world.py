"""A group of nodes in virtual time, with links and disks that misbehave by a seed; the same run for the same seed."""

from __future__ import annotations

import heapq
import random

from raftish.config import Config
from raftish.core import NotLeader, NotNow, Raft
from raftish.entries import HardState, Kind
from raftish.membership import Change, ChangeRefused, Membership, Step, decode
from tests.raftish.checker import Checker

TICK_MS = 10
CONFIG = Config(
    election_timeout_ms=100,
    heartbeat_ms=25,
    retry_ms=60,
    clock_drift=0.3,
    max_message_bytes=40,
    max_inflight_messages=4,
    max_inflight_bytes=200,
    max_uncommitted_bytes=2000,
    promote_lag=20,
)


class Disk:
    """What survives a crash: `base` and `entries` behind it, as `raftish.log.LogView`; writes wait for a flush."""

    def __init__(self, first_membership):
        self.base_membership = first_membership
        self.hard_state = HardState(0, None)
        self.base = self.base_term = 0
        self.entries = []
        self.pending = []
        self.flushing = 0

    @property
    def first_index(self):
        return self.base + 1

    @property
    def last(self):
        return self.base + len(self.entries)

    last_index = last

    def term_at(self, index):
        if self.base < index <= self.base + len(self.entries):
            return self.entries[index - self.base - 1].term
        return self.base_term if index == self.base else None

    def read(self, first, last, max_bytes):
        found, size = [], 0
        for entry in self.entries[first - self.base - 1 : last - self.base]:
            size += len(entry.payload)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def apply(self, output, entries=None):
        if output.hard_state is not None:
            self.hard_state = output.hard_state
        if output.truncate_from is not None:
            del self.entries[output.truncate_from - self.base - 1 :]
        self.entries.extend(output.entries if entries is None else entries)

    def settle(self, count):
        for output in self.pending[:count]:
            self.apply(output)
        last_seq = self.pending[count - 1].seq
        del self.pending[:count]
        return last_seq

    def crash(self, rng):
        """Of what was not flushed, any prefix may have reached the device."""
        survived = rng.randrange(len(self.pending) + 1)
        for output in self.pending[:survived]:
            self.apply(output)
        if survived < len(self.pending) and rng.random() < 0.5:
            output = self.pending[survived]
            self.apply(output, output.entries[: rng.randrange(len(output.entries) + 1)])
        self.pending.clear()
        self.flushing = 0

    def known_members(self):
        known = [(self.base, self.base_membership)]
        known += [(e.index, decode(e.payload)) for e in self.entries if e.kind is Kind.MEMBERSHIP]
        return known

    def compact(self, index):
        if index > self.base:
            for entry in self.entries[: index - self.base]:
                if entry.kind is Kind.MEMBERSHIP:
                    self.base_membership = decode(entry.payload)
            self.base_term = self.term_at(index)
            del self.entries[: index - self.base]
            self.base = index

    def install(self, request):
        self.base, self.base_term = request.index, request.index_term
        self.base_membership = request.membership
        self.entries = []
        self.pending.clear()


class View:
    def __init__(self, disk):
        self._disk = disk

    first_index = property(lambda self: self._disk.base + 1)
    last_index = property(lambda self: self._disk.last)

    def term_at(self, index):
        return self._disk.term_at(index)

    def entries(self, first, last, max_bytes):
        return self._disk.read(first, last, max_bytes)


class Node:
    def __init__(self, name, disk, rng):
        self.name = name
        self.disk = disk
        self.rate = 1 + rng.random() * CONFIG.clock_drift
        self.offset = rng.randrange(10_000)
        self.raft = None
        self.paused_until = 0.0
        self.flush_ms = 4.0
        self.incarnation = 0


class World:
    def __init__(self, seed, voters, *, config=CONFIG, spare=1, jitter=1.0):
        self.rng = random.Random(seed)
        self.config = config
        self.jitter = jitter
        self.now = 0.0
        self._events = []
        self._count = 0
        first = Membership(frozenset(range(1, voters + 1)))
        names = range(1, voters + spare + 1)
        self.disks = {name: Disk(first) for name in names}
        self.nodes = {name: Node(name, self.disks[name], self.rng) for name in names}
        self.checker = Checker(self.disks, config.election_timeout_ms, TICK_MS * (1 + config.clock_drift))
        self.blocked = set()
        self.drop = self.duplicate = 0.0
        self.delay_ms = 3.0
        self.hears_late = None
        self._contexts = 0
        self.trace = None
        for name in names:
            self.start(name)
        self.at(TICK_MS, self._tick)

    # Time.

    def at(self, delay_ms, call, *args):
        self._count += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._count, call, args))

    def run(self, duration_ms, until=None):
        end = self.now + duration_ms
        events = self._events
        while events[0][0] <= end:
            self.now, _, call, args = heapq.heappop(events)
            call(*args)
            if until is not None and until():
                return True
        self.now = end
        return False

    def clock(self, node):
        return node.offset + self.now * node.rate

    def _tick(self):
        self.at(TICK_MS, self._tick)
        for node in self.nodes.values():
            if node.raft is not None and node.paused_until <= self.now:
                now_ms = self.clock(node)
                if node.raft.tick(now_ms):
                    self.drain(node)
                self.checker.ticked(node.name, node.raft, now_ms)

    # Nodes.

    def start(self, name):
        node = self.nodes[name]
        node.incarnation += 1
        now_ms = self.clock(node)
        self.checker.restarted(name, now_ms)
        disk = node.disk
        node.raft = Raft(
            name,
            self.config,
            View(disk),
            disk.hard_state,
            disk.known_members(),
            lambda: self.rng.random() * self.jitter,
            now_ms,
            is_new=not disk.hard_state.term,
        )
        self.drain(node)

    def crash(self, name):
        node = self.nodes[name]
        if node.raft is not None:
            node.raft = None
            node.disk.crash(self.rng)
            self.checker.crashed(name)

    def drain(self, node):
        raft = node.raft
        output = raft.take_output()
        self.checker.output(node.name, raft, output, self.clock(node))
        if output.seq:
            node.disk.pending.append(output)
            if not node.disk.flushing:
                self._flush(node)
        if output.restore is not None:
            self.at(self.rng.random() * 60, self._restore, node, node.incarnation, output.restore)
        for message in output.messages:
            self._send(message)

    def _flush(self, node):
        node.disk.flushing = len(node.disk.pending)
        self.at(node.flush_ms * self.rng.random() * 2, self._flushed, node, node.incarnation)

    def _flushed(self, node, incarnation):
        if node.incarnation != incarnation or node.raft is None:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until - self.now, self._flushed, node, incarnation)
            return
        disk = node.disk
        count, disk.flushing = min(disk.flushing, len(disk.pending)), 0
        if count:
            node.raft.persisted(disk.settle(count), self.clock(node))
        if disk.pending:
            self._flush(node)
        self.drain(node)

    def _restore(self, node, incarnation, request):
        if node.incarnation != incarnation or node.raft is None:
            return
        if node.disk.pending:
            self.at(5, self._restore, node, incarnation, request)
        elif self.rng.random() < 0.2:
            node.raft.snapshot_failed(self.clock(node))
        else:
            node.disk.install(request)
            node.raft.snapshot_installed(self.clock(node))
            self.checker.restored(node.name)
            self.drain(node)

    # Links.

    def _send(self, message):
        rng = self.rng
        if self.trace is not None:
            self.trace(message)
        if (message.source, message.target) in self.blocked or rng.random() < self.drop:
            return
        delay_ms = rng.random() * self.delay_ms
        if message.target == self.hears_late:
            delay_ms += 60
        self.at(delay_ms, self._deliver, message)
        if rng.random() < self.duplicate:
            self.at(rng.random() * self.delay_ms * 20, self._deliver, message)

    def _deliver(self, message):
        node = self.nodes[message.target]
        if node.raft is None:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until - self.now, self._deliver, message)
            return
        now_ms = self.clock(node)
        self.checker.delivered(message, node.raft.term, now_ms)
        node.raft.step(message, now_ms)
        self.drain(node)

    # Users.

    def leaders(self):
        return [node for node in self.nodes.values() if node.raft is not None and node.raft.is_leader]

    def use(self, node, action, *args):
        """Ask one node for something; whether it took it."""
        try:
            getattr(node.raft, action)(*args, self.clock(node))
        except (NotLeader, NotNow, ChangeRefused):
            return False
        finally:
            self.drain(node)
        return True

    def propose(self, node):
        count = self.rng.choice((1, 1, 2, 5))
        payloads = [b"%d.%d" % (self._count, position) for position in range(count)]
        return self.use(node, "propose", payloads)

    def read(self, node):
        self._contexts += 1
        self.checker.read_asked(self._contexts)
        if not self.use(node, "read", self._contexts):
            self.checker.read_floors.pop(self._contexts, None)

    def change_members(self, node):
        membership = node.raft.membership
        outside = [name for name in self.nodes if name not in membership]
        changes = [Change(Step.ADD_LEARNER, name) for name in outside]
        changes += [Change(Step.PROMOTE, name) for name in membership.learners]
        if len(membership.voters) > 2:
            changes += [Change(Step.REMOVE, name) for name in membership.voters]
        if changes:
            self.use(node, "change_members", self.rng.choice(changes))

    def compact(self, node):
        disk = node.disk
        if not disk.pending and node.raft.following.restoring is None:
            disk.compact(min(node.raft.commit, disk.last))
            self.checker.logs[node.name] = type(self.checker.logs[node.name])(disk)

    # A whole run.

    def _act(self):
        rng = self.rng
        self.at(rng.random() * 14, self._act)
        leaders = [node for node in self.leaders() if node.paused_until <= self.now]
        if not leaders:
            return
        node = rng.choice(leaders)
        draw = rng.random()
        if draw < 0.50:
            self.propose(node)
        elif draw < 0.85:
            self.read(node)
        elif draw < 0.92:
            self.change_members(node)
        elif draw < 0.96:
            self.use(node, "transfer", rng.choice(list(self.nodes)))
        else:
            up = [n for n in self.nodes.values() if n.raft is not None and n.paused_until <= self.now]
            self.compact(rng.choice(up))

    def _fault(self):
        rng = self.rng
        if not self._faulty:
            return
        self.at(30 + rng.random() * 150, self._fault)
        names = list(self.nodes)
        leading = [node.name for node in self.leaders()]
        name = rng.choice(leading) if leading and rng.random() < 0.6 else rng.choice(names)
        draw = rng.random()
        if draw < 0.30:
            self.crash(name)
            self.at(rng.random() * 120, self._restart, name)
            if rng.random() < 0.1:
                for other in names:
                    self.crash(other)
                    self.at(rng.random() * 60, self._restart, other)
        elif draw < 0.45:
            self.blocked |= {(name, other) for other in names} | {(other, name) for other in names}
        elif draw < 0.55:
            self.blocked |= {(name, other) for other in names}
        elif draw < 0.62:
            self.blocked |= {(other, name) for other in names}
        elif draw < 0.70:
            side = set(rng.sample(names, len(names) // 2))
            self.blocked |= {(a, b) for a in names for b in names if (a in side) != (b in side)}
        elif draw < 0.78:
            self.nodes[name].paused_until = self.now + rng.random() * 300
        elif draw < 0.84:
            self.nodes[name].flush_ms = rng.choice((0.5, 4, 40))
        else:
            self.blocked.clear()
            self._links()

    def _links(self):
        self.drop, self.duplicate = self.rng.choice(((0, 0), (0.1, 0.1), (0.3, 0.05)))
        self.delay_ms = self.rng.choice((1, 3, 20))

    def _restart(self, name):
        if self.nodes[name].raft is None:
            self.start(name)

    def live_through(self, faults_ms):
        """Faults for so long, then none: the group must be of use again, with everything that was committed."""
        self._faulty = True
        self._links()
        self.at(0, self._act)
        self.at(self.rng.random() * 200, self._fault)
        self.run(faults_ms)
        self._faulty = False
        self.blocked.clear()
        self.drop = self.duplicate = 0.0
        self.delay_ms = 3.0
        for node in self.nodes.values():
            node.flush_ms = 4.0
            node.paused_until = 0.0
            self._restart(node.name)
        if not self.run(3000, self._is_whole):
            raise AssertionError(f"not live again after 3 s: {self.describe()}")
        self.checker.all_kept([node.name for node in self._members()])

    def live_with_stale_leaders(self, duration_ms):
        """Leaders are cut off, paused and relieved while all who believe to lead are asked to read."""
        self.delay_ms = 1.0
        for node in self.nodes.values():
            node.flush_ms = 0.5
            node.rate = self.rng.choice((1.0, 1 + self.config.clock_drift))
        self.at(0, self._read_everywhere)
        self.at(120 + self.rng.random() * 100, self._make_stale)
        self.run(duration_ms)

    def _read_everywhere(self):
        self.at(3, self._read_everywhere)
        leaders = [node for node in self.leaders() if node.paused_until <= self.now]
        for node in leaders:
            self.read(node)
        if leaders and self.rng.random() < 0.4:
            self.propose(max(leaders, key=lambda node: node.raft.term))

    def _make_stale(self):
        rng = self.rng
        self.at(200 + rng.random() * 100, self._make_stale)
        self.blocked.clear()
        self.hears_late = None
        self.delay_ms = 1.0
        leaders = self.leaders()
        if not leaders:
            return
        node = rng.choice(leaders)
        others = [name for name in self.nodes if name != node.name]
        draw = rng.random()
        if draw < 0.2:
            self._cut_off(node.name)
        elif draw < 0.35:
            self.hears_late = node.name
            self.at(40 + rng.random() * 40, self._cut_off, node.name)
        elif draw < 0.45:
            self.blocked |= {(other, node.name) for other in others}
        elif draw < 0.6:
            node.paused_until = self.now + 60 + rng.random() * 60
        elif draw < 0.8:
            # TimeoutNow comes late, and the relieved leader hears of nothing.
            self.delay_ms = rng.choice((1, 150))
            self.use(node, "transfer", rng.choice(others))
            self.at(rng.random() * 120, self._cut_off, node.name)
        else:
            for name in rng.sample(others, len(others) - rng.randrange(2)):
                self.crash(name)
                self.at(rng.random() * 5, self._restart, name)
            self._cut_off(node.name)

    def _cut_off(self, name):
        self.delay_ms = 1.0
        self.blocked |= {(name, other) for other in self.nodes} | {(other, name) for other in self.nodes}

    def _members(self):
        latest = max(
            (node for node in self.nodes.values()), key=lambda node: (node.raft.term, node.raft.is_leader)
        )
        return [self.nodes[name] for name in latest.raft.membership]

    def _is_whole(self):
        """All members follow one leader and have all that was committed, and something of this calm."""
        members = self._members()
        leading = [node for node in members if node.raft.is_leader]
        if len(leading) != 1:
            return False
        raft = leading[0].raft
        if raft.log.term_at(raft.commit) != raft.term:
            return False
        target = len(self.checker.committed) - 1
        return all(
            node.raft.term == raft.term and node.raft.commit >= target and node.disk.last >= target
            for node in members
        )

    def describe(self):
        return [
            (
                n.name,
                n.raft
                and (n.raft.role.value, n.raft.term, n.raft.commit, n.raft.log.last_index, n.raft.membership),
            )
            for n in self.nodes.values()
        ]
