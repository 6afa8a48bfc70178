"""What the owner of a range tells its log, and is told by it: segments, rolls, limits.

Plain data. The owner keeps the layout (design, sections 3 and 5) and hands it in; nothing here is read from
disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from wire.errors import KafkaError

SegmentState = Literal["ACTIVE", "SEALED"]


@dataclass(frozen=True, slots=True)
class RangeIdentity:
    """Which range a log is of: partitions `first`..`last` of a topic, its files in `directory`."""

    directory: str
    topic_id: uuid.UUID
    first: int
    last: int
    term: int
    """The leadership generation: written into every batch as its leader epoch, never lower than before."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment as the layout names it (design, section 5), for opening a range.

    `first` and `last` are the segment's own partitions: of a parent before a split they are wider than the
    range. A segment without parents starts at the offsets in `start_offsets`, 0 for partitions not named.
    Where the parents are no longer listed (dropped by retention) and no `start_offsets` are given, the
    segment's own first offsets are believed.
    """

    segment_id: int
    first: int
    last: int
    state: SegmentState
    parents: tuple[int, ...] = ()
    start_offsets: Mapping[int, int] | None = None
    end_offsets: Mapping[int, int] | None = None
    """Of a sealed segment, where the layout knows them: checked against the file."""
    generation: int = 0
    """How often compaction has rewritten it: which of its files counts."""


def tails(segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
    """The segments that nobody continues, one per range, by first partition."""
    continued = {parent for segment in segments for parent in segment.parents}
    return sorted(
        (segment for segment in segments if segment.segment_id not in continued),
        key=lambda segment: segment.first,
    )


def chain_of(tail: SegmentInfo, segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
    """The segments that hold the log of a range, in the order given: its tail and, of all ancestors, those that share
    partitions with it. A parent of several ranges is in the chain of each."""
    by_id = {segment.segment_id: segment for segment in segments}
    chain: set[int] = set()
    wanted = [tail.segment_id]
    while wanted:
        segment_id = wanted.pop()
        if segment_id in by_id and segment_id not in chain:
            chain.add(segment_id)
            wanted += by_id[segment_id].parents
    return [
        segment
        for segment in segments
        if segment.segment_id in chain and segment.first <= tail.last and segment.last >= tail.first
    ]


@dataclass(frozen=True, slots=True)
class RollEvent:
    """A child is durable on disk and ready to take over; its file does not count before the layout says so.

    `parent_end_offsets` are those of this moment. Appends go on in the parent until the layout is durable, so
    they are a lower bound; the final ones come with `on_sealed`.
    """

    parent_id: int
    child_id: int
    parent_end_offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ReshapeEvent:
    """Children of other ranges than their parents' are durable on disk: a split, a merge, or both at once.

    `children` are (segment id, first partition, last partition); together they cover what the parents cover.
    """

    parents: tuple[int, ...]
    children: tuple[tuple[int, int, int], ...]


class LayoutChanged(Exception):
    """A conditional write on a layout lost: it isn't what the change was made for. Nothing was written."""


Publish = Callable[[RollEvent, Callable[[OSError | None], None]], None]


class TransactionalBatch(NamedTuple):
    """Where a batch of a transaction lies; offsets, both ends included."""

    partition: int
    first: int
    last: int
    key: tuple[int, int, int]
    """(producer id, epoch, txn_seq)"""


class RangeHooks(NamedTuple):
    """The owner's side of a range log. All are called on the event loop's thread and must not raise."""

    allocate_segment_id: Callable[[], int]
    """A number no segment of any topic ever had or will have."""
    publish: Publish
    """Make a layout with this child durable, then call back. An error there is the end of this range log."""
    on_progress: Callable[[Iterable[int]], None] | None = None
    """The high watermarks of these partitions have moved; called before those who wait for durability."""
    on_sealed: Callable[[int, dict[int, int]], None] | None = None
    """This segment's footer is durable; its end offsets, for every partition of the range that has any."""
    on_failed: Callable[[KafkaError], None] | None = None
    """A write or flush failed, so this range log is FAILED for good."""
    on_rolled: Callable[[RollEvent], None] | None = None
    """Of a replicated range, on every replica: the entry by which the child takes over is committed, so a layout may
    name it. After a start it may come again."""
    on_transactional: Callable[[list[TransactionalBatch]], None] | None = None
    """Of a replicated range, on every replica: these are committed, and readers have not seen them yet. In the order of
    the log; what a start finds committed is not told."""


class Appended(NamedTuple):
    """Where a batch went. `lsn` is what `when_durable` takes. Of a duplicate: where the first one is."""

    base_offset: int
    last_offset: int
    segment_id: int
    lsn: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Limits of one range log. Sizes are bytes, times milliseconds."""

    segment_bytes: int = 1 << 30
    """A segment that has grown past this is rolled; appends meanwhile go on, so it may end somewhat
    larger."""
    max_index_entries: int = 1_000_000
    """A segment whose index has more entries than this is rolled too (24 bytes each in memory)."""
    max_batch_bytes: int = 1_048_588
    run_bytes: int = 16 << 10
    """An index entry covers at most this much, unless one batch alone is larger."""
    preallocate_first_bytes: int = 64 << 10
    preallocate_max_bytes: int = 16 << 20
    flush_linger_ms: float = 20.0
    """Bytes nobody waits for are flushed after this long, so that the high watermark always advances."""
    checkpoint_bytes: int = 64 << 20
    """An active segment gets a checkpoint when a start would have to scan this much of it,"""
    checkpoint_entries: int = 1 << 14
    """or so many entries, and an eighth of its index: of small ones these are what a start's time goes into, some 5 us
    each. Since a checkpoint has the whole index, all of one segment write nine times that at most."""
    close_checkpoint_bytes: int = 1 << 20
    """A clean close writes a checkpoint only when a restart would have to scan more than this."""
    producer_ttl_ms: int = 86_400_000
    producer_idle_ms: int = 900_000
    """At `max_producers`, producers idle for longer than this make room, the oldest first."""
    max_producers: int = 100_000
    """Per range, counting a producer once for every partition it writes to."""
    skip_scan_bytes: int = 8 << 20
    """A read gives up after skipping this much, and says how far it came."""
    footer_step_bytes: int = 1 << 20
    """How much of a footer is written per turn of the loop."""

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= MAX_SEGMENT_BYTES // 2:
            raise ValueError(f"segment_bytes must be within 1..{MAX_SEGMENT_BYTES // 2}")
        if self.max_batch_bytes > MAX_SEGMENT_BYTES // 8:
            raise ValueError(f"max_batch_bytes must be at most {MAX_SEGMENT_BYTES // 8}")
        if not 0 < self.preallocate_first_bytes <= self.preallocate_max_bytes <= MAX_SEGMENT_BYTES // 8:
            raise ValueError("preallocation steps must grow from first to max")


MAX_SEGMENT_BYTES = (1 << 32) - 1
"""Positions inside a segment are 32 bits wide."""
