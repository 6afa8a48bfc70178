"""The events of a history, sorted by what they are about."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.history.history_events import (
    Begun,
    Compacted,
    Deleted,
    EndCalled,
    Ended,
    Event,
    Fenced,
    FinalEnds,
    FinalOffset,
    FinalRead,
    ListRead,
    OffsetSeen,
    OffsetsSent,
    Partition,
    Placed,
    PlainAcked,
    Read,
    Seen,
    Sent,
    Transaction,
    Unusable,
)


@dataclass(slots=True)
class Txn:
    instance: int = 0
    sent: list[Sent] = field(default_factory=list)
    offsets: list[OffsetsSent] = field(default_factory=list)
    lists: list[ListRead] = field(default_factory=list)
    commit_unanswered: bool = False
    commit_acked: bool = False
    abort_acked: bool = False
    commits_open: int = 0
    commit_called_at: int | None = None
    """The number of the event, as of `ended_at`."""
    ended_at: int | None = None
    """When its first end was acknowledged."""

    @property
    def fate(self) -> Literal["committed", "aborted", "either"]:
        if self.commit_acked:
            return "committed"
        if self.abort_acked or not (self.commit_unanswered or self.commits_open):
            return "aborted"
        return "either"


class History:
    """`sent`: per value the event's number and the event. `reads`: the final ones, per partition and isolation."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.txns: dict[Transaction, Txn] = defaultdict(Txn)
        self.sent: dict[str, tuple[int, Sent]] = {}
        self.sent_count: Counter[Partition] = Counter()
        self.offsets: dict[str, int] = {}
        """Where a record is, by the answer to its producer."""
        self.acked_at: dict[str, int] = {}
        self.plain_acked: list[str] = []
        self.unusable: list[Unusable] = []
        self.seen: list[Seen] = []
        self.fences: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.running_reads: list[tuple[int, Read]] = []
        self.offsets_seen: list[OffsetSeen] = []
        self.deleted: set[str] = set()
        self.compacted: set[str] = set()
        self.reads: dict[tuple[Partition, bool], FinalRead] = {}
        self.ends: dict[Partition, FinalEnds] = {}
        self.group_offsets: list[FinalOffset] = []
        for number, event in enumerate(events):
            self._take(number, event)
        self.visible = {
            value for (_, committed), read in self.reads.items() if committed for _, value in read.records
        }
        self._kept_keys: dict[tuple[Partition, str], int] | None = None

    def _take(self, number: int, event: Event) -> None:
        match event:
            case Begun():
                self.txns[event.producer, event.txn] = Txn(event.instance)
            case Fenced():
                self.fences[event.producer].append((event.instance, number))
            case Sent():
                assert event.value not in self.sent, f"the history has the value {event.value} twice"
                self.sent[event.value] = (number, event)
                self.sent_count[event.topic, event.partition] += 1
                if event.txn is not None:
                    self.txns[event.producer, event.txn].sent.append(event)
            case Placed():
                self.offsets[event.value] = event.offset
            case PlainAcked():
                self.plain_acked.append(event.value)
                self.acked_at[event.value] = number
                if event.offset is not None:
                    self.offsets[event.value] = event.offset
            case OffsetsSent():
                self.txns[event.producer, event.txn].offsets.append(event)
            case ListRead():
                self.txns[event.producer, event.txn].lists.append(event)
            case EndCalled():
                if event.commit:
                    txn = self.txns[event.producer, event.txn]
                    txn.commits_open += 1
                    if txn.commit_called_at is None:
                        txn.commit_called_at = number
            case Ended():
                txn = self.txns[event.producer, event.txn]
                txn.commits_open -= event.commit
                txn.commit_unanswered |= event.commit and event.outcome == "unknown"
                txn.commit_acked |= event.commit and event.outcome == "acked"
                txn.abort_acked |= not event.commit and event.outcome == "acked"
                if event.outcome == "acked" and txn.ended_at is None:
                    txn.ended_at = number
            case Unusable():
                self.unusable.append(event)
            case Seen():
                self.seen.append(event)
            case Read():
                self.running_reads.append((number, event))
            case OffsetSeen():
                self.offsets_seen.append(event)
            case Deleted():
                self.deleted.add(event.topic)
            case Compacted():
                self.compacted.add(event.topic)
            case FinalRead():
                self.reads[(event.topic, event.partition), event.committed] = event
            case FinalEnds():
                self.ends[event.topic, event.partition] = event
            case FinalOffset():
                self.group_offsets.append(event)

    def log_start(self, partition: Partition) -> int:
        ends = self.ends.get(partition)
        return ends.log_start if ends is not None else 0

    def fenced_at(self, producer: str, instance: int) -> int | None:
        """The event by which a later instance of the producer was initialised."""
        return min(
            (number for other, number in self.fences.get(producer, ()) if other > instance), default=None
        )

    def may_be_gone(self, sent: Sent) -> bool:
        """Whether a record may rightly be missing, though nothing went wrong."""
        if sent.topic in self.deleted:
            return True
        partition = sent.topic, sent.partition
        offset = self.offsets.get(sent.value)
        start = self.log_start(partition)
        if start and (offset is None or offset < start):
            return True
        if sent.topic in self.compacted and sent.key is not None:
            last = self._last_of_key(partition, sent.key)
            return last is not None and (offset is None or offset < last)
        return False

    def _last_of_key(self, partition: Partition, key: str) -> int | None:
        """The offset of the last visible record of a key."""
        if self._kept_keys is None:
            self._kept_keys = {}
            for (where, committed), read in self.reads.items():
                for offset, value in read.records if committed else ():
                    sent = self.sent.get(value)
                    if sent is not None and sent[1].key is not None:
                        self._kept_keys[where, sent[1].key] = offset
        return self._kept_keys.get((partition, key))


def at_or_after(records: tuple[tuple[int, str], ...], offset: int) -> int:
    """The index of the first record at or after an offset."""
    return bisect_left(records, (offset, ""))
