"""The state of a group transaction: plain data and its transitions (design T10)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from txn import keys
from txn.metastore import ABSENT
from txn.transaction import IllegalTransition, State, Transaction
from wire.errors import ErrorCode, KafkaError


class GroupState(enum.StrEnum):
    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.OPEN: frozenset({GroupState.COMMITTED, GroupState.ABORTED}),
    GroupState.COMMITTED: frozenset(),
    GroupState.ABORTED: frozenset(),
}

Winner = tuple[str, int, int]
"""(transactional id, producer id, epoch) under which a member wrote."""


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a committer or a member hears of a batch. `repeated`: it was decided before this call."""

    batch: int
    attempt: str
    members: int
    repeated: bool


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Undecided groups on this node, members of one, and the longest time one may stay undecided, in ms."""

    groups: int = 10_000
    members: int = 100_000
    timeout_ms: int = 86_400_000


OutcomeReply = Callable[[GroupOutcome | KafkaError], None]


@dataclass(slots=True, eq=False)
class GroupTransaction:
    """One batch of one sink while it is being decided."""

    sink: str
    batch: int
    attempt: str
    generation: int
    deadline_ms: int
    version: int = ABSENT
    """Of its record in the store."""
    state: GroupState = GroupState.OPEN
    superseded: set[str] = field(default_factory=set)
    winners: list[Winner] = field(default_factory=list)
    members: dict[keys.TxnKey, Transaction] = field(default_factory=dict)
    busy: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Of its record in the store."""
        return keys.txn_group(self.sink, self.batch)

    def move(self, state: GroupState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"group {self.sink!r} batch {self.batch}: {self.state} -> {state}")
        self.state = state

    def go_on(self) -> None:
        """A durable step of it is over: whoever waited goes on."""
        self.busy = False
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()

    def check_supersedes(self, attempt: str, generation: int) -> None:
        """Whether another attempt may take the group over. Raises KafkaError: PRODUCER_FENCED."""
        if attempt in self.superseded or generation < self.generation:
            raise KafkaError(
                ErrorCode.producer_fenced,
                f"attempt {attempt!r} at batch {self.batch} of {self.sink!r} was superseded by {self.attempt!r}",
            )

    def voted(self, winners: Sequence[Winner]) -> list[Transaction]:
        """The members of these names.

        Raises:
            KafkaError: INVALID_TXN_STATE where one has not voted, INVALID_REQUEST where one is named twice.
        """
        by_identity = {
            (one.transactional_id, one.producer_id, one.epoch): one
            for one in self.members.values()
            if one.state is State.PREPARED and one.membership is not None
        }
        missing = [winner for winner in winners if winner not in by_identity]
        if missing:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"{len(missing)} of {len(winners)} named members have not voted in attempt {self.attempt!r}: "
                f"{missing[0]}",
            )
        if len(set(winners)) != len(winners):
            raise KafkaError(ErrorCode.invalid_request, "a member is named twice")
        return [by_identity[winner] for winner in winners]

    def record(self) -> dict[str, Any]:
        """The record under `/txn-group/`."""
        return {
            "state": str(self.state),
            "attempt": self.attempt,
            "generation": self.generation,
            "deadline_ms": self.deadline_ms,
            "superseded": sorted(self.superseded),
            "winners": [list(winner) for winner in self.winners],
        }

    @classmethod
    def from_record(cls, sink: str, batch: int, record: dict[str, Any], version: int) -> GroupTransaction:
        return cls(
            sink,
            batch,
            record["attempt"],
            record["generation"],
            record["deadline_ms"],
            version,
            GroupState(record["state"]),
            set(record["superseded"]),
            [(name, producer_id, epoch) for name, producer_id, epoch in record["winners"]],
        )

    def is_winner(self, transaction: Transaction) -> bool:
        return (transaction.transactional_id, transaction.producer_id, transaction.epoch) in self.winners
