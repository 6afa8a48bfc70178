"""What the core hands out, and what it holds back until something is durable.

Guarantee: a message given to `say` leaves only when this node's term and vote, as they were then, are durable.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from raftish.entries import Entry, HardState
from raftish.log import RaftLog
from raftish.messages import Message, SnapshotRequest
from raftish.reads import ReadReady


@dataclass(slots=True)
class Output:
    seq: int = 0
    """Names what is to be persisted below, for `Raft.persisted`; 0 where there is nothing."""
    hard_state: HardState | None = None
    truncate_from: int | None = None
    """First take away every entry from this index on,"""
    entries: tuple[Entry, ...] = ()
    """then append these."""
    messages: list[Message] = field(default_factory=list)
    commit: int = 0
    """Everything up to here is committed."""
    reads: list[ReadReady] = field(default_factory=list)
    restore: SnapshotRequest | None = None
    """Fetch this state; then `Raft.snapshot_installed`, or `snapshot_failed`."""


class Outbox:
    def __init__(self, hard_state: HardState) -> None:
        self.hard_state = hard_state
        self.output = Output()
        self._changed = False
        self._hard_state_seq = 0
        """The output that this hard state is in, or will be."""
        self._next_seq = 1
        self._persisted_seq = 0
        self._held: deque[tuple[int, Message]] = deque()

    def set_hard_state(self, hard_state: HardState) -> None:
        if hard_state != self.hard_state:
            self.hard_state = hard_state
            self._changed = True
            self._hard_state_seq = self._next_seq

    @property
    def hard_state_is_durable(self) -> bool:
        return self._hard_state_seq <= self._persisted_seq

    def send(self, message: Message) -> None:
        self.output.messages.append(message)

    def say(self, message: Message) -> None:
        if self.hard_state_is_durable:
            self.send(message)
        else:
            self._held.append((self._hard_state_seq, message))

    def persisted(self, seq: int) -> bool:
        """Whether that is news."""
        if seq >= self._next_seq:
            raise AssertionError(f"output {seq} was never given")
        if seq <= self._persisted_seq:
            return False
        self._persisted_seq = seq
        while self._held and self._held[0][0] <= seq:
            self.send(self._held.popleft()[1])
        return True

    def take(self, log: RaftLog) -> Output:
        output, self.output = self.output, Output()
        if self._changed or log.has_unwritten:
            output.seq = self._next_seq
            self._next_seq += 1
            if self._changed:
                self._changed = False
                output.hard_state = self.hard_state
            output.truncate_from, output.entries = log.hand_out(output.seq)
        return output
