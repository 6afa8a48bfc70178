"""Splitting and merging ranges while appends go on: neighbouring ranges hand over to others of the same partitions.

Guarantees: the children's files and names are durable before a layout is asked to name them; nothing is written to a
child before the layout durably does; all parents stop taking appends in the turn in which the children begin, so that
no append waits or is refused, and the order of each partition is kept; no child counts as durable before its parents
are. A crash between any two steps leaves the parents alone (and orphan files), or parents and children, the parents
with or without footers: both open.

    HOLDING -> CREATING    no roll of a parent is under way; the children's files are made, their flushes run
            -> PUBLISHING  the owner makes the new layout durable
            -> DONE        the parents are retired, the children take the appends
            -> ABANDONED   nothing has changed: the layout was another, a disk was full, a parent ended
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, Protocol

from storage.cache import SegmentCache
from storage.clock import Scheduler
from storage.disk import Disk
from storage.layout import LayoutChanged, LogConfig, RangeHooks, RangeIdentity, ReshapeEvent
from storage.partition import PartitionLog
from storage.range_log import RangeLog
from storage.segment import Segment

State = Literal["HOLDING", "CREATING", "PUBLISHING", "DONE", "ABANDONED"]

TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    "HOLDING": frozenset({"CREATING", "ABANDONED"}),
    "CREATING": frozenset({"PUBLISHING", "ABANDONED"}),
    "PUBLISHING": frozenset({"DONE", "ABANDONED"}),
    "DONE": frozenset(),
    "ABANDONED": frozenset(),
}


class ReshapeOwner(Protocol):
    """Who keeps the layout and the ranges of the topic."""

    def publish(self, event: ReshapeEvent, done: Callable[[Exception | None], None]) -> None:
        """Make a layout with these children durable, then call back: with LayoutChanged where nothing was written; any
        other error leaves open what the layout is, and is the end of the parents."""
        ...

    def switched(self, children: list[RangeLog]) -> None:
        """The children take the appends from this turn on; the parents are RETIRED."""
        ...

    def retired(self, parent: RangeLog) -> None:
        """The last bytes of this parent are durable and sealed; its log is CLOSED."""
        ...

    def abandoned(self, error: Exception) -> None:
        """Nothing has changed: LayoutChanged, an OSError, or the KafkaError of a parent that ended."""
        ...


class Reshape:
    """One change of ranges. `parents` are neighbours, by first partition; `spans` the children's partitions."""

    def __init__(
        self,
        disk: Disk,
        scheduler: Scheduler,
        owner: ReshapeOwner,
        parents: Sequence[RangeLog],
        spans: Sequence[tuple[int, int]],
        *,
        hooks: RangeHooks,
        config: LogConfig,
        cache: SegmentCache,
    ) -> None:
        covered = [partition for first, last in spans for partition in range(first, last + 1)]
        if covered != list(range(parents[0].first, parents[-1].last + 1)) or not all(
            first <= last for first, last in spans
        ):
            raise ValueError(
                f"{spans} do not cover partitions {parents[0].first}..{parents[-1].last} once each"
            )
        self._disk = disk
        self._scheduler = scheduler
        self._owner = owner
        self._parents = list(parents)
        self._spans = list(spans)
        self._hooks = hooks
        self._config = config
        self._cache = cache
        self._state: State = "HOLDING"
        self._awaited = 0
        self._error: Exception | None = None
        self._segments: list[Segment] = []

    @property
    def state(self) -> State:
        return self._state

    def _change_state(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            raise ValueError(f"a change of ranges that is {self._state} cannot become {state}")
        self._state = state

    def start(self) -> None:
        """Begin. The owner hears of the end, never from within this call."""
        self._awaited = len(self._parents)
        for parent in self._parents:
            parent.hold_rolls(self._held)

    def stop(self) -> None:
        """The node stops: leave everything as it is, a start knows what to do with it."""
        if self._state in ("HOLDING", "CREATING", "PUBLISHING"):
            self._change_state("ABANDONED")
            for segment in self._segments:
                segment.close()

    # Steps.

    def _arrived(self, error: Exception | None) -> bool:
        """Whether all that a step waits for is there."""
        self._error = self._error or error
        self._awaited -= 1
        return not self._awaited

    def _ended_parent(self) -> Exception | None:
        for parent in self._parents:
            if parent.state != "OPEN":
                return parent.failure or OSError(f"the log in {parent.directory} is {parent.state.lower()}")
        return None

    def _held(self, error: Exception | None) -> None:
        if self._state != "HOLDING" or not self._arrived(error):
            return
        failed = self._error or self._ended_parent()
        if failed is not None:
            self._abandon(failed)
            return
        try:
            for first, last in self._spans:
                self._segments.append(self._create(first, last))
        except OSError as failure:
            self._abandon(failure)
            return
        self._change_state("CREATING")
        self._awaited = len(self._segments) + 1
        for segment in self._segments:
            self._disk.start_flush(segment.file(), self._created)
        self._disk.start_flush_dir(self._parents[0].directory, self._created)

    def _create(self, first: int, last: int) -> Segment:
        identity = self._identity(first, last)
        parents = tuple(
            log.active.segment_id for log in self._parents if log.first <= last and log.last >= first
        )
        return Segment.create(
            self._disk,
            identity,
            self._hooks.allocate_segment_id(),
            parents,
            self._scheduler.now_ms(),
            self._config,
            self._cache,
        )

    def _identity(self, first: int, last: int) -> RangeIdentity:
        like = self._parents[0].identity
        return RangeIdentity(like.directory, like.topic_id, first, last, like.term)

    def _created(self, error: OSError | None) -> None:
        if self._state != "CREATING" or not self._arrived(error):
            return
        failed = self._error or self._ended_parent()
        if failed is not None:
            self._abandon(failed)
            return
        self._change_state("PUBLISHING")
        event = ReshapeEvent(
            tuple(log.active.segment_id for log in self._parents),
            tuple(
                (segment.segment_id, *span) for segment, span in zip(self._segments, self._spans, strict=True)
            ),
        )
        self._owner.publish(event, self._published)

    def _published(self, error: Exception | None) -> None:
        if self._state != "PUBLISHING":
            return
        if isinstance(error, LayoutChanged):
            self._abandon(error)
            return
        for parent in self._parents:
            parent.write_queued()
        ended = self._ended_parent()
        if error is None and ended is None:
            self._switch()
            return
        # The layout names the children, or may: none of the parents may take a byte more. A restart goes on from here.
        failure = error or ended
        assert failure is not None
        self._change_state("ABANDONED")
        for parent in self._parents:
            parent.fail(failure if isinstance(failure, OSError) else OSError(str(failure)))
        for segment in self._segments:
            segment.close()
        self._owner.abandoned(failure)

    def _switch(self) -> None:
        partitions: list[PartitionLog] = []
        for parent in self._parents:
            partitions += parent.retire(self._retired(parent))
        first_of_all = self._parents[0].first
        children = []
        for segment, (first, last) in zip(self._segments, self._spans, strict=True):
            before = [log for log in self._parents if log.first <= last and log.last >= first]
            chain = {shared.segment_id: shared for log in before for shared in log.segments}
            children.append(
                RangeLog(
                    self._disk,
                    self._scheduler,
                    self._identity(first, last),
                    self._hooks,
                    self._config,
                    self._cache,
                    [*_overlapping(chain.values(), first, last), segment],
                    partitions[first - first_of_all : last + 1 - first_of_all],
                    before,
                )
            )
        self._change_state("DONE")
        self._owner.switched(children)

    def _retired(self, parent: RangeLog) -> Callable[[], None]:
        return lambda: self._owner.retired(parent)

    def _abandon(self, error: Exception) -> None:
        """Nobody has been told of the children: remove them."""
        self._change_state("ABANDONED")
        for segment in self._segments:
            segment.close()
            with contextlib.suppress(OSError):
                # What cannot be removed now a start removes.
                self._disk.remove(segment.path)
        for parent in self._parents:
            parent.release_rolls()
        self._owner.abandoned(error)


def _overlapping(segments: Iterable[Segment], first: int, last: int) -> list[Segment]:
    return [segment for segment in segments if segment.header.first <= last and segment.header.last >= first]
