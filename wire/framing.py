"""Kafka's framing: every message is preceded by its length in 4 bytes.

Guarantee: whatever the bytes and however they are split, the reader holds at most one unfinished frame of at
most `max_frame_bytes`, allocates for bytes that arrived and never for a length that was claimed, and copies a
byte at most once (not at all where a whole frame came in one piece).
"""

from __future__ import annotations

import struct
from typing import Final

_LENGTH: Final = struct.Struct(">i")
LENGTH_SIZE: Final = 4


class FrameError(Exception):
    """A length no frame can have. The stream cannot be read on: close the connection."""


class FrameReader:
    """Cuts a byte stream into frames. Sans I/O."""

    __slots__ = ("_broken", "_frame", "_length", "_max_frame_bytes", "_prefix")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._prefix = b""
        """Of an unfinished frame: the bytes of its length, while they are fewer than four."""
        self._frame: bytearray | None = None
        """Of an unfinished frame: its bytes so far, once the length is known."""
        self._length = 0
        self._broken = False

    @property
    def buffered_bytes(self) -> int:
        """The bytes kept of an unfinished frame."""
        return len(self._prefix) + (0 if self._frame is None else len(self._frame))

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
        if self._frame is not None or self._prefix:
            position = self._resume(view, frames)
            if self._frame is not None:
                return frames
        while end - position >= LENGTH_SIZE:
            length = self._checked_length(view, position)
            position += LENGTH_SIZE
            stop = position + length
            if stop > end:
                self._length = length
                self._frame = bytearray(view[position:])
                return frames
            frames.append(view[position:stop])
            position = stop
        if position < end:
            self._prefix += bytes(view[position:])
        return frames

    def _resume(self, view: memoryview, frames: list[memoryview]) -> int:
        """Go on with the unfinished frame; the position in `view` behind what it took."""
        position = 0
        frame = self._frame
        if frame is None:
            position = LENGTH_SIZE - len(self._prefix)
            if len(view) < position:
                return 0
            self._length = self._checked_length(self._prefix + bytes(view[:position]), 0)
            self._prefix = b""
            frame = self._frame = bytearray()
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
