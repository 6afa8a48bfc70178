"""Limits and intervals of consumer groups of the new protocol, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from broker.groups.consumer.assignors import ASSIGNORS


class MigrationPolicy(Enum):
    """Kafka's group.consumer.migration.policy: which way a group with members may change its protocol.

    A group without members takes the protocol of whoever joins, whatever the policy.
    """

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Raises ValueError for values that contradict each other."""

    session_timeout_ms: int = 45_000
    """Kafka's group.consumer.session.timeout.ms: a member that is not heard of for so long is out."""

    heartbeat_interval_ms: int = 5_000
    """Kafka's group.consumer.heartbeat.interval.ms, as the longest: while there are few members they are asked
    to come more often, since a member hears of a change only when it comes."""

    assignment_interval_ms: int = 1_000
    """Kafka's group.consumer.assignment.interval.ms, as the longest: a small group is assigned anew at once."""

    assignors: tuple[str, ...] = ("uniform", "range")
    """Kafka's group.consumer.assignors. The first is that of groups whose members name none."""

    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ValueError("need 0 < heartbeat_interval_ms < session_timeout_ms")
        if self.assignment_interval_ms < 0:
            raise ValueError("assignment_interval_ms must not be negative")
        unknown = [name for name in self.assignors if name not in ASSIGNORS]
        if unknown or not self.assignors or len(set(self.assignors)) < len(self.assignors):
            known = ", ".join(ASSIGNORS)
            raise ValueError(f"assignors must name some of {known}, each once; not {list(self.assignors)}")
