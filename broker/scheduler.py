"""The real event loop behind the `Scheduler` interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from storage.clock import Timer


class LoopScheduler:
    """Wall clock from the system, order and delays from an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.call_soon: Callable[..., Any] = loop.call_soon

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def call_later(self, delay_ms: float, callback: Callable[..., Any], *args: Any) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback, *args)
