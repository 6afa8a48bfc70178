"""The real event loop behind the `Scheduler` interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from storage.clock import Timer


class LoopScheduler:
    """Wall clock from the system, order and delays from an asyncio loop.

    `now_ms` never goes back and never stands still: where the system's clock is set back it goes on by the monotonic
    one until the system's has caught up. So no transaction outlives its timeout by the difference.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._wall_ahead_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        """Of the monotonic clock."""
        self.call_soon: Callable[..., Any] = loop.call_soon

    def now_ms(self) -> int:
        steady_ms = time.monotonic_ns() // 1_000_000
        ahead_ms = time.time_ns() // 1_000_000 - steady_ms
        if ahead_ms > self._wall_ahead_ms:
            self._wall_ahead_ms = ahead_ms
        return steady_ms + self._wall_ahead_ms

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def call_later(self, delay_ms: float, callback: Callable[..., Any], *args: Any) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback, *args)
