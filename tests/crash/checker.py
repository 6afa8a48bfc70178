"""Judges a history of what clients did and saw: which promises of a transactional log did it break?

Pure: events in, violations out. It knows nothing of the broker, of sockets or of clocks, so it can judge any
log that speaks of transactions, partitions and offsets.

The history's rules: values are unique; a producer's transactions have increasing numbers and do not overlap;
the offsets that transactions commit for one (group, topic, partition) increase in the order of the
transactions. The events of one producer are in its own order; the final events come at the end, when no
transaction is open any more and every producer is closed.

What a transaction must have come to:

    commit acknowledged                     committed
    abort acknowledged                      aborted
    commit never called, or always refused  aborted
    else                                    either, but as a whole
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Partition = tuple[str, int]
Transaction = tuple[str, int]

# ---- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction begins; `producer` is its transactional id, across all producers that use it."""

    producer: str
    txn: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A record is about to be handed to the client; txn None: outside of transactions."""

    producer: str
    txn: int | None
    topic: str
    partition: int
    value: str


@dataclass(frozen=True, slots=True)
class PlainAcked:
    """A record outside of transactions was acknowledged."""

    value: str


@dataclass(frozen=True, slots=True)
class OffsetsSent:
    """A group's offset is about to be sent within a transaction."""

    producer: str
    txn: int
    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class EndCalled:
    """commit or abort is about to be called."""

    producer: str
    txn: int
    commit: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """commit or abort came back. failed: the answer said that it did not happen; unknown: no answer."""

    producer: str
    txn: int
    commit: bool
    outcome: Literal["acked", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Unusable:
    """A new producer could not be initialized with this transactional id, however patiently."""

    producer: str
    error: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A reader got a record while the history went on; `committed`: it read committed data only."""

    topic: str
    partition: int
    offset: int
    value: str
    committed: bool


@dataclass(frozen=True, slots=True)
class FinalRead:
    """All that a reader from the beginning got, and how far its position came."""

    topic: str
    partition: int
    committed: bool
    records: tuple[tuple[int, str], ...]
    position: int


@dataclass(frozen=True, slots=True)
class FinalEnds:
    """A partition's offsets at the end."""

    topic: str
    partition: int
    log_start: int
    last_stable: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class FinalOffset:
    """A group's committed offset at the end; None: none. `error`: it could not be read."""

    group: str
    topic: str
    partition: int
    offset: int | None
    error: str | None = None


ClientEvent = Begun | Sent | PlainAcked | OffsetsSent | EndCalled | Ended | Unusable | Seen
Event = ClientEvent | FinalRead | FinalEnds | FinalOffset

# ---- violations --------------------------------------------------------------------------------------------

LOST_COMMIT = "an acknowledged commit is not wholly there"
LOST_PLAIN = "an acknowledged record is not there"
ABORTED_VISIBLE = "a record of an aborted transaction is visible"
TORN = "a transaction is there in part"
CONTRADICTION = "commit and abort of one transaction were both acknowledged"
DUPLICATE = "a record is there twice"
STRANGER = "a record is there that nobody sent"
MISPLACED = "a record is in another partition than it was sent to"
DISORDER = "a producer's records are not in the order of its sends"
OFFSETS_BACK = "a reader's offsets do not increase"
RETRACTED = "what a reader saw is not there any more"
BLOCKED = "the last stable offset stays behind the high watermark though nothing is open"
UNREADABLE = "a reader's position does not reach the end"
MARKERS = "a partition has more offsets than records were sent to it"
UNUSABLE = "a transactional id cannot be used any more"
WRONG_OFFSET = "a group's committed offset is not that of its last committed transaction"


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


# ---- the check ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Txn:
    sent: list[Sent] = field(default_factory=list)
    offsets: list[OffsetsSent] = field(default_factory=list)
    commit_unanswered: bool = False
    commit_acked: bool = False
    abort_acked: bool = False
    commits_open: int = 0

    @property
    def fate(self) -> Literal["committed", "aborted", "either"]:
        if self.commit_acked:
            return "committed"
        if self.abort_acked or not (self.commit_unanswered or self.commits_open):
            return "aborted"
        return "either"


class _History:
    """The events, sorted by what they are about."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.txns: dict[Transaction, _Txn] = defaultdict(_Txn)
        self.sent: dict[str, tuple[int, Sent]] = {}
        self.sent_count: Counter[Partition] = Counter()
        self.plain_acked: list[str] = []
        self.unusable: list[Unusable] = []
        self.seen: list[Seen] = []
        self.reads: dict[tuple[Partition, bool], FinalRead] = {}
        self.ends: dict[Partition, FinalEnds] = {}
        self.group_offsets: list[FinalOffset] = []
        for number, event in enumerate(events):
            self._take(number, event)

    def _take(self, number: int, event: Event) -> None:
        match event:
            case Begun():
                self.txns[event.producer, event.txn] = _Txn()
            case Sent():
                assert event.value not in self.sent, f"the history has the value {event.value} twice"
                self.sent[event.value] = (number, event)
                self.sent_count[event.topic, event.partition] += 1
                if event.txn is not None:
                    self.txns[event.producer, event.txn].sent.append(event)
            case PlainAcked():
                self.plain_acked.append(event.value)
            case OffsetsSent():
                self.txns[event.producer, event.txn].offsets.append(event)
            case EndCalled():
                if event.commit:
                    self.txns[event.producer, event.txn].commits_open += 1
            case Ended():
                txn = self.txns[event.producer, event.txn]
                txn.commits_open -= event.commit
                txn.commit_unanswered |= event.commit and event.outcome == "unknown"
                txn.commit_acked |= event.commit and event.outcome == "acked"
                txn.abort_acked |= not event.commit and event.outcome == "acked"
            case Unusable():
                self.unusable.append(event)
            case Seen():
                self.seen.append(event)
            case FinalRead():
                self.reads[(event.topic, event.partition), event.committed] = event
            case FinalEnds():
                self.ends[event.topic, event.partition] = event
            case FinalOffset():
                self.group_offsets.append(event)


def check(events: Iterable[Event], *, markerless: bool = False) -> list[Violation]:
    """The violations in a history. `markerless`: ends of transactions take no offsets in the log."""
    history = _History(events)
    visible = {
        value for (_, committed), read in history.reads.items() if committed for _, value in read.records
    }
    found: list[Violation] = []
    _check_transactions(history, visible, found)
    _check_reads(history, found)
    _check_seen(history, found)
    _check_ends(history, found, markerless)
    _check_group_offsets(history, visible, found)
    return found


def _check_transactions(history: _History, visible: set[str], found: list[Violation]) -> None:
    for (producer, number), txn in history.txns.items():
        name = f"transaction {number} of {producer}"
        there = [s for s in txn.sent if s.value in visible]
        missing = [s for s in txn.sent if s.value not in visible]
        if txn.commit_acked and txn.abort_acked:
            found.append(Violation(CONTRADICTION, name))
        elif txn.fate == "committed" and missing:
            found.append(Violation(LOST_COMMIT, f"{name}: {_values(missing)} of {len(txn.sent)} missing"))
        elif txn.fate == "aborted" and there:
            found.append(Violation(ABORTED_VISIBLE, f"{name}: {_values(there)} of {len(txn.sent)}"))
        elif txn.fate == "either" and there and missing:
            found.append(Violation(TORN, f"{name}: {_values(there)} there, {_values(missing)} missing"))
    found.extend(Violation(UNUSABLE, f"{u.producer}: {u.error}") for u in history.unusable)
    found.extend(Violation(LOST_PLAIN, v) for v in history.plain_acked if v not in visible)


def _values(records: list[Sent]) -> str:
    shown = ", ".join(f"{s.value} ({s.topic}-{s.partition})" for s in records[:5])
    return shown + (f" and {len(records) - 5} more" if len(records) > 5 else "")


def _check_reads(history: _History, found: list[Violation]) -> None:
    for committed in (True, False):
        places: dict[str, tuple[Partition, int]] = {}
        for (partition, isolation), read in history.reads.items():
            if isolation != committed:
                continue
            last_offset = -1
            last_sent: dict[str, tuple[int, str]] = {}
            for offset, value in read.records:
                where = f"{value} at offset {offset} of {partition}"
                if offset <= last_offset:
                    found.append(Violation(OFFSETS_BACK, f"{where} after offset {last_offset}"))
                last_offset = offset
                if value in places:
                    found.append(Violation(DUPLICATE, f"{where} and {places[value]}"))
                places[value] = (partition, offset)
                if value not in history.sent:
                    found.append(Violation(STRANGER, where))
                    continue
                number, sent = history.sent[value]
                if (sent.topic, sent.partition) != partition:
                    found.append(Violation(MISPLACED, f"{where}, sent to {sent.topic}-{sent.partition}"))
                before = last_sent.get(sent.producer)
                if before and before[0] > number:
                    found.append(Violation(DISORDER, f"{where} after {before[1]}"))
                last_sent[sent.producer] = (number, value)


def _check_seen(history: _History, found: list[Violation]) -> None:
    now = {key: dict(read.records) for key, read in history.reads.items()}
    for seen in history.seen:
        key = (seen.topic, seen.partition), seen.committed
        if key not in now:
            continue
        value = now[key].get(seen.offset)
        if value != seen.value:
            isolation = "read_committed" if seen.committed else "read_uncommitted"
            detail = f"{seen.value} at offset {seen.offset} of {key[0]} ({isolation}), now {value}"
            found.append(Violation(RETRACTED, detail))


def _check_ends(history: _History, found: list[Violation], markerless: bool) -> None:
    for partition, ends in history.ends.items():
        if ends.last_stable != ends.high_watermark:
            detail = f"{partition}: {ends.last_stable} of {ends.high_watermark}"
            found.append(Violation(BLOCKED, detail))
        offsets = ends.high_watermark - ends.log_start
        if markerless and offsets > history.sent_count[partition]:
            detail = f"{partition}: {offsets} offsets, {history.sent_count[partition]} records sent"
            found.append(Violation(MARKERS, detail))
        for committed in (True, False):
            read = history.reads.get((partition, committed))
            end = ends.last_stable if committed else ends.high_watermark
            if read is not None and read.position < end:
                detail = f"{partition}: position {read.position}, end {end}, committed={committed}"
                found.append(Violation(UNREADABLE, detail))


def _check_group_offsets(history: _History, visible: set[str], found: list[Violation]) -> None:
    certain: dict[tuple[str, str, int], int] = {}
    possible: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for txn in history.txns.values():
        for sent in txn.offsets:
            key = (sent.group, sent.topic, sent.partition)
            # The records of a transaction without an answer tell its outcome; without any it may be either.
            fate = txn.fate
            if fate == "either" and txn.sent:
                fate = "committed" if any(s.value in visible for s in txn.sent) else "aborted"
            if fate == "committed":
                certain[key] = max(certain.get(key, -1), sent.offset)
            elif fate == "either":
                possible[key].add(sent.offset)
    for final in history.group_offsets:
        key = (final.group, final.topic, final.partition)
        least = certain.get(key)
        allowed = {least} | {offset for offset in possible[key] if least is None or offset > least}
        if final.error is not None or final.offset not in allowed:
            wanted = ", ".join(str(offset) for offset in allowed)
            found.append(Violation(WRONG_OFFSET, f"{key}: {final.error or final.offset}, allowed: {wanted}"))
