"""What must hold in a group, checked from outside: by what nodes say, hand out and have on their disks.

It knows nothing of how the core decides. Sources: raft paper, figure 3; dissertation, 3.6, 4.1 and 6.4; docs/raft.md.
"""

from __future__ import annotations

from raftish import membership as members
from raftish.entries import Entry, Kind
from raftish.messages import (
    AppendRequest,
    AppendResponse,
    Heartbeat,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)


class Violation(AssertionError):
    pass


def require(holds, *words):
    if not holds:
        raise Violation(" ".join(str(word) for word in words))


class Mirror:
    """A node's log, put together from what its core handed out."""

    def __init__(self, disk):
        self.base = disk.base
        self.base_term = disk.base_term
        self.base_membership = disk.base_membership
        self.entries = list(disk.entries)

    @property
    def last(self):
        return self.base + len(self.entries)

    def term_at(self, index):
        if index == self.base:
            return self.base_term
        if self.base < index <= self.last:
            return self.entries[index - self.base - 1].term
        return None

    def membership(self):
        for entry in reversed(self.entries):
            if entry.kind is Kind.MEMBERSHIP:
                return members.decode(entry.payload)
        return self.base_membership


class Checker:
    def __init__(self, disks, election_timeout_ms, tick_ms):
        self.disks = disks
        self.election_timeout_ms = election_timeout_ms
        self.tick_ms = tick_ms
        self.logs = {node: Mirror(disk) for node, disk in disks.items()}
        self.commits = dict.fromkeys(disks, 0)
        self.leaders = {}
        self.votes = {}
        self.seen = {}
        """(index, term) -> (kind, payload, the term before it)"""
        self.committed = [None]
        """By index: (the committed entry, the term in which that was first known)."""
        self.heard = {}
        """node -> (term, its clock) of the last word of a leader"""
        self.answers = {}
        """(leader, node) -> (term, the leader's clock) of the last word of the node in it"""
        self.leading_since = {}
        self.read_floors = {}
        self.reads_answered = 0
        self.counts = {}

    def add_node(self, node):
        self.logs[node] = Mirror(self.disks[node])
        self.commits[node] = 0

    def crashed(self, node):
        self.commits[node] = 0
        self.heard.pop(node, None)

    def restarted(self, node, now_ms):
        self.logs[node] = Mirror(self.disks[node])
        self.commits[node] = self.disks[node].base
        # It may have promised before it went down, which nobody can tell any more; in term 0 there was no leader yet.
        if self.disks[node].hard_state.term:
            self.heard[node] = now_ms

    def restored(self, node):
        self.logs[node] = Mirror(self.disks[node])
        self.commit(node, self.disks[node].base, self.disks[node].hard_state.term, leads=False)

    # What a node heard.

    def delivered(self, message, term_before, now_ms):
        if isinstance(message, AppendRequest | Heartbeat | SnapshotRequest) and message.term >= term_before:
            self.heard[message.target] = now_ms
        elif message.term == term_before:
            self.answers[message.target, message.source] = (message.term, now_ms)

    def ticked(self, node, raft, now_ms):
        """A leader has heard a majority of late, or is none any more."""
        if not raft.is_leader:
            return
        limit = self.election_timeout_ms + self.tick_ms
        if now_ms - self.leading_since.setdefault((node, raft.term), now_ms) > limit:
            heard = [node]
            for other in self.disks:
                term, at_ms = self.answers.get((node, other), (0, 0))
                if term == raft.term and now_ms - at_ms <= limit:
                    heard.append(other)
            require(raft.membership.is_majority(heard), node, "leads having heard only", heard)

    def read_asked(self, context):
        self.read_floors[context] = len(self.committed) - 1

    # What a node handed out.

    def output(self, node, raft, output, now_ms):
        log = self.logs[node]
        if output.truncate_from is not None:
            require(output.truncate_from > self.commits[node], node, "truncates what it knew to be committed")
            require(not raft.is_leader or output.entries, node, "truncates its own log while it leads")
            del log.entries[output.truncate_from - log.base - 1 :]
        for entry in output.entries:
            self._appended(node, log, entry, raft)
        if raft.is_leader and self.leaders.get(raft.term) != node:
            self._elected(node, log, raft.term)
        if output.commit > self.commits[node]:
            self.commit(node, output.commit, raft.term, leads=raft.is_leader)
        for message in output.messages:
            self._said(node, message, now_ms)
        for ready in output.reads:
            floor = self.read_floors.pop(ready.context)
            if ready.index is not None:
                self.reads_answered += 1
                require(ready.index >= floor, node, "reads at", ready.index, "what is committed up to", floor)
                require(ready.index <= self.commits[node], node, "reads beyond its commit index")

    def _appended(self, node, log, entry: Entry, raft):
        require(entry.index == log.last + 1, node, "leaves a gap before", entry.index)
        content = (entry.kind, entry.payload, log.term_at(entry.index - 1))
        known = self.seen.setdefault((entry.index, entry.term), content)
        require(known == content, "log matching:", node, "has another", (entry.index, entry.term))
        if entry.kind is Kind.MEMBERSHIP and entry.term == raft.term and raft.is_leader:
            before = log.membership()
            after = members.decode(entry.payload)
            require(len(before.voters ^ after.voters) <= 1, "more than one voter changed:", before, after)
            pending = [
                other.index
                for other in log.entries
                if other.kind is Kind.MEMBERSHIP and other.index >= len(self.committed)
            ]
            require(not pending, "a change of members while", pending, "is not committed")
        log.entries.append(entry)

    def _elected(self, node, log, term):
        other = self.leaders.setdefault(term, node)
        require(other == node, "election safety:", node, "and", other, "lead term", term)
        for index in range(len(self.committed) - 1, log.base, -1):
            entry, known_in = self.committed[index]
            if known_in < term:
                require(
                    log.term_at(index) == entry.term,
                    "leader completeness:",
                    node,
                    "leads",
                    term,
                    "without",
                    index,
                )

    def commit(self, node, index, term, *, leads):
        log = self.logs[node]
        require(index <= log.last, node, "commits", index, "beyond its log")
        for at in range(max(self.commits[node], log.base) + 1, index + 1):
            entry = log.entries[at - log.base - 1]
            if at < len(self.committed):
                require(
                    self.committed[at][0] == entry, "state machine safety:", node, "has another entry at", at
                )
            else:
                self.committed.append((entry, term))
        if log.base and log.base < len(self.committed):
            require(self.committed[log.base][0].term == log.base_term, "another snapshot at", log.base)
        self.commits[node] = max(index, self.commits[node])
        if leads:
            voters = log.membership()
            having = [
                other for other, disk in self.disks.items() if disk.term_at(index) == log.term_at(index)
            ]
            having += [other for other, disk in self.disks.items() if disk.base > index]
            require(
                voters.is_majority(having), "entry", index, "counts as committed, durable only on", having
            )

    def _said(self, node, message, now_ms):
        kind = type(message)
        self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
        if kind is PreVoteRequest:
            return
        if kind is PreVoteResponse:
            if message.granted:
                since = now_ms - self.heard.get(node, float("-inf"))
                require(
                    since >= self.election_timeout_ms, node, "would elect", since, "ms after a leader's word"
                )
            return
        disk = self.disks[node]
        require(
            disk.hard_state.term >= message.term, node, "speaks in term", message.term, "before it is durable"
        )
        if kind is VoteRequest or (kind is VoteResponse and message.granted):
            candidate = node if kind is VoteRequest else message.target
            known = self.votes.setdefault((node, message.term), candidate)
            require(known == candidate, node, "votes for", known, "and", candidate, "in", message.term)
            if disk.hard_state.term == message.term:
                require(disk.hard_state.vote == candidate, node, "votes before that is durable")
        elif kind is AppendResponse and message.success:
            require(
                disk.last >= message.index, node, "acknowledges", message.index, "durable up to", disk.last
            )

    # At the end.

    def all_kept(self, nodes):
        """Everything that was ever committed is in these nodes' logs."""
        for node in nodes:
            log = self.logs[node]
            for index in range(log.base + 1, len(self.committed)):
                entry = self.committed[index][0]
                require(log.term_at(index) == entry.term, "lost:", node, "has no committed entry", index)
