"""When is service back? Lanes of small operations, one after the other, and how long after a moment each lane moved."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable


class Lanes:
    """Every lane stands for something that must work: one log that can be written, one kind of commit.

    An operation counts for a moment if it began after it: what was under way says nothing. Times by time.monotonic().
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._lock = threading.Lock()
        self._moment = 0.0
        self._first: dict[str, float] = {}
        self.done: dict[str, int] = defaultdict(int)

    def mark(self) -> float:
        """From now on: what begins after this moment."""
        with self._lock:
            self._moment = time.monotonic()
            self._first.clear()
            return self._moment

    def succeeded(self, lane: str, began: float) -> None:
        with self._lock:
            self.done[lane] += 1
            if began >= self._moment:
                self._first.setdefault(lane, time.monotonic())

    def missing(self, wanted: Iterable[str] | None = None) -> list[str]:
        """The lanes on which nothing that began after the moment has succeeded."""
        with self._lock:
            return [name for name in wanted or self.names if name not in self._first]

    def back_after_s(self, wanted: Iterable[str] | None = None) -> float:
        """How long after the moment the last of the lanes moved; all of them must have."""
        with self._lock:
            return max(self._first[name] for name in wanted or self.names) - self._moment
