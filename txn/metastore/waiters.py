"""Callbacks that wait for a point of the log, called in the order of those points.

One that raises doesn't keep the others from being called: they follow in the loop's next turn.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from storage.clock import Scheduler

Callback: TypeAlias = Callable[[Exception | None], None]


class Waiters:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._heap: list[tuple[int, int, Callback]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, lsn: int, callback: Callback) -> None:
        heappush(self._heap, (lsn, next(self._order), callback))

    def fire(self, lsn: int, error: Exception | None = None) -> None:
        """Call all that wait for `lsn` or less, first come first served among equals."""
        heap = self._heap
        try:
            while heap and heap[0][0] <= lsn:
                heappop(heap)[2](error)
        finally:
            if heap and heap[0][0] <= lsn:
                self._scheduler.call_soon(self.fire, lsn, error)

    def fire_all(self, error: Exception) -> None:
        """Call all there are."""
        if self._heap:
            self.fire(max(self._heap)[0], error)
