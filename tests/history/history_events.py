"""What clients did and saw, as plain data: the only thing that the checker knows.

A history is a list of these in the order in which they happened; `begun` of a read is the length of the list when it
was asked for, so that the checker can tell what was before what. Where the clients of a history have no common clock
(real processes), its reads are left out, and with them what depends on time.
"""

from dataclasses import dataclass
from typing import Literal

Partition = tuple[str, int]
Transaction = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction begins; `producer` is its transactional id, across all producers that use it."""

    producer: str
    txn: int
    instance: int = 0
    """Which of the producers of this transactional id; it counts up."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """This instance of a transactional id was initialised: those before it are fenced from now on."""

    producer: str
    instance: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A record is about to be handed to the client; txn None: outside of transactions."""

    producer: str
    txn: int | None
    topic: str
    partition: int
    value: str
    key: str | None = None
    source: str | None = None
    """The value of the record that this one was made of, in an exactly-once loop."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A record's write was answered with this offset; within a transaction that says nothing of its outcome."""

    value: str
    offset: int


@dataclass(frozen=True, slots=True)
class PlainAcked:
    """A record outside of transactions was acknowledged, at this offset if that is known."""

    value: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetsSent:
    """A group's offset is about to be sent within a transaction."""

    producer: str
    txn: int
    group: str
    topic: str
    partition: int
    offset: int
    start: int | None = None
    """The committed offset that it went on from, where it read one: its transaction covers start..offset."""


@dataclass(frozen=True, slots=True)
class ListRead:
    """A transaction read the values of a key, in order, before it wrote to it; nobody else may write it meanwhile."""

    producer: str
    txn: int
    key: str
    values: tuple[str, ...]


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
class Read:
    """An answer to a reader that asked from offset `first` on: it goes on at `position`. Offsets; `begun` see above."""

    topic: str
    partition: int
    committed: bool
    first: int
    position: int
    records: tuple[tuple[int, str], ...]
    high_watermark: int
    last_stable: int
    log_start: int
    begun: int


@dataclass(frozen=True, slots=True)
class OffsetSeen:
    """A group's committed offset, as one asked who wants none that is undecided; None: there is none."""

    group: str
    topic: str
    partition: int
    offset: int | None
    begun: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """The deletion of a topic was asked for: what is in it may go at any time."""

    topic: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """Of each key of this topic the last record must stay; others may go."""

    topic: str


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


ClientEvent = (
    Begun
    | Fenced
    | Sent
    | Placed
    | PlainAcked
    | OffsetsSent
    | ListRead
    | EndCalled
    | Ended
    | Unusable
    | Seen
    | Read
    | OffsetSeen
    | Deleted
    | Compacted
)
Event = ClientEvent | FinalRead | FinalEnds | FinalOffset
