"""What a leader does, for as long as it is one: it replicates, commits, confirms itself and hands over.

Guarantees: an entry counts as committed when a majority of the voters has it durably, this node among them only if
its own flush is done, and only if it is of this term (raft paper, 5.4.2); a read under the lease is given only within
`Config.lease_ms` of a moment when a majority promised to elect nobody for longer than that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raftish import membership as members
from raftish.entries import Entry, Kind
from raftish.membership import Change, ChangeRefused, Membership, Step
from raftish.messages import (
    NO_ROUND,
    AppendRequest,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    SnapshotRequest,
    TimeoutNow,
)
from raftish.progress import Progress, Stage
from raftish.reads import PendingReads, ReadReady

if TYPE_CHECKING:
    from raftish.core import Raft

MAX_ROUNDS = 64
NEVER = float("-inf")


class NotNow(Exception):
    """The leader cannot take this now: too much is uncommitted, or it is handing over. Nothing was done."""


class Leadership:
    """Of one term. `raft` is the node that it belongs to."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._log = raft.log
        self._config = raft.config
        self._id = raft.node_id
        self.progress: dict[int, Progress] = {}
        self.reads = PendingReads()
        self.transfer_target: int | None = None
        self._transfer_deadline_ms = 0.0
        self._handed_over = False
        """A TimeoutNow went out in this term: it may come late, so no lease holds any more."""
        self._quorum_until_ms = NEVER
        self._round = 0
        self._round_wanted = True
        self._rounds: deque[tuple[int, float]] = deque(maxlen=MAX_ROUNDS)
        self._last_beat = raft.now_ms // raft.config.heartbeat_ms
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self.members_changed(raft.now_ms)
        self.append([(Kind.NOOP, b"")])

    # The log.

    @property
    def is_nearly_full(self) -> bool:
        """Whether so much waits to be committed that the next proposal may be refused: 15 parts of 16."""
        return self._uncommitted_bytes * 16 > self._config.max_uncommitted_bytes * 15

    def append(self, contents: Sequence[tuple[Kind, bytes]]) -> tuple[int, int]:
        """(first, last) index; raises `NotNow`."""
        size = sum(len(payload) for _, payload in contents)
        if self._uncommitted and self._uncommitted_bytes + size > self._config.max_uncommitted_bytes:
            raise NotNow(f"{self._uncommitted_bytes} bytes wait to be committed")
        first = self._log.last_index + 1
        term = self._raft.term
        self._log.append(
            Entry(term, first + position, kind, payload) for position, (kind, payload) in enumerate(contents)
        )
        self._uncommitted.append((self._log.last_index, size))
        self._uncommitted_bytes += size
        return first, self._log.last_index

    def propose(self, payloads: Sequence[bytes], kind: Kind = Kind.NORMAL) -> tuple[int, int]:
        if self.transfer_target is not None:
            raise NotNow(f"leadership is being handed to node {self.transfer_target}")
        return self.append([(kind, payload) for payload in payloads])

    def change_members(self, change: Change) -> tuple[int, int]:
        raft = self._raft
        if self.transfer_target is not None:
            raise NotNow(f"leadership is being handed to node {self.transfer_target}")
        if not self._has_committed_in_term():
            raise NotNow("nothing of this term is committed yet")
        if self._change_is_pending():
            raise NotNow(f"the change of members at {raft.memberships.index} is not committed yet")
        changed = raft.membership.changed(change)
        if change.step is Step.PROMOTE:
            progress = self.progress[change.node]
            lag = self._log.last_index - progress.match
            if lag > self._config.promote_lag:
                raise ChangeRefused(f"node {change.node} is {lag} entries behind")
            if progress.stage is not Stage.REPLICATE:
                # In a short log nobody is far behind, not even a node that is not there.
                raise ChangeRefused(f"node {change.node} does not answer")
        first, last = self.append([(Kind.MEMBERSHIP, members.encode(changed))])
        raft.memberships.append(first, changed)
        self.members_changed(raft.now_ms)
        return first, last

    def _change_is_pending(self) -> bool:
        return self._raft.memberships.index > self._raft.commit

    def _has_committed_in_term(self) -> bool:
        return self._log.term_at(self._raft.commit) == self._raft.term

    def members_changed(self, now_ms: float) -> None:
        self._quorum_until_ms = NEVER
        wanted = [node for node in self._raft.membership if node != self._id]
        for node in wanted:
            if node not in self.progress:
                self.progress[node] = Progress(self._config, self._log.last_index + 1, now_ms)
        for node in set(self.progress).difference(wanted):
            del self.progress[node]
            if node == self.transfer_target:
                self.transfer_target = None

    def _own_match(self) -> int:
        return self._log.durable_index

    def advance_commit(self) -> bool:
        """Whether more is committed than before."""
        matches = {node: progress.match for node, progress in self.progress.items()}
        matches[self._id] = self._own_match()
        index = self._raft.membership.majority_of(matches, 0)
        if index <= self._raft.commit or not self._may_count(index):
            return False
        self._raft.commit_to(index)
        while self._uncommitted and self._uncommitted[0][0] <= index:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        if self.reads.place(index, self._round + 1):
            self._round_wanted = True
        return True

    def _may_count(self, index: int) -> bool:
        return self._log.term_at(index) == self._raft.term

    # What followers answer.

    def on_append_response(self, message: AppendResponse) -> None:
        progress = self.progress.get(message.source)
        if progress is None:
            return
        now_ms = self._raft.now_ms
        progress.heard_ms = now_ms
        if message.success:
            if message.index > self._log.last_index:
                raise AssertionError(f"node {message.source} has {message.index}, which was never sent")
            if progress.acknowledged(message.index, now_ms):
                self.advance_commit()
                self._hand_over_if_ready()
        else:
            common = self._log.last_index_within(message.hint_index, message.hint_term)
            progress.refused(message.index, common + 1, now_ms)

    def on_heartbeat_response(self, message: HeartbeatResponse) -> None:
        progress = self.progress.get(message.source)
        if progress is None:
            return
        progress.heard_ms = self._raft.now_ms
        if message.round <= progress.acked_round:
            return
        progress.acked_round = message.round
        for sent_round, sent_ms in reversed(self._rounds):
            if sent_round == message.round:
                progress.acked_sent_ms = sent_ms
                break
        if len(self.reads):
            self._give_reads()

    # Being sure of oneself.

    def has_quorum(self) -> bool:
        """Whether a majority was heard within the election timeout."""
        now_ms = self._raft.now_ms
        if now_ms < self._quorum_until_ms:
            # Whoever was heard since can only have made it later.
            return True
        heard = {node: progress.heard_ms for node, progress in self.progress.items()}
        heard[self._id] = now_ms
        heard_ms = self._raft.membership.majority_of(heard, NEVER)
        self._quorum_until_ms = heard_ms + self._config.election_timeout_ms
        return now_ms < self._quorum_until_ms

    def lease_until_ms(self) -> float:
        acked = {node: progress.acked_sent_ms for node, progress in self.progress.items()}
        acked[self._id] = self._raft.now_ms
        return self._raft.membership.majority_of(acked, NEVER) + self._config.lease_ms

    def _lease_holds(self) -> bool:
        return (
            self._config.lease_reads and not self._handed_over and self._raft.now_ms < self.lease_until_ms()
        )

    def read(self, context: Any) -> None:
        """Raises `NotNow` where too many wait."""
        if len(self.reads) >= self._config.max_pending_reads:
            raise NotNow(f"{len(self.reads)} reads wait")
        placed = self._has_committed_in_term()
        if placed and self._lease_holds():
            self._raft.give_reads([ReadReady(context, self._raft.commit)])
            return
        self.reads.add(context, self._raft.commit if placed else None, self._round + 1)
        self._round_wanted = True

    def _give_reads(self) -> None:
        rounds = {node: progress.acked_round for node, progress in self.progress.items()}
        rounds[self._id] = self._round
        self._raft.give_reads(self.reads.confirmed(self._raft.membership.majority_of(rounds, 0)))

    # Handing over.

    def transfer(self, target: int) -> None:
        if target not in self._raft.membership.voters or target == self._id:
            raise ChangeRefused(f"node {target} is not another voter")
        if self.transfer_target is not None:
            raise NotNow(f"leadership is being handed to node {self.transfer_target}")
        self.transfer_target = target
        self._transfer_deadline_ms = self._raft.now_ms + self._config.election_timeout_ms
        self._hand_over_if_ready()

    def _hand_over_if_ready(self) -> None:
        target = self.transfer_target
        if (
            target is not None
            and self._raft.leadership is self
            and self.progress[target].match == self._log.last_index
        ):
            self._handed_over = True
            self._raft.send(TimeoutNow(self._id, target, self._raft.term))

    def leave(self) -> None:
        """Its own removal is committed: tell the others, and let the one that has most go on."""
        self.send_all()
        voters = sorted(self._raft.membership.voters)
        best = max(voters, key=lambda voter: self.progress[voter].match)
        self._raft.send(TimeoutNow(self._id, best, self._raft.term))

    # Time, and what goes out.

    def tick(self) -> bool:
        """Whether there is something to send."""
        now_ms = self._raft.now_ms
        if self.transfer_target is not None and now_ms >= self._transfer_deadline_ms:
            self.transfer_target = None
        # By the clock, not by the last round, so that all groups of a node beat in the same tick.
        beat = now_ms // self._config.heartbeat_ms
        if beat != self._last_beat:
            self._last_beat = beat
            self._round_wanted = True
        again = False
        for progress in self.progress.values():
            again |= progress.tick(now_ms)
        return again or self._round_wanted

    def send_all(self) -> None:
        """Once per output: whatever came together in a turn travels together."""
        for node, progress in self.progress.items():
            self._send_appends(node, progress)
        if self._round_wanted:
            self._round_wanted = False
            self._send_round()

    def _send_round(self) -> None:
        raft = self._raft
        self._round += 1
        self._rounds.append((self._round, raft.now_ms))
        for node, progress in self.progress.items():
            commit = min(progress.match, raft.commit)
            raft.send(Heartbeat(self._id, node, raft.term, self._round, commit))
        if len(self.reads):
            self._give_reads()

    def _send_appends(self, node: int, progress: Progress) -> None:
        raft, log = self._raft, self._log
        while progress.may_send:
            first = progress.next
            if first > log.last_index and progress.stage is not Stage.PROBE:
                break
            prev_term = log.term_at(first - 1)
            if prev_term is None or first < log.first_index:
                self._send_snapshot(node, progress)
                return
            entries: tuple[Entry, ...] = ()
            if first <= log.last_index:
                entries = log.entries(first, log.last_index, self._config.max_message_bytes)
            last = first - 1 + len(entries)
            raft.send(AppendRequest(self._id, node, raft.term, first - 1, prev_term, raft.commit, entries))
            progress.sent(last, sum(len(entry.payload) for entry in entries), raft.now_ms)
            progress.sent_commit = max(progress.sent_commit, min(raft.commit, last))
        commit = min(progress.match, raft.commit)
        if commit > progress.sent_commit:
            # Nothing to send that would tell it; should it be lost, the next round tells it again.
            progress.sent_commit = commit
            raft.send(Heartbeat(self._id, node, raft.term, NO_ROUND, commit))

    def _send_snapshot(self, node: int, progress: Progress) -> None:
        raft = self._raft
        index = self._log.first_index - 1
        term = self._log.term_at(index)
        assert term is not None
        progress.needs_snapshot(raft.now_ms)
        known: Membership = raft.memberships.committed(raft.commit)
        raft.send(SnapshotRequest(self._id, node, raft.term, index, term, known))
