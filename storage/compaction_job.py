"""What a compaction is told and what it answers: plain data, as it goes to another process and back."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from storage.settled import SettledPartition


class JobSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a job, with its outcomes per partition.

    `recorded`: per partition, the offset below which outcomes are on record. Transactional batches from there on stay
    as they are, for somebody may yet look for them. A partition that is not named: all outcomes are."""

    segment_id: int
    generation: int
    learn: bool
    without_tombstones: bool
    outcomes: dict[int, SettledPartition]
    recorded: dict[int, int] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What `rewrite` does. Segments in layout order; `max_keys` bounds its memory (about 150 bytes a key).

    `join`: nothing is learned or taken, the segments become one, under the last one's id."""

    topic: str
    directory: str
    segments: list[JobSegment]
    max_keys: int
    join: bool = False


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one segment. `generation` is the same where there was nothing to take from it."""

    segment_id: int
    generation: int
    size_before: int
    size_bytes: int
    records_before: int
    records: int
    tombstones: bool


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a job did. `learned`: the segments that were learned from; the others had too many keys for one job."""

    segments: list[Rewritten]
    learned: list[int]
    joined: list[int] = []
    """The segments whose content the one in `segments` has taken over; they go."""


JobDone = Callable[[Outcome | None], None]
"""Called on the loop: the outcome, or None where the job failed, which has been logged."""
