"""Deadlines that move far more often than they fire.

Guarantee: `tick` fires what is due, earliest first, and nothing that was cancelled or moved past now. Moving a
deadline later, which is what each heartbeat does, is one assignment and no heap operation, and `tick` looks only
at entries whose time has come: ten thousand members that live cost nothing per tick.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

WORK_PER_TICK = 250
"""Entries that one tick handles at most: after a restart all sessions are set to the same moment."""


class Deadline:
    """A point in time that may be set, moved and cancelled; `fire(now_ms)` runs when it is met."""

    __slots__ = ("_armed_ms", "_due_ms", "fire")

    def __init__(self, fire: Callable[[int], None]) -> None:
        self.fire = fire
        self._due_ms: int | None = None
        # The time of this deadline's valid heap entry; never later than the due time.
        self._armed_ms: int | None = None

    @property
    def due_ms(self) -> int | None:
        """When it fires; None when it is not set."""
        return self._due_ms


class Deadlines:
    """A heap of deadlines, lazily kept."""

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
        """When to `tick` next: no deadline is due earlier, though some that moved may be later. None: never."""
        heap = self._heap
        while heap:
            at_ms, _, deadline = heap[0]
            if deadline._armed_ms == at_ms and deadline._due_ms is not None:
                return at_ms
            self._drop_first()
        return None

    def tick(self, now_ms: int) -> None:
        """Fire what is due at `now_ms`, including what firing sets at or before it.

        The work is bounded: where more is due than one call may do, `next_ms` is not after `now_ms` afterwards.
        """
        heap = self._heap
        for _ in range(WORK_PER_TICK):
            if not heap or heap[0][0] > now_ms:
                break
            at_ms, deadline = self._drop_first()
            due_ms = deadline._due_ms
            if due_ms is None or deadline._armed_ms is not None:
                continue  # cancelled, or overtaken by an earlier setting of the same deadline
            if due_ms > at_ms:
                self._arm(deadline, due_ms)
            else:
                deadline._due_ms = None
                self._live -= 1
                deadline.fire(now_ms)

    def _drop_first(self) -> tuple[int, Deadline]:
        at_ms, _, deadline = heappop(self._heap)
        if deadline._armed_ms == at_ms:
            deadline._armed_ms = None
        return at_ms, deadline

    def _arm(self, deadline: Deadline, at_ms: int) -> None:
        deadline._armed_ms = at_ms
        self._sequence += 1
        heappush(self._heap, (at_ms, self._sequence, deadline))
        # Cancelled and overtaken entries stay until their time; clients that come and go must not pile them up.
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
        self._heap[:] = kept  # in place: tick and next_ms hold on to the list
