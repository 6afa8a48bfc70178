"""What is forgotten when nobody used it for long: looked for in intervals, a bounded part per turn of the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod

from storage.clock import Scheduler, Timer
from txn.metastore import StoreFailed, TryAgain
from txn.patience import AGAIN_MS


class Sweep(ABC):
    """Times in milliseconds of the wall clock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._expiration_ms = 0
        self._interval_ms = 0
        self._timer: Timer | None = None

    @abstractmethod
    def part(self, before_ms: int) -> bool:
        """Forget some of what was not used since `before_ms`; whether there is more to look at. Raises StoreFailed."""

    def configure(self, expiration_ms: int, interval_ms: int) -> None:
        """Sweep from now on, every `interval_ms`."""
        self._expiration_ms = expiration_ms
        self._interval_ms = interval_ms
        self.close()
        self._timer = self._scheduler.call_later(interval_ms, self._sweep)

    def close(self) -> None:
        """No more sweeps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        """One turn's part; the next one follows at once while there is more to look at."""
        try:
            more = self.part(self._scheduler.now_ms() - self._expiration_ms)
        except TryAgain:
            self._timer = self._scheduler.call_later(AGAIN_MS, self._sweep)
        except StoreFailed:
            return  # the store has said so to everyone
        else:
            self._timer = self._scheduler.call_later(0 if more else self._interval_ms, self._sweep)
