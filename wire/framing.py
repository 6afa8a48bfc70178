"""Kafka's framing: every message is preceded by its length in 4 bytes.

Guarantee: whatever the bytes and however they are split, the reader holds at most one unfinished frame of at
most `max_frame_bytes`, takes memory for bytes that arrived and never for a length that was claimed, and copies a
byte at most once (not at all where a whole frame came in one piece).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Final

_LENGTH: Final = struct.Struct(">i")
LENGTH_SIZE: Final = 4
LARGE_FRAME_BYTES: Final = 4 << 20
"""A frame above that is large: it gets memory of its own, of its whole size, which becomes real as bytes arrive."""


class FrameError(Exception):
    """A length no frame can have. The stream cannot be read on: close the connection."""


Allocate = Callable[[int], memoryview]
"""Writable memory of so many bytes that becomes real where it is written to. Raises FrameError: there is no room."""


def anonymous_memory(size_bytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class FrameReader:
    """Cuts a byte stream into frames. Sans I/O."""

    __slots__ = ("_allocate", "_broken", "_frame", "_large", "_length", "_max_frame_bytes", "_prefix")

    def __init__(self, max_frame_bytes: int, allocate: Allocate = anonymous_memory) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._allocate = allocate
        self._prefix = b""
        """Of an unfinished frame: the bytes of its length, while they are fewer than four."""
        self._frame: bytearray | None = None
        """Of an unfinished frame: its bytes so far, once the length is known."""
        self._large: LargeFrame | None = None
        """The same of a large one."""
        self._length = 0
        self._broken = False

    @property
    def buffered_bytes(self) -> int:
        """The bytes kept of an unfinished frame."""
        kept = self._frame if self._large is None else self._large
        return len(self._prefix) + (0 if kept is None else len(kept))

    @property
    def large(self) -> LargeFrame | None:
        """The large frame that is arriving."""
        return self._large

    def feed(self, data: bytes) -> list[memoryview]:
        """Take the next bytes of the stream; the frames they complete, without their lengths, read-only.

        Frames are views of `data` where they can be: it must not change. Raises FrameError on a length below
        0 or above the limit, then and on every later call.
        """
        if self._broken:
            raise FrameError("the stream is broken")
        frames: list[memoryview] = []
        view = memoryview(data)
        end = len(view)
        position = 0
        if self._large is not None or self._frame is not None or self._prefix:
            position = self._resume(view, frames)
            if self._large is not None or self._frame is not None:
                return frames
        while end - position >= LENGTH_SIZE:
            length = self._checked_length(view, position)
            position += LENGTH_SIZE
            stop = position + length
            if stop > end:
                self._begin(length)
                self._resume(view[position:], frames)
                return frames
            frames.append(view[position:stop])
            position = stop
        if position < end:
            self._prefix += bytes(view[position:])
        return frames

    def _begin(self, length: int) -> None:
        self._length = length
        if length <= LARGE_FRAME_BYTES:
            self._frame = bytearray()
            return
        try:
            self._large = LargeFrame(self._allocate(length))
        except FrameError:
            self._broken = True
            raise

    def _resume(self, view: memoryview, frames: list[memoryview]) -> int:
        """Go on with the unfinished frame; the position in `view` behind what it took."""
        position = 0
        if self._large is None and self._frame is None:
            position = LENGTH_SIZE - len(self._prefix)
            if len(view) < position:
                return 0
            self._begin(self._checked_length(self._prefix + bytes(view[:position]), 0))
            self._prefix = b""
        if self._large is not None:
            position += self._large.take(view[position:])
            if self._large.is_whole:
                frames.append(self._large.view.toreadonly())
                self._large = None
            return position
        frame = self._frame
        assert frame is not None
        stop = position + self._length - len(frame)
        frame += view[position:stop]
        if len(frame) < self._length:
            return len(view)
        self._frame = None
        frames.append(memoryview(frame).toreadonly())
        return stop

    def _checked_length(self, data: bytes | memoryview, position: int) -> int:
        length: int
        (length,) = _LENGTH.unpack_from(data, position)
        if 0 <= length <= self._max_frame_bytes:
            return length
        self._broken = True
        raise FrameError(f"frame of {length} bytes, the limit is {self._max_frame_bytes}")


class LargeFrame:
    """A frame in memory of its own, which its bytes fill one after the other."""

    __slots__ = ("_filled", "view")

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self._filled = 0

    def __len__(self) -> int:
        """The bytes that are here."""
        return self._filled

    @property
    def is_whole(self) -> bool:
        return self._filled == len(self.view)

    def take(self, data: memoryview) -> int:
        """How many bytes of `data` are its own."""
        size = min(len(data), len(self.view) - self._filled)
        self.view[self._filled : self._filled + size] = data[:size]
        self._filled += size
        return size
