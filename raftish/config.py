"""Times and limits of a group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    election_timeout_ms: float = 1000
    """A node that heard of no leader for one to two of these stands for election; a leader that heard no majority
    for one of them steps down; no vote is given within one of them after a leader was heard."""
    heartbeat_ms: float = 150
    retry_ms: float = 500
    """What was sent and not acknowledged for so long is sent again."""
    clock_drift: float = 0.05
    """By how much, as a part of it, one node's clock may run faster than another's. Leases rest on it."""
    lease_reads: bool = True
    max_message_bytes: int = 1 << 20
    """Of the payloads in one append; a single larger one travels alone."""
    max_inflight_messages: int = 64
    """Per follower; likewise the bytes."""
    max_inflight_bytes: int = 8 << 20
    max_uncommitted_bytes: int = 64 << 20
    """Proposals above it are refused."""
    max_pending_reads: int = 10_000
    promote_lag: int = 1000
    """By how many entries a learner may be behind when it becomes a voter."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms < self.election_timeout_ms:
            raise ValueError("heartbeats must come within the election timeout")
        if not 0 <= self.clock_drift < 1:
            raise ValueError("clock_drift is a part, from 0 to below 1")
        if min(self.max_message_bytes, self.max_inflight_messages, self.max_inflight_bytes) < 1:
            raise ValueError("limits are positive")

    @property
    def lease_ms(self) -> float:
        """By the leader's clock, how long the slowest promise of `election_timeout_ms` lasts at least."""
        return self.election_timeout_ms / (1 + self.clock_drift)
