"""Compaction of one replica's sealed segments: the files that were written anew take the place of the old ones.

    IDLE -> WORKING -> WRITING -> NAMING -> REMOVING -> IDLE        WORKING, WRITING -> IDLE where it comes to nothing

    WORKING     the new files are written beside the old ones, by another process     a start removes them
    WRITING     the list that names them is written aside                             likewise
    NAMING      the list gets its name                                                a start takes the old or the new
    REMOVING    readers are at the new files; the old ones go                         a start takes the new

Guarantees: all files of a job count or none does, so a mark of deletion never goes before what it deletes; nothing is
removed before the list that names its successor is durable; nothing else changes the replica's files meanwhile
(`ReplicaFront` is held). Entries of what was rewritten are no part of the group's log any more: whoever needs them
fetches segments (docs/raft.md, section 7). Each replica does it by itself, at its own time.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

from storage.cache import SegmentCache
from storage.clock import Scheduler
from storage.compacted_names import Compacted, Names, name_durably, packed_names, write_aside
from storage.compaction_job import Rewritten
from storage.disk import Disk
from storage.format import COMPACTED_NAME, SEGMENT_SUFFIX, CorruptLog, parse_name, segment_name
from storage.replica import RangeReplica
from storage.replica_front import ReplicaFront
from storage.segment import Segment

State = Literal["IDLE", "WORKING", "WRITING", "NAMING", "REMOVING", "CLOSED"]
TRANSITIONS: Final = {
    "IDLE": {"WORKING", "CLOSED"},
    "WORKING": {"WRITING", "IDLE", "CLOSED"},
    "WRITING": {"NAMING", "IDLE", "CLOSED"},
    "NAMING": {"REMOVING", "CLOSED"},
    "REMOVING": {"IDLE", "CLOSED"},
    "CLOSED": set[str](),
}

Done = Callable[[Exception | None], None]


class ReplicaCompaction:
    """Of one replica. Sizes are bytes, times ms."""

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        replica: RangeReplica,
        front: ReplicaFront,
        cache: SegmentCache,
    ) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._replica = replica
        self._front = front
        self._cache = cache
        self._state: State = "IDLE"
        self._done: Done = lambda _: None
        self._opened: list[Segment] = []
        """The new files, until readers are there."""
        self._names: Names = {}
        """What the list will say."""
        self._paths: deque[str] = deque()

    @property
    def replica(self) -> RangeReplica:
        return self._replica

    @property
    def may_begin(self) -> bool:
        return self._state == "IDLE" and self._front.is_idle and self._replica.state == "OPEN"

    @property
    def is_working(self) -> bool:
        return self._state == "WORKING"

    def begin(self) -> None:
        """Files are about to be written beside those that there are: `adopt` or `give_up` follows."""
        self._front.hold()
        self._move("WORKING")

    def close(self) -> None:
        """The replica's life ends, or this one does: nothing is told any more, and a start takes what is named."""
        if self._state != "CLOSED":
            self._move("CLOSED")
            for segment in self._opened:
                segment.close()

    def _move(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            raise ValueError(f"a compaction that is {self._state} cannot become {state}")
        self._state = state

    def give_up(self, rewritten: Sequence[Rewritten] = ()) -> None:
        """Nothing becomes of it. What cannot be removed is removed by the next job, or a start."""
        for one in rewritten:
            if one.generation != self._generation(one.segment_id):
                with contextlib.suppress(OSError):
                    self._disk.remove(f"{self._directory}/{segment_name(one.segment_id, one.generation)}")
        self._move("IDLE")
        self._front.release()

    # The new files.

    def adopt(self, rewritten: Sequence[Rewritten], done: Done) -> None:
        """They are whole and on the device: let them take their place. `done(error)`: nothing has changed, or the
        replica has failed. Never blocks but for the footers that it reads."""
        self._done = done
        if self._replica.state != "OPEN":
            self._abandon(rewritten, OSError(f"the log is {self._replica.state.lower()}"))
            return
        try:
            for one in rewritten:
                if one.generation != self._generation(one.segment_id):
                    self._opened.append(self._open(one))
        except (OSError, CorruptLog) as error:
            self._abandon(rewritten, error)
            return
        self._move("WRITING")

        def names_are_durable(error: OSError | None) -> None:
            if self._state != "WRITING":
                return
            if error is None:
                try:
                    self._names = self._named_by(rewritten)
                    write_aside(
                        self._disk, self._directory, COMPACTED_NAME, packed_names(self._names), written
                    )
                    return
                except OSError as failure:
                    error = failure
            self._abandon(rewritten, error)

        def written(error: OSError | None) -> None:
            if self._state != "WRITING":
                return
            if error is not None:
                self._abandon(rewritten, error)
                return
            self._move("NAMING")
            try:
                name_durably(self._disk, self._directory, COMPACTED_NAME, self._named)
            except OSError as failure:
                self._named(failure)

        try:
            # Whoever finds the list finds what it names, and what was removed before does not come back.
            self._disk.start_flush_dir(self._directory, names_are_durable)
        except OSError as failure:
            self._abandon(rewritten, failure)

    @property
    def _directory(self) -> str:
        return self._replica.directory

    def _generation(self, segment_id: int) -> int:
        return next(one.header.generation for one in self._replica.segments if one.segment_id == segment_id)

    def _open(self, one: Rewritten) -> Segment:
        segment = Segment.open(
            self._disk,
            self._directory,
            one.segment_id,
            self._cache,
            readonly=True,
            generation=one.generation,
        )
        if segment.state != "SEALED":
            segment.close()
            raise CorruptLog(segment.path, 0, "it has no footer")
        return segment

    def _abandon(self, rewritten: Sequence[Rewritten], error: Exception) -> None:
        for segment in self._opened:
            segment.close()
        self._opened.clear()
        self.give_up(rewritten)
        self._done(error)

    def _named_by(self, rewritten: Sequence[Rewritten]) -> Names:
        """Of a segment of which no file is left nothing has to be said any more."""
        now_ms = self._scheduler.now_ms()
        left = {
            parsed.segment_id
            for name in self._disk.list(self._directory)
            if (parsed := parse_name(name)) is not None and parsed.suffix == SEGMENT_SUFFIX
        }
        names = {segment_id: one for segment_id, one in self._replica.names.items() if segment_id in left}
        for one in rewritten:
            before = names.get(one.segment_id)
            cleaned_ms = before.cleaned_ms if before is not None else None
            names[one.segment_id] = Compacted(
                one.generation, cleaned_ms if cleaned_ms is not None else now_ms, one.tombstones
            )
        return names

    def _named(self, error: OSError | None) -> None:
        if self._state != "NAMING":
            return
        if error is not None:
            # Nobody knows which files a start would take, so none of them may be changed any more.
            self._replica.fail(error)
            self._done(error)
            return
        replica = self._replica
        replica.names = self._names
        olds = {segment.segment_id: segment for segment in replica.segments}
        for new in self._opened:
            old = olds[new.segment_id]
            replica.replace_segment(old, new)
            old.close()
            self._paths.append(old.path)
        self._opened.clear()
        self._move("REMOVING")
        self._remove_next(None)

    def _remove_next(self, _: OSError | None) -> None:
        """What cannot be removed is removed by a start: the list names another file."""
        if self._state != "REMOVING":
            return
        if self._paths:
            self._disk.start_remove(self._paths.popleft(), self._remove_next)
            return
        self._move("IDLE")
        self._front.release()
        self._done(None)
