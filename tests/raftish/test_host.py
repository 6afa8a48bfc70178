"""Many groups on one node, in virtual time and on disks that lose what was not flushed."""

from __future__ import annotations

import random

import pytest

from raftish.codec import decode, encode
from raftish.config import Config
from raftish.core import NotLeader
from raftish.datagram import Gate, Sender
from raftish.entries import HardState, Kind
from raftish.host import GroupFailed, Host, InDoubt, Lost
from raftish.membership import Change, Membership, Step
from raftish.messages import Heartbeat, HeartbeatResponse
from tests.raftish.file_log import FileHardStates, FileLog
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimScheduler

CONFIG = Config(election_timeout_ms=200, heartbeat_ms=40, retry_ms=100)
SECRET = b"s"


class Texts:
    def __init__(self):
        self.texts = []
        self.leaders = []

    def committed(self, entries):
        self.texts += [entry.payload for entry in entries if entry.kind is Kind.NORMAL]

    def led_by(self, leader, term):
        self.leaders.append((leader, term))

    def restore(self, request, done):
        raise AssertionError("no log is cut here")


class Wire:
    """From one node to the others, as bytes, 2 ms long."""

    def __init__(self, cluster, node, incarnation):
        self.cluster = cluster
        self.node = node
        self.senders = {peer: Sender(SECRET, node, peer, incarnation) for peer in cluster.names}
        self.messages = self.datagrams = 0

    def send(self, peer, messages):
        self.messages += len(messages)
        assert not any(isinstance(message, Heartbeat | HeartbeatResponse) for _, message in messages)
        for group, message in messages:
            self._pass(peer, "received", *decode(encode(group, message)[4:]))

    def send_beats(self, peer, beats):
        for datagram in self.senders[peer].pack(beats):
            self.datagrams += 1
            gate = self.cluster.gates.get(peer)
            if gate is not None:
                self._pass(peer, "received_beats", *gate.open(datagram))

    def _pass(self, peer, what, *args):
        if self.node not in self.cluster.cut and peer not in self.cluster.cut:
            self.cluster.scheduler.call_later(2, self._arrive, peer, what, args)

    def _arrive(self, peer, what, args):
        host = self.cluster.hosts.get(peer)
        if host is not None:
            getattr(host, what)(*args)


class Cluster:
    def __init__(self, nodes=3, groups=4, *, flush_delay_ms=3.0, seed=1):
        self.names = range(1, nodes + 1)
        self.groups = groups
        self.rng = random.Random(seed)
        self.scheduler = SimScheduler()
        self.disks = {n: SimDisk(self.scheduler, flush_delay_ms=flush_delay_ms) for n in self.names}
        self.hosts, self.machines, self.gates, self.wires = {}, {}, {}, {}
        self.cut = set()
        self.starts = 0
        for node in self.names:
            self.start(node)

    def start(self, node):
        self.starts += 1
        disk, scheduler = self.disks[node], self.scheduler
        hard_states = FileHardStates(disk, scheduler, "hard-states")
        self.gates[node] = Gate(SECRET, node)
        wire = self.wires[node] = Wire(self, node, self.starts)
        host = self.hosts[node] = Host(
            node, CONFIG, scheduler, hard_states, wire, self.rng.random, tick_ms=10
        )
        first = Membership(frozenset(self.names))
        for number in range(self.groups):
            log = FileLog(disk, scheduler, f"log-{number}")
            machine = self.machines[node, number] = Texts()
            hard_state = hard_states.found.get(number, HardState(0, None))
            host.add(number, log, hard_state, log.known_members(first), machine)

    def power_cut(self, node):
        self.hosts.pop(node).close()
        self.disks[node] = self.disks[node].crash(self.rng.random(), scheduler=self.scheduler)

    def leader(self, number):
        for host in self.hosts.values():
            group = host.groups[number]
            if group.failure is None and group.raft.is_leader and host.node not in self.cut:
                return group
        return None

    def run_until(self, condition):
        self.scheduler.run_until(condition, max_ms=20_000)

    def elect(self):
        self.run_until(lambda: all(self.leader(number) for number in range(self.groups)))
        self.scheduler.advance(200)
        return self

    def propose(self, number, text, outcomes):
        group = self.leader(number)
        if group is not None:
            group.propose([text], lambda error: outcomes.append((text, error)))


def test_groups_elect_commit_and_apply():
    cluster = Cluster().elect()
    outcomes = []
    for number in range(4):
        cluster.propose(number, b"text %d" % number, outcomes)
    cluster.run_until(lambda: len(outcomes) == 4)
    assert [error for _, error in outcomes] == [None] * 4
    cluster.scheduler.advance(100)
    for node in cluster.names:
        assert [cluster.machines[node, number].texts for number in range(4)] == [
            [b"text %d" % n] for n in range(4)
        ]


def test_the_hard_states_of_all_groups_share_flushes():
    """A leader falls away and a hundred groups elect: two flushes or three at each node, not a hundred."""
    cluster = Cluster(groups=100)
    for host in cluster.hosts.values():
        for group in host.groups.values():
            group.raft._jitter = lambda node=host.node: 0.3 * node
            group.raft._arm_timeout()
    cluster.run_until(lambda: all(cluster.leader(number) for number in range(100)))
    for node in cluster.names:
        assert 1 <= cluster.disks[node].flushes["hard-states"] <= 4


def test_the_heartbeats_of_all_groups_share_datagrams():
    cluster = Cluster(groups=30).elect()
    wire = cluster.wires[1]
    before, messages = wire.datagrams, wire.messages
    cluster.scheduler.advance(40 * 10)
    # To each of two nodes: 10 rounds of its own groups, and its answers to theirs.
    assert 20 <= wire.datagrams - before <= 42
    assert wire.messages == messages, "nothing but heartbeats when nothing is proposed"


def test_proposals_of_one_turn_share_a_flush_and_a_message():
    cluster = Cluster(groups=1).elect()
    leader = cluster.leader(0)
    wire, disk = cluster.wires[leader.raft.node_id], cluster.disks[leader.raft.node_id]
    flushes, messages = disk.flushes["log-0"], wire.messages
    outcomes = []
    for number in range(50):
        cluster.propose(0, b"%d" % number, outcomes)
    cluster.run_until(lambda: len(outcomes) == 50)
    assert disk.flushes["log-0"] - flushes <= 2
    assert wire.messages - messages <= 4


def test_a_read_is_given_where_the_leader_is():
    cluster = Cluster(groups=1).elect()
    outcomes = []
    cluster.leader(0).read(outcomes.append)
    cluster.run_until(lambda: outcomes)
    assert outcomes == [None]
    other = next(host for host in cluster.hosts.values() if not host.groups[0].raft.is_leader)
    with pytest.raises(NotLeader):
        other.groups[0].read(outcomes.append)


def test_a_proposal_that_another_leaders_entry_replaced_is_lost():
    cluster = Cluster(groups=1).elect()
    old = cluster.leader(0)
    cluster.cut.add(old.raft.node_id)
    outcomes, kept = [], []
    old.propose([b"alone"], lambda error: outcomes.append(error))
    cluster.run_until(lambda: cluster.leader(0) is not None)
    cluster.propose(0, b"kept", kept)
    cluster.run_until(lambda: kept)
    cluster.cut.clear()
    cluster.run_until(lambda: outcomes)
    assert isinstance(outcomes[0], Lost)
    cluster.scheduler.advance(500)
    assert {tuple(cluster.machines[node, 0].texts) for node in cluster.names} == {(b"kept",)}


def test_leadership_moves_and_members_change():
    cluster = Cluster(groups=1).elect()
    leader = cluster.leader(0)
    target = next(node for node in cluster.names if node != leader.raft.node_id)
    leader.transfer(target)
    cluster.run_until(lambda: cluster.hosts[target].groups[0].raft.is_leader)
    outcomes = []
    cluster.scheduler.advance(50)
    away = leader.raft.node_id
    cluster.leader(0).change_members(Change(Step.REMOVE, away), outcomes.append)
    cluster.run_until(lambda: outcomes)
    assert outcomes == [None]
    assert away not in cluster.leader(0).raft.membership
    assert cluster.machines[target, 0].leaders[-1] == (target, cluster.leader(0).raft.term)


def test_a_failed_flush_is_the_end_of_the_group_on_this_node_alone():
    cluster = Cluster(groups=2).elect()
    leader = cluster.leader(0)
    node = leader.raft.node_id
    cluster.disks[node].fail("flush", "log-0")
    outcomes = []
    leader.propose([b"x"], outcomes.append)
    cluster.run_until(lambda: leader.failure is not None)
    assert isinstance(leader.failure, OSError)
    with pytest.raises(GroupFailed):
        leader.propose([b"y"], outcomes.append)
    cluster.run_until(lambda: cluster.leader(0) is not None)
    assert cluster.leader(0).raft.node_id != node
    assert cluster.hosts[node].groups[1].failure is None


def test_a_node_is_suspected_when_it_falls_silent():
    cluster = Cluster(groups=2).elect()
    cluster.scheduler.advance(1000)
    assert not any(cluster.hosts[1].suspects(peer) for peer in (2, 3))
    leader = cluster.leader(0).raft.node_id
    follower = next(node for node in cluster.names if node != leader)
    cluster.power_cut(leader)
    cluster.scheduler.advance(3000)
    assert cluster.hosts[follower].suspects(leader)


def test_a_removed_group_hears_nothing_any_more():
    cluster = Cluster(groups=2).elect()
    host = cluster.hosts[1]
    host.remove(0)
    cluster.scheduler.advance(500)
    assert list(host.groups) == [1]
    with pytest.raises(ValueError, match="here already"):
        host.add(1, FileLog(SimDisk(), cluster.scheduler, "x"), HardState(0, None), [], Texts())


@pytest.mark.parametrize("seed", range(4))
def test_power_cuts_lose_nothing_acknowledged(seed):
    cluster = Cluster(groups=3, seed=seed).elect()
    rng = random.Random(seed)
    outcomes = [[] for _ in range(3)]
    for turn in range(120):
        for number in range(3):
            cluster.propose(number, b"%d" % turn, outcomes[number])
        cluster.scheduler.advance(rng.random() * 15)
        if turn % 12 == 5:
            node = rng.choice(list(cluster.hosts))
            cluster.power_cut(node)
            cluster.scheduler.advance(rng.random() * 300)
            cluster.start(node)
        elif turn % 40 == 20:
            for node in cluster.names:
                cluster.power_cut(node)
            for node in cluster.names:
                cluster.start(node)
            cluster.run_until(lambda: all(cluster.leader(number) for number in range(3)))
    cluster.elect()
    cluster.scheduler.advance(1000)
    for number in range(3):
        logs = {tuple(cluster.machines[node, number].texts) for node in cluster.names}
        assert len(logs) == 1
        (texts,) = logs
        acknowledged = [text for text, error in outcomes[number] if error is None]
        lost = [text for text, error in outcomes[number] if isinstance(error, Lost)]
        assert len(acknowledged) > 50
        assert not set(acknowledged) - set(texts)
        assert not set(lost) & set(texts)
        assert len(set(texts)) == len(texts)


class Cut(FileLog):
    """A log whose begin is gone, in memory at least."""

    base, base_term = 0, 0

    @property
    def first_index(self):
        return self.base + 1

    @property
    def last_index(self):
        return self.base + len(self._all)

    def compact(self, index):
        self.base_term = self.term_at(index)
        del self._all[: index - self.base]
        self.base = index

    def install(self, index, term):
        self._all.clear()
        self.base, self.base_term = index, term

    def term_at(self, index):
        if index == self.base:
            return self.base_term
        return self._all[index - self.base - 1].term if self.base < index <= self.last_index else None

    def entries(self, first, last, max_bytes):
        return super().entries(first - self.base, last - self.base, max_bytes)

    def write(self, truncate_from, entries):
        assert truncate_from is None
        self._journal.append([None, []])
        self._all.extend(entries)


class Fetching(Texts):
    """Takes its state from another node's machine, at the second attempt."""

    def __init__(self, cluster, log):
        super().__init__()
        self.cluster, self.log, self.requests = cluster, log, []

    def restore(self, request, done):
        self.requests.append(request)
        if len(self.requests) == 1:
            self.cluster.scheduler.call_later(5, done, OSError("the files did not come"))
            return
        self.texts = list(self.cluster.machines[request.source, 0].texts)
        self.log.install(request.index, request.index_term)
        self.cluster.scheduler.call_later(5, done, None)


def cluster_that_fetches():
    cluster = Cluster(groups=1)
    for node in cluster.names:
        cluster.hosts[node].remove(0)
        log = Cut(cluster.disks[node], cluster.scheduler, "cut")
        machine = cluster.machines[node, 0] = Fetching(cluster, log)
        cluster.hosts[node].add(
            0, log, HardState(0, None), [(0, Membership(frozenset(cluster.names)))], machine
        )
    return cluster.elect()


def go_on_without(cluster, behind):
    """Five texts are committed while `behind` is cut off, and are gone from the leader's log after that."""
    cluster.cut.add(behind)
    cluster.run_until(lambda: cluster.leader(0) is not None)
    outcomes = []
    for number in range(5):
        cluster.propose(0, b"%d" % number, outcomes)
    cluster.run_until(lambda: len(outcomes) == 5)
    leader = cluster.leader(0)
    leader._log.compact(leader.raft.commit)
    cluster.cut.clear()


def test_a_node_that_is_too_far_behind_fetches_the_state_and_goes_on():
    cluster = cluster_that_fetches()
    leader = cluster.leader(0).raft.node_id
    behind = next(node for node in cluster.names if node != leader)
    go_on_without(cluster, behind)
    machine = cluster.machines[behind, 0]
    cluster.run_until(lambda: len(machine.texts) == 5)
    assert len(machine.requests) == 2
    outcomes = []
    cluster.propose(0, b"5", outcomes)
    cluster.run_until(lambda: len(machine.texts) == 6)
    assert machine.texts == [b"%d" % number for number in range(6)]


def test_whether_a_proposal_was_committed_is_open_where_the_state_was_fetched():
    cluster = cluster_that_fetches()
    old = cluster.leader(0)
    outcomes = []
    cluster.cut.add(old.raft.node_id)
    old.propose([b"alone"], outcomes.append)
    go_on_without(cluster, old.raft.node_id)
    cluster.run_until(lambda: outcomes)
    assert isinstance(outcomes[0], InDoubt)


def test_reads_that_wait_hear_of_the_end_of_the_group():
    cluster = Cluster(groups=1).elect()
    leader = cluster.leader(0)
    cluster.cut.add(leader.raft.node_id)
    cluster.scheduler.advance(195)
    assert leader.raft.is_leader
    outcomes = []
    leader.read(outcomes.append)
    leader.fail(OSError("the disk is gone"))
    cluster.scheduler.advance(1)
    assert [type(outcome) for outcome in outcomes] == [GroupFailed]
