"""A loop in virtual time: no thread, no real clock, the same run for the same seed.

`call_soon` keeps the order of calls and puts a callback into the NEXT turn, as asyncio does. Time moves only
when nothing is ready: then it jumps to the next timer. With a seed, timers due at the same instant run in a
seeded order.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any


class SimTimer:
    __slots__ = ("args", "callback", "cancelled", "due_ms")

    def __init__(self, due_ms: float, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.due_ms = due_ms
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimScheduler:
    """A `storage.clock.Scheduler` that a test drives by hand."""

    def __init__(self, *, start_ms: int = 1_700_000_000_000, seed: int | None = None) -> None:
        self._now_ms = float(start_ms)
        self._ready: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, float, int, SimTimer]] = []
        self._counter = itertools.count()
        self._random = random.Random(seed) if seed is not None else None
        self.turns = 0

    # What the code under test sees.

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_ms(self) -> int:
        return int(self._now_ms)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self._ready.append((callback, args))

    def call_later(self, delay_ms: float, callback: Callable[..., Any], *args: Any) -> SimTimer:
        timer = SimTimer(self._now_ms + max(0.0, delay_ms), callback, args)
        tie = self._random.random() if self._random is not None else 0.0
        heapq.heappush(self._timers, (timer.due_ms, tie, next(self._counter), timer))
        return timer

    # What the test drives.

    def run_turn(self) -> int:
        """Run what is ready now (not what becomes ready meanwhile); the number of callbacks run."""
        self._take_due()
        count = len(self._ready)
        for _ in range(count):
            callback, args = self._ready.popleft()
            callback(*args)
        self.turns += 1
        return count

    def run_ready(self, *, max_turns: int = 100_000) -> None:
        """Run turns without moving time until nothing is ready."""
        for _ in range(max_turns):
            if not self.run_turn():
                return
        raise AssertionError(f"still busy after {max_turns} turns")

    def advance(self, delay_ms: float) -> None:
        """Move time by `delay_ms`, running everything that falls due on the way, at its own instant."""
        end = self._now_ms + delay_ms
        self.run_ready()
        while (due := self._next_due()) is not None and due <= end:
            self._now_ms = max(self._now_ms, due)
            self.run_ready()
        self._now_ms = end

    def run_until_idle(self, *, max_ms: float = 600_000.0) -> None:
        """Run until nothing is ready and no timer is left; fails when that takes longer than `max_ms`."""
        end = self._now_ms + max_ms
        self.run_ready()
        while (due := self._next_due()) is not None:
            if due > end:
                raise AssertionError(f"timers still pending after {max_ms} ms of virtual time")
            self._now_ms = max(self._now_ms, due)
            self.run_ready()

    def run_until(self, condition: Callable[[], bool], *, max_ms: float = 600_000.0) -> None:
        """Run turn by turn until the condition holds; fails when it never does."""
        end = self._now_ms + max_ms
        while not condition():
            if self.run_turn():
                continue
            due = self._next_due()
            if due is None or due > end:
                raise AssertionError("the condition never came true")
            self._now_ms = max(self._now_ms, due)

    def _next_due(self) -> float | None:
        while self._timers and self._timers[0][3].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _take_due(self) -> None:
        while (due := self._next_due()) is not None and due <= self._now_ms:
            timer = heapq.heappop(self._timers)[3]
            self._ready.append((self._fire, (timer,)))

    @staticmethod
    def _fire(timer: SimTimer) -> None:
        if not timer.cancelled:
            timer.callback(*timer.args)
