"""How large requests are read: one connection at a time, with a rest after each piece, so that others are served.

Guarantee: however many connections send large requests, together they are read from once in a rest; each has its turn,
in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

REST_MS: Final = 2.0
"""100 MB/s are enough for all of their kind, and the loop is there for the others most of the time."""


class LargeReading:
    """Whose turn it is to be read from."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        """`call_later`: in milliseconds."""
        self._call_later = call_later
        self._waiting: deque[Callable[[], None]] = deque()
        self._resting = False

    def wait(self, turn: Callable[[], None]) -> None:
        """Call `turn` after a rest, and after the turns of all who wait already."""
        self._waiting.append(turn)
        if not self._resting:
            self._resting = True
            self._call_later(REST_MS, self._next)

    def _next(self) -> None:
        self._resting = False
        turn = self._waiting.popleft()
        if self._waiting:
            self._resting = True
            self._call_later(REST_MS, self._next)
        turn()
