"""How large requests are read: one connection at a time, with a rest after each piece, so that others are served.

Guarantee: however many connections send large requests, together they are read from once in a rest; each has its turn,
in order. What will be refused is not copied out of the kernel.
"""

from __future__ import annotations

import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final

REST_MS: Final = 2.0
"""100 MB/s are enough for all of their kind, and the loop is there for the others most of the time."""
CAN_DISCARD: Final = sys.platform == "linux"
"""Only there TCP knows what to do with MSG_TRUNC."""


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


def discard(descriptor: int, size: int) -> int:
    """Take at most so many bytes out of a TCP socket's queue, without a copy: how many.

    0 where there are none, no more will come, or the connection has failed: the event loop finds out which.
    """
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    try:
        return len(borrowed.recv(size, socket.MSG_TRUNC | socket.MSG_DONTWAIT))
    except OSError:
        return 0
    finally:
        borrowed.detach()
