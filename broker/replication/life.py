"""The scheduler of one leadership: it can be held while the node starts in another thread, and it ends with it.

Guarantee: after `end` nothing that was handed in is called any more, so a node whose leadership is over does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from storage.clock import Scheduler, Timer


class _Timer:
    def __init__(self) -> None:
        self.inner: Timer | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.inner is not None:
            self.inner.cancel()
            self.inner = None


class Life:
    """A `storage.clock.Scheduler`, held until `release`. Only `release` and `end` are the loop's thread's alone."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held: list[Callable[[], None]] | None = []
        self.is_over = False

    def now_ms(self) -> int:
        return self._scheduler.now_ms()

    def monotonic_ms(self) -> int:
        return self._scheduler.monotonic_ms()

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        if self.is_over:
            return
        if self._held is not None:
            self._held.append(lambda: self.call_soon(callback, *args))
        else:
            self._scheduler.call_soon(self._run, callback, args)

    def call_later(self, delay_ms: float, callback: Callable[..., Any], *args: Any) -> Timer:
        timer = _Timer()
        if self.is_over:
            return timer
        if self._held is not None:
            self._held.append(lambda: self._arm(timer, delay_ms, callback, args))
        else:
            self._arm(timer, delay_ms, callback, args)
        return timer

    def _arm(
        self, timer: _Timer, delay_ms: float, callback: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if not timer.is_cancelled:
            timer.inner = self._scheduler.call_later(delay_ms, self._run, callback, args)

    def _run(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not self.is_over:
            callback(*args)

    def release(self) -> None:
        held, self._held = self._held, None
        for act in held or ():
            act()

    def end(self) -> None:
        # What is held stays: another thread may be adding to it.
        self.is_over = True
