"""Making the replica of a range that takes over the partitions of others: a split, or a merge.

It is made from this node's replicas of its parents, whose files get other names, or from files that another node sent
(`storage.ancestry`). Its own log begins at entry 1 and is empty; the first file of it is the same on every replica.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from storage import ancestry
from storage.ancestry import Ancestry, Done, Parent
from storage.cache import SegmentCache
from storage.disk import Disk
from storage.format import Numbered
from storage.layout import LogConfig, RangeIdentity
from storage.segment import Segment


@dataclass(frozen=True, slots=True)
class NewRange:
    """Partitions `first`..`last`, in a folder of their own. The rest says what the first file of the log is called, and
    holds: the same on every replica."""

    directory: str
    topic_id: uuid.UUID
    first: int
    last: int
    segment_id: int
    created_ms: int
    members: bytes


def make_child(disk: Disk, new: NewRange, parents: Iterable[Parent], config: LogConfig, done: Done) -> None:
    """A whole folder, from replicas that have ended here; `done` when it is durable and `open_replica` may open it, or
    with the error. Blocks for the links alone; what was there is removed first."""
    before, paths = ancestry.of_child(parents, new.first, new.last)
    try:
        ancestry.begin(disk, new.directory)
        ancestry.link_all(disk, new.directory, before, paths)
        complete_child(disk, new, before, config, done)
    except OSError as error:
        done(error)


def complete_child(disk: Disk, new: NewRange, before: Ancestry, config: LogConfig, done: Done) -> None:
    """The same, where its ancestors lie in the folder already, durable themselves. Raises OSError."""
    identity = RangeIdentity(new.directory, new.topic_id, new.first, new.last, 0)
    numbered = Numbered(1, 0, new.members)
    segment = Segment.create(
        disk, identity, new.segment_id, (), new.created_ms, config, SegmentCache(), numbered
    )

    def finished(error: OSError | None) -> None:
        segment.close()
        done(error)

    ancestry.finish(disk, new.directory, before, segment, finished)
