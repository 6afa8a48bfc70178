"""Limits and delays of consumer groups, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Raises ValueError for values that contradict each other."""

    min_session_timeout_ms: int = 6_000
    """Kafka's group.min.session.timeout.ms; a shorter one is refused with INVALID_SESSION_TIMEOUT."""

    max_session_timeout_ms: int = 1_800_000
    """Kafka's group.max.session.timeout.ms."""

    initial_rebalance_delay_ms: int = 0
    """Kafka's group.initial.rebalance.delay.ms: how long an empty group waits for more than its first member.

    Every further member extends the wait by as much again, up to the group's rebalance timeout.
    """

    new_member_join_timeout_ms: int = 300_000
    """How long a member that never was in a generation may sit in a held JoinGroup.

    It cannot send heartbeats yet, so nothing else would tell that its client is gone.
    """

    max_groups: int = 20_000
    """Groups with or without members; a join that would create one more gets GROUP_MAX_SIZE_REACHED."""

    max_members_per_group: int = 5_000
    """Kafka's group.max.size. Ids handed out and not used yet (KIP-394) have a limit of the same size."""

    max_memory_bytes: int = 256 * 1024 * 1024
    """What all members of all groups together may take: ids, protocol metadata and assignments.

    A join or an assignment that would pass it gets GROUP_MAX_SIZE_REACHED and changes nothing.
    """

    def __post_init__(self) -> None:
        if not 0 < self.min_session_timeout_ms <= self.max_session_timeout_ms:
            raise ValueError("need 0 < min_session_timeout_ms <= max_session_timeout_ms")
        if self.initial_rebalance_delay_ms < 0:
            raise ValueError("initial_rebalance_delay_ms must not be negative")
        for name in ("new_member_join_timeout_ms", "max_groups", "max_members_per_group", "max_memory_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
