"""What a node does with what its term's leader sends.

Guarantees: nothing committed is ever truncated; an acknowledgement never goes beyond what is durable, nor beyond what
was compared with the leader's log in this term; while a snapshot is fetched the log takes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from raftish import membership as members
from raftish.entries import Entry, Kind
from raftish.membership import Membership, Memberships
from raftish.messages import (
    NO_ROUND,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    SnapshotRequest,
)

if TYPE_CHECKING:
    from raftish.core import Raft


class Following:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._log = raft.log
        self._verified_index = 0
        """The log equals that of the term's leader up to here."""
        self._acked_index = 0
        self._ack_due = False
        self.restoring: SnapshotRequest | None = None

    def term_began(self) -> None:
        self._verified_index = self._acked_index = 0
        self._ack_due = False

    def on_append_request(self, message: AppendRequest) -> None:
        if self.restoring is not None:
            return
        raft, log, prev_index = self._raft, self._log, message.prev_index
        entries = message.entries
        if prev_index < raft.commit:
            # What is committed here is the leader's as well: go on after it.
            entries = entries[raft.commit - prev_index :]
            prev_index = raft.commit
        elif log.term_at(prev_index) != message.prev_term:
            hint = log.last_index_within(prev_index, message.prev_term)
            term_there = log.term_at(hint) or 0
            raft.say(
                AppendResponse(raft.node_id, message.source, raft.term, False, prev_index, hint, term_there)
            )
            return
        for position, entry in enumerate(entries):
            if log.term_at(entry.index) != entry.term:
                self._write(entries[position:])
                break
        last = prev_index + len(entries)
        self._verify(last)
        raft.commit_to(min(message.commit, last))

    def _write(self, entries: Sequence[Entry]) -> None:
        first = entries[0].index
        if first <= self._log.last_index:
            self._truncate(first)
        self._log.append(entries)
        for entry in entries:
            if entry.kind is Kind.MEMBERSHIP:
                self._raft.memberships.append(entry.index, members.decode(entry.payload))

    def _truncate(self, first: int) -> None:
        if first <= self._raft.commit:
            raise AssertionError(f"entry {first} is committed and would be truncated")
        self._log.truncate(first)
        self._raft.memberships.truncate(first)

    def on_heartbeat(self, message: Heartbeat) -> None:
        raft = self._raft
        # The leader names no more than this node acknowledged to it in this term, be it before a restart: that is the
        # leader's, and durable here. Nothing else would tell a node that has restarted, where nothing new is proposed.
        raft.commit_to(min(message.commit, self._durable_index()))
        if message.round != NO_ROUND:
            raft.say(HeartbeatResponse(raft.node_id, message.source, raft.term, message.round))

    # Acknowledging.

    def _verify(self, index: int) -> None:
        self._verified_index = max(self._verified_index, index)
        self._ack_due = True

    def _durable_index(self) -> int:
        return self._log.durable_index

    def acknowledge(self) -> None:
        """If an answer is due and something new can be said: how far this log is durable."""
        raft = self._raft
        if not self._ack_due or raft.leader in (None, raft.node_id) or not raft.outbox.hard_state_is_durable:
            return
        assert raft.leader is not None
        index = min(self._verified_index, self._durable_index())
        if index == self._verified_index:
            self._ack_due = False
        elif index <= self._acked_index:
            return
        self._acked_index = index
        raft.send(AppendResponse(raft.node_id, raft.leader, raft.term, True, index, 0, 0))

    # Snapshots.

    def on_snapshot_request(self, message: SnapshotRequest) -> None:
        if self.restoring is not None:
            return
        raft = self._raft
        if message.index <= raft.commit:
            self._verify(raft.commit)
        elif self._log.term_at(message.index) == message.index_term:
            self._verify(message.index)
            raft.commit_to(message.index)
        else:
            self.restoring = message
            raft.outbox.output.restore = message

    def installed(self, known_members: Iterable[tuple[int, Membership]] | None) -> None:
        request, self.restoring = self.restoring, None
        if request is None:
            raise AssertionError("no snapshot was asked for")
        raft = self._raft
        self._log.restart()
        index = self._log.last_index
        if index < request.index:
            raise AssertionError(f"the log ends at {index}, {request.index} was asked for")
        raft.memberships = Memberships(known_members or [(request.index, request.membership)])
        raft.memberships.forget_before(index)
        raft.commit = index
        if raft.leader is not None:
            # What is committed is in every later leader's log.
            self._verify(index)
