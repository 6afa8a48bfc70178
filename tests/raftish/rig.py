"""One core under a test's hands: its disk becomes durable when the test says so."""

from __future__ import annotations

from raftish.config import Config
from raftish.core import Raft, Role
from raftish.entries import Entry, HardState, Kind
from raftish.membership import Membership
from raftish.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    PreVoteResponse,
    VoteResponse,
)
from tests.raftish.world import Disk, View

CONFIG = Config(
    election_timeout_ms=100,
    heartbeat_ms=25,
    retry_ms=60,
    clock_drift=0.25,
    max_message_bytes=100,
    promote_lag=5,
)
ME = 1


def entries(*terms, first=1):
    """One entry per term, in order."""
    return tuple(
        Entry(term, index, Kind.NORMAL, b"%d.%d" % (term, index)) for index, term in enumerate(terms, first)
    )


class Rig:
    def __init__(
        self, voters=(1, 2, 3), *, terms=(), term=None, vote=None, config=CONFIG, node=ME, learners=()
    ):
        self.config = config
        self.node = node
        self.members = Membership(frozenset(voters), frozenset(learners))
        self.disk = Disk(self.members)
        self.disk.entries = list(entries(*terms))
        self.disk.hard_state = HardState(term if term is not None else max(terms, default=0), vote)
        self.now = 0
        self.jitter = 0.0
        self.restart()

    def restart(self):
        self.disk.pending.clear()
        self.sent = []
        self.reads = []
        self.restores = []
        self.raft = Raft(
            self.node,
            self.config,
            View(self.disk),
            self.disk.hard_state,
            self.disk.known_members(),
            lambda: self.jitter,
            self.now,
        )
        self.take()

    def take(self):
        """What the core sends now; what it writes waits for `flush`."""
        output = self.raft.take_output()
        if output.seq:
            self.disk.pending.append(output)
        if output.restore:
            self.restores.append(output.restore)
        self.reads += output.reads
        self.sent += output.messages
        return output.messages

    def flush(self, count=None):
        """The oldest `count` writes are durable, or all."""
        if self.disk.pending:
            self.raft.persisted(self.disk.settle(count or len(self.disk.pending)), self.now)
        return self.take()

    def wait(self, duration_ms):
        sent = []
        for _ in range(0, duration_ms, 5):
            self.now += 5
            self.raft.tick(self.now)
            sent += self.take()
        return sent

    def step(self, kind, source, *fields):
        self.raft.step(kind(source, self.node, *fields), self.now)
        return self.take()

    def use(self, action, *args):
        result = getattr(self.raft, action)(*args, self.now)
        self.take()
        return result

    # The way to a role.

    def elect(self, *, answer=True):
        """Make it the leader of the next term, with its first entry durable here and, with `answer`, at all others."""
        self.become_candidate()
        self.flush()
        for voter in self.others():
            if not self.raft.is_leader:
                self.step(VoteResponse, voter, self.raft.term, True)
        assert self.raft.is_leader
        self.flush()
        if answer:
            self.answer_all()
        self.sent.clear()
        return self

    def others(self):
        return [node for node in self.raft.membership if node != self.node]

    def become_candidate(self):
        self.wait(100)
        assert self.raft.role is Role.PRE_CANDIDATE
        for voter in self.others():
            if self.raft.role is Role.PRE_CANDIDATE:
                self.step(PreVoteResponse, voter, self.raft.term + 1, True)
        assert self.raft.role is Role.CANDIDATE

    def answer_all(self):
        """Every other node acknowledges everything, and the last heartbeat."""
        for node in self.others():
            self.acknowledge(node)
            rounds = [m.round for m in self.sent if isinstance(m, Heartbeat) and m.target == node]
            if rounds:
                self.step(HeartbeatResponse, node, self.raft.term, max(rounds))

    def acknowledge(self, node, index=None):
        index = self.raft.log.last_index if index is None else index
        return self.step(AppendResponse, node, self.raft.term, True, index, 0, 0)

    def append(self, source, term, prev_index, prev_term, *new, commit=0):
        return self.step(AppendRequest, source, term, prev_index, prev_term, commit, tuple(new))

    def terms(self):
        return [self.raft.log.term_at(index) for index in range(1, self.raft.log.last_index + 1)]
