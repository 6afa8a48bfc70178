"""Deadlines that move far more often than they fire.

Guarantee: `tick` fires every deadline that is due, earliest first, and none that was cancelled or moved
past now. Moving a deadline later, which is what each heartbeat does, is one assignment and no heap
operation; so ten thousand members that live cost nothing per tick.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush


class Deadline:
    """A point in time that may be set, moved and cancelled; `fire(now_ms)` runs when it is met."""

    __slots__ = ("_armed_ms", "_due_ms", "fire")

    def __init__(self, fire: Callable[[int], None]) -> None:
        self.fire = fire
        self._due_ms: int | None = None
        # The time of this deadline's one valid heap entry; never later than the due time.
        self._armed_ms: int | None = None

    @property
    def due_ms(self) -> int | None:
        """When it fires; None when it is not set."""
        return self._due_ms


class Deadlines:
    """A heap of deadlines, lazily kept: an entry is looked at only when its time has come."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._sequence = 0
        self._live = 0

    def __len__(self) -> int:
        """Deadlines that are set."""
        return self._live

    def set(self, deadline: Deadline, due_ms: int) -> None:
        """Set or move a deadline."""
        if deadline._due_ms is None:
            self._live += 1
        deadline._due_ms = due_ms
        if deadline._armed_ms is None or due_ms < deadline._armed_ms:
            self._arm(deadline, due_ms)

    def cancel(self, deadline: Deadline) -> None:
        """Forget a deadline; one that is not set stays so."""
        if deadline._due_ms is not None:
            deadline._due_ms = None
            self._live -= 1

    def next_ms(self) -> int | None:
        """When the earliest deadline is due; None when none is set."""
        heap = self._heap
        while heap:
            at_ms, _, deadline = heap[0]
            if deadline._armed_ms != at_ms:  # an earlier setting of this deadline overtook the entry
                heappop(heap)
            elif deadline._due_ms is None:
                heappop(heap)
                deadline._armed_ms = None
            elif deadline._due_ms > at_ms:
                heappop(heap)
                self._arm(deadline, deadline._due_ms)
            else:
                return at_ms
        return None

    def tick(self, now_ms: int) -> None:
        """Fire what is due at `now_ms`, including what firing sets at or before it."""
        while (next_ms := self.next_ms()) is not None and next_ms <= now_ms:
            _, _, deadline = heappop(self._heap)
            deadline._armed_ms = deadline._due_ms = None
            self._live -= 1
            deadline.fire(now_ms)

    def _arm(self, deadline: Deadline, at_ms: int) -> None:
        deadline._armed_ms = at_ms
        self._sequence += 1
        heappush(self._heap, (at_ms, self._sequence, deadline))
        # Cancelled and overtaken entries stay until their time; clients that come and go must not pile them
        # up.
        if len(self._heap) > 64 + 4 * self._live:
            self._sweep()

    def _sweep(self) -> None:
        kept: list[tuple[int, int, Deadline]] = []
        for entry in self._heap:
            at_ms, _, deadline = entry
            if deadline._armed_ms != at_ms:
                continue
            if deadline._due_ms is None:
                deadline._armed_ms = None
            else:
                kept.append(entry)
        heapify(kept)
        self._heap[:] = kept  # in place: next_ms holds on to the list
