"""Time and deferred calls, handed in: the real loop's, or a simulator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """What the state machines' shells need of an event loop. An asyncio loop wrapped in `LoopScheduler` is
    one."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back, whatever becomes of the wall clock."""
        ...

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run the callback at the end of this turn of the loop, in order of calls."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Run the callback after a monotonic delay."""
        ...


class Periodic:
    """Calls `work` every `interval_ms`, the first time after one interval, until it is closed."""

    def __init__(self, scheduler: Scheduler, interval_ms: int, work: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._interval_ms = interval_ms
        self._work = work
        self._timer: Timer | None = scheduler.call_later(interval_ms, self._tick)

    def _tick(self) -> None:
        # Set before the work: work that fails once has its turn again.
        self._timer = self._scheduler.call_later(self._interval_ms, self._tick)
        self._work()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Paced:
    """Calls `work` soon after each `wake`, but once for all that come within `interval_ms` of the last time."""

    def __init__(self, scheduler: Scheduler, interval_ms: int, work: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._interval_ms = interval_ms
        self._work = work
        self._not_before_ms = scheduler.monotonic_ms()
        self._is_due = self._is_closed = False

    def wake(self) -> None:
        if self._is_due or self._is_closed:
            return
        self._is_due = True
        wait_ms = self._not_before_ms - self._scheduler.monotonic_ms()
        if wait_ms > 0:
            self._scheduler.call_later(wait_ms, self._run)
        else:
            self._scheduler.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        if not self._is_closed:
            self._not_before_ms = self._scheduler.monotonic_ms() + self._interval_ms
            self._work()

    def close(self) -> None:
        self._is_closed = True
