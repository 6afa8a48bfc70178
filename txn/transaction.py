"""One transaction and one transactional id: plain state, explicit transitions, no I/O.

A transaction is (producer id, epoch, txn_seq). Its life is design, section 4:

    OPEN -> PREPARING -> COMMITTED        OPEN | PREPARING -> ABORTED        (both ends terminal)

A member of a group transaction stops on the way, with its vote durable and its outcome the group's (T10):

    PREPARING -> PREPARED -> COMMITTED | ABORTED
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from txn.keys import TxnKey, range_of

if TYPE_CHECKING:
    from txn.partition import Partition

NEVER_MS = 1 << 62
"""The deadline of a transaction that has none (KIP-939)."""

UNKNOWN_TERM = -1
"""In `Transaction.terms`: it may have been let in there, under whatever leader epoch."""

UNKNOWN_RANGE = -1
"""In `Transaction.terms`: in whatever ranges have, or had, the partition."""

MAX_EPOCH = 32767
"""Largest producer epoch (int16). The last one is kept for fencing, as in Kafka: see `TransactionalId.next_epoch`."""


class State(enum.StrEnum):
    OPEN = "OPEN"
    PREPARING = "PREPARING"
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.OPEN: frozenset({State.PREPARING, State.ABORTED}),
    State.PREPARING: frozenset({State.PREPARED, State.COMMITTED, State.ABORTED}),
    State.PREPARED: frozenset({State.COMMITTED, State.ABORTED}),
    State.COMMITTED: frozenset(),
    State.ABORTED: frozenset(),
}


class IllegalTransition(Exception):
    """A transaction was asked to go where its table does not lead: a fault of the broker, never of a client."""


@dataclass(slots=True)
class SegmentWrite:
    """What a transaction wrote to one partition inside one segment: offsets, both ends included."""

    first: int
    last: int


WritesBySegment = dict[int, SegmentWrite]
"""By segment id."""


def extend(writes: WritesBySegment, segment_id: int, first: int, last: int) -> None:
    """A batch more, in the order of the log."""
    write = writes.get(segment_id)
    if write is None:
        writes[segment_id] = SegmentWrite(first, last)
    else:
        write.last = max(write.last, last)


def within(writes: WritesBySegment, group: int) -> WritesBySegment:
    """Of these, what lies in segments of one range's own log."""
    return {segment_id: write for segment_id, write in writes.items() if range_of(segment_id) == group}


def joined(one: WritesBySegment, other: WritesBySegment) -> WritesBySegment:
    """Both."""
    found = {segment_id: SegmentWrite(write.first, write.last) for segment_id, write in one.items()}
    for segment_id, write in other.items():
        known = found.setdefault(segment_id, write)
        found[segment_id] = SegmentWrite(min(known.first, write.first), max(known.last, write.last))
    return found


def span(writes: WritesBySegment) -> tuple[int, int]:
    """(first, last) offset, of one or more."""
    return min(write.first for write in writes.values()), max(write.last for write in writes.values())


@dataclass(frozen=True, slots=True)
class PendingOffset:
    """One offset of a TxnOffsetCommit, waiting for its transaction's end."""

    offset: int
    leader_epoch: int
    metadata: str


TopicPartition = tuple[str, int]
Place = tuple[int, str, int]
"""(range's group, topic, partition)"""


class Membership(NamedTuple):
    """Which attempt at which batch of which sink a transaction is enlisted in (design T10)."""

    sink: str
    batch: int
    attempt: str


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction between its first request and its settlement."""

    transactional_id: str
    producer_id: int
    epoch: int
    txn_seq: int
    created_ms: int
    deadline_ms: int
    state: State = State.OPEN
    finalized_ms: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    writes: dict[Partition, WritesBySegment] = field(default_factory=dict)
    """Per partition, what it wrote to each of its segments."""
    lsns: dict[Any, int] = field(default_factory=dict)
    """Per range log, the position up to which a commit must be durable."""
    terms: dict[Place, int] = field(default_factory=dict)
    """Where other nodes lead the partitions: the leader epoch under which each was let in, or written to last. A range
    that was split or merged since is one more place of the partition."""
    offsets: dict[str, dict[TopicPartition, PendingOffset]] = field(default_factory=dict)
    op_count: int = 0
    two_phase: bool = False
    """Of a KIP-939 producer: each answer waits for the disk, so that the transaction outlives everything, and no
    deadline ends it."""
    untraced: bool = False
    """Nothing tells the next leader that it was begun, but that its id's record says so of all (`TransactionalId`)."""
    membership: Membership | None = None
    """The group transaction that decides this one's outcome, if it is enlisted in one."""
    key: TxnKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.producer_id, self.epoch, self.txn_seq

    @classmethod
    def from_record(
        cls, key: TxnKey, header: Mapping[str, Any], ops: Iterable[Mapping[str, Any]]
    ) -> Transaction:
        """As its header and its op records have it, but for `writes`: what the `write` ones name, a reader looks up."""
        transaction = cls(
            header["txid"],
            *key,
            created_ms=header["created_ms"],
            deadline_ms=header["deadline_ms"],
            state=State(header["state"]),
            finalized_ms=header["finalized_ms"],
            partitions={(topic, index) for topic, index in header["partitions"]},
            groups=set(header["groups"]),
            membership=Membership(*header["member"]) if header["member"] else None,
            terms={(group, topic, index): term for group, topic, index, term in header.get("terms", ())},
        )
        for op in ops:
            transaction.op_count += 1
            if op["kind"] == "offsets":
                offsets = transaction.offsets.setdefault(op["group"], {})
                for topic, index, offset, leader_epoch, metadata in op["offsets"]:
                    offsets[(topic, index)] = PendingOffset(offset, leader_epoch, metadata)
        return transaction

    def move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"transaction {self.key} of {self.transactional_id!r}: {self.state} -> {state}"
            )
        self.state = state

    def record_write(self, partition: Partition, segment_id: int, first: int, last: int) -> bool:
        """Note an append; whether it was the transaction's first to this partition."""
        segments = self.writes.get(partition)
        if segments is None:
            self.writes[partition] = {segment_id: SegmentWrite(first, last)}
            return True
        extend(segments, segment_id, first, last)
        return False

    def header(self, state: State | None = None) -> dict[str, Any]:
        """The record under `/txn/`; as if it were in that state, if one is given.

        `terms` are for another coordinator, which may go on with it, or has to see it closed where it was let in.
        """
        state = self.state if state is None else state
        record: dict[str, Any] = {
            "state": state.value,
            "txid": self.transactional_id,
            "created_ms": self.created_ms,
            "deadline_ms": self.deadline_ms,
            "finalized_ms": self.finalized_ms if state is not State.OPEN else 0,
            "partitions": [list(at) for at in sorted(self.partitions)] if state is State.OPEN else [],
            "groups": sorted(self.groups) if state is State.OPEN else [],
            "member": list(self.membership) if self.membership else None,
        }
        if self.terms and state in (State.OPEN, State.ABORTED):
            record["terms"] = [[*place, term] for place, term in sorted(self.terms.items())]
        return record

    def write_ops(self) -> list[dict[str, Any]]:
        """The `write` records under `/txn-op/`: one per segment, not per partition, so that commits stay cheap."""
        by_segment: dict[int, dict[str, Any]] = {}
        for partition, segments in self.writes.items():
            for segment_id, write in segments.items():
                place = range_of(segment_id), partition.topic, partition.index
                term = self.terms.get(place, partition.log.term)
                op = by_segment.get(segment_id)
                if op is None:
                    op = by_segment[segment_id] = {
                        "kind": "write",
                        "topic": partition.topic,
                        "segment": segment_id,
                        "term": term,
                        "writes": [],
                    }
                # The newest: where leaders continue each other, partitions of a segment differ.
                op["term"] = max(op["term"], term)
                op["writes"].append([partition.index, write.first, write.last])
        return list(by_segment.values())


def offsets_op(group_id: str, offsets: dict[TopicPartition, PendingOffset]) -> dict[str, Any]:
    """The `offsets` record under `/txn-op/`."""
    return {
        "kind": "offsets",
        "group": group_id,
        "offsets": [[t, p, o.offset, o.leader_epoch, o.metadata] for (t, p), o in offsets.items()],
    }


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How the last transaction of an id ended: what makes EndTxn idempotent (design T5)."""

    producer_id: int
    epoch: int
    committed: bool


@dataclass(slots=True, eq=False)
class TransactionalId:
    """The producer that holds a transactional id now, and its transaction if one is open or ending."""

    name: str
    producer_id: int
    epoch: int
    timeout_ms: int
    term: int
    """The node's term when this record was written; older than the fence term: see `Identities.holder`."""
    last_end: LastEnd | None = None
    previous: tuple[int, int] | None = None
    """(producer id, epoch) before the last InitProducerId that named them: its retry gets the same answer."""
    two_phase: bool = False
    """Two-phase commit is enabled for this producer (KIP-939)."""
    lost: bool = False
    """A start found that a transaction of its epoch was begun, and cut off: it can only abort."""
    used_ms: int = 0
    """When it was last used, by the wall clock; 0: not known. See `txn.id_expiry`."""
    untraced: bool = False
    """In a cluster, of transactions v2: a transaction may have been begun since this record was written without having
    been made durable before its first write was answered. See `txn.untraced`."""
    early_commit_epoch: int = -1
    """The last epoch whose commit came with nothing open, and was asked to come again. In memory alone."""
    open: Transaction | None = None
    busy: bool = False
    """A durable step (an end, an InitProducerId) is under way; whoever comes meanwhile waits in line."""
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The record under `/txid/`."""
        last = self.last_end
        return {
            "pid": self.producer_id,
            "epoch": self.epoch,
            "timeout_ms": self.timeout_ms,
            "term": self.term,
            "last_end": [last.producer_id, last.epoch, last.committed] if last else None,
            "previous": list(self.previous) if self.previous else None,
            "two_phase": self.two_phase,
            "lost": self.lost,
            "used_ms": self.used_ms,
            "untraced": self.untraced,
        }

    @classmethod
    def from_record(cls, name: str, record: dict[str, Any]) -> TransactionalId:
        last, previous = record["last_end"], record["previous"]
        return cls(
            name,
            record["pid"],
            record["epoch"],
            record["timeout_ms"],
            record["term"],
            LastEnd(*last) if last else None,
            (previous[0], previous[1]) if previous else None,
            record["two_phase"],
            record["lost"],
            record.get("used_ms", 0),
            record.get("untraced", False),
        )

    def note_lost(self) -> None:
        """A power cut took a transaction begun after its last end, as a trace on the disk or a write that came for it
        tells: the next EndTxn is that one's (design T5)."""
        self.last_end = LastEnd(self.producer_id, self.epoch, False)

    def commit_refused(self) -> None:
        """The record written with PREPARING foretold a commit, and the verdict is the other. A repeated EndTxn must
        hear that, as what its client aborts after."""
        last = self.last_end
        if last is not None:
            self.last_end = replace(last, committed=False)
            # Where the epoch stands still, batches that are missing would be missed by those that follow.
            self.lost |= (self.producer_id, self.epoch) == (last.producer_id, last.epoch)

    def was(self, producer_id: int) -> bool:
        """Whether this id was held under that producer id before its epochs ran out."""
        return self.last_end is not None and self.last_end.producer_id == producer_id

    def next_epoch(self, bump: int, new_producer_id: Callable[[], int]) -> tuple[int, int]:
        """(producer id, epoch) after a bump; a fresh producer id at epoch 0 where the epochs run out.

        The largest epoch is never handed to a client (KIP-360), so that a fence above it always exists.
        """
        if self.epoch + bump >= MAX_EPOCH:
            return new_producer_id(), 0
        return self.producer_id, self.epoch + bump
