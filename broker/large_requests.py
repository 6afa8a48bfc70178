"""Memory of large requests, which is given back in pieces, with rests between them.

To give 100 MB back at once takes the kernel 10 to 20 ms, in which nobody else is served. Guarantee: all large requests
together, those that arrive and those that are worked on, take no more than the limit; the one above it is refused.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from typing import Any, Final

from wire.framing import FrameError

PIECE_BYTES: Final = 1 << 20
REST_MS: Final = 1.0


class _Memory(mmap.mmap):
    """Comes back to its pool when nobody has a view of it any more: that is when its reference count says so."""

    pool: LargeRequests | None = None

    def __del__(self) -> None:
        if self.pool is not None:
            pool, self.pool = self.pool, None
            pool.released(self)


class LargeRequests:
    """`allocate` is handed to the connections of one server."""

    def __init__(
        self,
        call_soon_threadsafe: Callable[..., Any],
        call_later: Callable[[float, Callable[[], None]], Any],
        limit_bytes: int,
    ) -> None:
        """`call_later`: in milliseconds."""
        self._call_soon = call_soon_threadsafe
        self._call_later = call_later
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    def allocate(self, size_bytes: int) -> memoryview:
        """Raises FrameError at the limit."""
        if self.held_bytes + size_bytes > self._limit_bytes:
            raise FrameError(
                f"a request of {size_bytes} bytes beside {self.held_bytes} of others, the limit is {self._limit_bytes}"
            )
        memory = _Memory(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.pool = self
        self.held_bytes += size_bytes
        return memoryview(memory)

    def released(self, memory: mmap.mmap) -> None:
        """By whatever thread dropped the last view."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._call_soon(self._give_back, memory, 0)

    def _give_back(self, memory: mmap.mmap, start: int) -> None:
        size = min(PIECE_BYTES, len(memory) - start)
        memory.madvise(mmap.MADV_DONTNEED, start, size)
        self.held_bytes -= size
        if start + size < len(memory):
            self._call_later(REST_MS, lambda: self._give_back(memory, start + size))
        else:
            memory.close()
