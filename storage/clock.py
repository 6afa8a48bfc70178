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
