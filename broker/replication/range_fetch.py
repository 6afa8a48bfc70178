"""Fetches a range's sealed segments from another node, for a replica whose log ends before the leader's begins.

    behind                              the node that has them
    segments?  group               ->
                                   <-   segments  group [[id, generation, size], ...]   the sealed ones, in chain order
    piece?  group id generation
            position               ->
                                   <-   piece  group id generation position bytes       None: that file is gone by now

    ancestors?  group              ->     of what came before its log (`storage.ancestry`)
                                   <-   ancestors  group [[id, generation, size], ...] the list of them, packed

Any node may be asked: what is sealed is committed, so its files stand. Where one goes meanwhile the list is asked for
anew. A segment that retention took takes nothing from those after it: the chain begins later then. Where compaction has
written one anew that is here already, all begins anew: of two files of different compactions one may have what the
other no longer knows to be deleted. What is lost on the way is asked for again; when the other node stays silent, or
has nothing of use, the fetch fails, nothing has changed, and the group begins another one.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from broker.replication.patient_question import PatientQuestion
from broker.replication.transfer import PART_BYTES, FetchFailed, Send
from storage.ancestry import AncestorsAside
from storage.clock import Scheduler
from storage.disk import Disk, File
from storage.format import CorruptLog
from storage.replica import RangeReplica

FETCHING_MS: Final = 10_000
"""So long after a question it is taken for granted that another one comes."""


class SegmentSource:
    """The side that has them. Damage found while serving is the other side's to see, by its checks."""

    def __init__(
        self,
        replica_of: Callable[[int], RangeReplica | None],
        send: Send,
        now_ms: Callable[[], int],
        *,
        piece_bytes: int = PART_BYTES,
    ) -> None:
        self._replica_of = replica_of
        self._send = send
        self._now_ms = now_ms
        self._piece_bytes = piece_bytes
        self._asked_ms: dict[int, int] = {}

    def is_asked(self, group: int, now_ms: int) -> bool:
        """Whether somebody is fetching this range's segments just now."""
        return now_ms - self._asked_ms.get(group, -FETCHING_MS) < FETCHING_MS

    def heard(self, peer: int, note: Sequence[Any]) -> None:
        kind, group, *rest = note
        self._asked_ms[group] = self._now_ms()
        replica = self._replica_of(group)
        if replica is None or replica.state != "OPEN":
            return
        sealed = {one.segment_id: one for one in replica.segments if one.state == "SEALED"}
        if kind == "segments?":
            names = [
                [one.segment_id, one.header.generation, one.file_size]
                for one in replica.own_segments
                if one.state == "SEALED"
            ]
            self._send(peer, ["segments", group, names])
        elif kind == "ancestors?":
            before = replica.ancestry.by_id
            names = [
                [one.segment_id, one.header.generation, one.file_size]
                for one in sealed.values()
                if one.segment_id in before
            ]
            self._send(peer, ["ancestors", group, names, replica.ancestry.packed()])
        elif kind == "piece?":
            segment_id, generation, position = rest
            segment = sealed.get(segment_id)
            is_it = segment is not None and segment.header.generation == generation
            try:
                data = (
                    segment.file().pread(self._piece_bytes, position)
                    if segment is not None and is_it
                    else None
                )
            except OSError:
                return  # it asks again, or another node
            self._send(peer, ["piece", group, segment_id, generation, position, data])


class Aside(Protocol):
    """Where copies are put, as `storage.replica_takeover.ChainAside`."""

    chain: list[tuple[int, int]]

    @property
    def last_index(self) -> int: ...
    def path(self, segment_id: int) -> str: ...
    def create(self, segment_id: int) -> File: ...
    def start_over(self) -> None: ...
    def check(self, segment_id: int) -> Iterator[None]: ...


class SegmentFetch:
    """Fetches from `source` until `aside` holds a chain up to at least `least_index`, then, once, `done(None)`; or
    `done(error)`: `FetchFailed`, or an error of this node's own disk."""

    asks_for = "segments"

    def __init__(
        self,
        group: int,
        aside: Aside,
        disk: Disk,
        scheduler: Scheduler,
        send: Send,
        source: int,
        least_index: int,
        done: Callable[[Exception | None], None],
    ) -> None:
        self.source = source
        self._group = group
        self._aside = aside
        self._disk = disk
        self._scheduler = scheduler
        self._least_index = least_index
        self._done = done
        self._is_over = False
        self._names: deque[tuple[int, int, int]] = deque()
        """(id, generation, size) of those that are not here yet; the first one is being fetched."""
        self._file: File | None = None
        self._position = -1
        """What is asked for of the first one; -1: nothing."""
        self._question = PatientQuestion(scheduler, send, source, self.give_up)
        self._question.ask([f"{self.asks_for}?", group])

    def close(self) -> None:
        """Nothing is told any more."""
        self._is_over = True
        self._question.close()
        self._close_file()

    def give_up(self, reason: str) -> None:
        if not self._is_over:
            self._end(FetchFailed(reason))

    # What comes from other nodes.

    def heard(self, peer: int, note: Sequence[Any]) -> None:
        if self._is_over or peer != self.source:
            return
        kind, _, *rest = note
        try:
            if kind == self.asks_for and self._question.words[0] == f"{kind}?":
                self._heard_names(*rest)
            elif kind == "piece" and self._position >= 0:
                self._heard_piece(*rest)
        except OSError as error:
            self._end(error)

    def _heard_names(self, names: Sequence[Sequence[int]], *_: Any) -> None:
        found = [(segment_id, generation, size) for segment_id, generation, size in names]
        there = {segment_id: generation for segment_id, generation, _ in found}
        here = self._aside.chain
        goes_on = bool(here) and here[-1][0] in there
        if not goes_on or any(there.get(number, generation) != generation for number, generation in here):
            self._aside.start_over()
            self._names = deque(found)
        else:
            self._names = deque(one for one in found if one[0] > here[-1][0])
        if not found:
            self.give_up(f"node {self.source} has no sealed segments")
        elif self._names:
            self._begin_next()
        else:
            self._has_all()

    def _heard_piece(self, segment_id: int, generation: int, position: int, data: bytes | None) -> None:
        *wanted, size = self._names[0]
        if [segment_id, generation, position] != [*wanted, self._position]:
            return
        assert self._file is not None
        if data is None:
            self._gone()
            return
        if not data or position + len(data) > size:
            self.give_up(f"segment {segment_id} of node {self.source} ends at {position} of {size} bytes")
            return
        self._file.pwritev([data], position)
        self._position += len(data)
        if self._position < size:
            self._ask_piece()
            return
        self._question.answered()
        # A piece that comes twice must not write any more.
        self._position = -1
        self._disk.start_flush(self._file, self._flushed)

    # One segment after the other.

    def _begin_next(self) -> None:
        """Raises OSError."""
        self._file = self._aside.create(self._names[0][0])
        self._position = 0
        self._ask_piece()

    def _gone(self) -> None:
        """Retention took it there, and all before it with it, or compaction has written it anew."""
        self._close_file()
        self._disk.remove(self._aside.path(self._names[0][0]))
        self._position = -1
        self._question.ask([f"{self.asks_for}?", self._group])

    def _flushed(self, error: OSError | None) -> None:
        if self._is_over:
            return
        self._close_file()
        if error is not None:
            self._end(error)
            return
        self._check(self._aside.check(self._names[0][0]))

    def _check(self, steps: Iterator[None]) -> None:
        if self._is_over:
            return
        try:
            next(steps)
        except StopIteration:
            self._checked()
        except CorruptLog as error:
            self.give_up(f"what node {self.source} sent is no segment of this range: {error}")
        except OSError as error:
            self._end(error)
        else:
            self._scheduler.call_soon(self._check, steps)

    def _checked(self) -> None:
        self._names.popleft()
        if self._names:
            try:
                self._begin_next()
            except OSError as error:
                self._end(error)
        else:
            self._has_all()

    def _has_all(self) -> None:
        if self._aside.last_index < self._least_index:
            self.give_up(
                f"the segments of node {self.source} end with entry {self._aside.last_index}, "
                f"{self._least_index} is needed"
            )
        else:
            self.close()
            self._done(None)

    def _ask_piece(self) -> None:
        self._question.ask(["piece?", self._group, *self._names[0][:2], self._position])

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _end(self, error: Exception) -> None:
        self.close()
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            # What is here goes on as it was, and there may be space later.
            error = FetchFailed(str(error))
        self._done(error)


class AncestorFetch(SegmentFetch):
    """The same of the segments that came before a range's log. There may be none any more."""

    asks_for = "ancestors"

    def __init__(
        self,
        group: int,
        aside: AncestorsAside,
        disk: Disk,
        scheduler: Scheduler,
        send: Send,
        source: int,
        done: Callable[[Exception | None], None],
    ) -> None:
        self._ancestors = aside
        super().__init__(group, aside, disk, scheduler, send, source, 0, done)

    def _heard_names(self, names: Sequence[Sequence[int]], *packed: Any) -> None:
        self._ancestors.start_over()
        try:
            self._ancestors.listed(packed[0])
        except CorruptLog as error:
            self.give_up(str(error))
            return
        if any(segment_id not in self._ancestors.ancestry.by_id for segment_id, *_ in names):
            self.give_up(f"node {self.source} sends segments that were not before the range")
        elif names:
            super()._heard_names(names)
        else:
            self.close()
            self._done(None)
