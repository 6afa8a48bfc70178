"""What the nodes of one group say to each other. Node ids are non-negative; times are not in here at all.

`term` is the sender's, but in a pre-vote, where it is the term that would be begun.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftish.entries import Entry
from raftish.membership import Membership

NO_ROUND: Final = 0


@dataclass(frozen=True, slots=True)
class PreVoteRequest:
    """Would you vote for me? Changes nothing at the receiver (dissertation, 9.6)."""

    source: int
    target: int
    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class PreVoteResponse:
    source: int
    target: int
    term: int
    """Granted: the term asked for. Refused: the receiver's own."""
    granted: bool


@dataclass(frozen=True, slots=True)
class VoteRequest:
    source: int
    target: int
    term: int
    last_index: int
    last_term: int
    transfer: bool
    """The leader asked for it: do not refuse for its sake (dissertation, 4.2.3)."""


@dataclass(frozen=True, slots=True)
class VoteResponse:
    source: int
    target: int
    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest:
    source: int
    target: int
    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class AppendResponse:
    source: int
    target: int
    term: int
    success: bool
    index: int
    """Success: everything up to it equals the leader's log and is durable here. Else: the prev_index refused."""
    hint_index: int
    """Refused: the last index at which this log may equal the leader's."""
    hint_term: int
    """Refused: this log's term there."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Apart from appends, so that those of all groups between two nodes share one datagram."""

    source: int
    target: int
    term: int
    round: int
    """Counts up in a term; whoever answers it confirms the leader as of the moment it was sent. `NO_ROUND` is not
    answered: it tells of the commit index between rounds."""
    commit: int
    """No further than the target has acknowledged."""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    source: int
    target: int
    term: int
    round: int


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The log before `index` is gone: take the state as of it. Files travel outside."""

    source: int
    target: int
    term: int
    index: int
    index_term: int
    membership: Membership


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Stand for election at once (dissertation, 3.10)."""

    source: int
    target: int
    term: int


@dataclass(frozen=True, slots=True)
class Note:
    """Of the program above, to its like on another node: no group hears of it. May be lost."""

    source: int
    target: int
    term: int
    payload: bytes


Message = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | SnapshotRequest
    | TimeoutNow
    | Note
)
