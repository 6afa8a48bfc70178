"""Finds in a large Produce, while it arrives, records that will be refused by their size, so that nobody keeps them.

Guarantee: what `look` has the frame leave out is the inside of a records field, behind a batch's header, of more bytes
than its topic takes: whatever the header says, the answer is an error, and the same one as if all had been kept.
(Where the topic's limit is raised before the request is whole, the zeros in its place fail the batch's CRC.) What is
not understood at once is kept, and decoding decides; a frame costs so many steps at most, whatever is in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Final
from uuid import UUID

from wire.apis import ApiKey
from wire.batch import BATCH_HEADER_SIZE
from wire.framing import LargeFrame
from wire.header import ProtocolError, parse_request_header
from wire.packing import read_unsigned_varint

MostBytes = Callable[[str | UUID], int]
"""How large a batch the topic of this name or id takes."""

LEFT_OUT_FROM_BYTES: Final = 256 << 10
"""Records below that are kept in any case."""
MAX_STEPS: Final = 1_000
"""Lengths and counts that are read of one frame: those of some hundred partitions."""
MAX_HEAD_BYTES: Final = 256 << 10
"""Where so much has come and the request's header is not whole, nobody looks on."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_TOPIC_ID: Final = 13
_TOPIC_ID_BYTES: Final = 16
_ACKS_AND_TIMEOUT: Final = 6

_Steps = Generator[None, None, None]
"""Yields where it waits for more bytes."""
_Number = Generator[None, None, int]
"""The same; returns a number."""


class OversizedRecords:
    """Looks through one frame."""

    def __init__(self, frame: LargeFrame, most_bytes: MostBytes) -> None:
        self.frame = frame
        self._steps: _Steps | None = _look(frame, most_bytes)

    def look(self) -> None:
        """As far as there are bytes."""
        if self._steps is not None:
            try:
                next(self._steps)
            except (StopIteration, ValueError):
                self._steps = None


def _look(frame: LargeFrame, most_bytes: MostBytes) -> _Steps:
    while True:
        try:
            header = parse_request_header(frame.view[: len(frame)])
            break
        except ProtocolError:
            if len(frame) >= MAX_HEAD_BYTES:
                return
        yield
    if header.api_key != ApiKey.PRODUCE:
        return
    read = _Fields(frame, header.size_bytes, flexible=header.api_version >= _FIRST_FLEXIBLE)
    by_id = header.api_version >= _FIRST_WITH_TOPIC_ID
    size = yield from read.string_size()
    read.position += size + _ACKS_AND_TIMEOUT
    for _ in range((yield from read.count())):
        size = _TOPIC_ID_BYTES if by_id else (yield from read.string_size())
        start = read.position
        read.position += size
        yield from read.wait_for(0)
        raw = bytes(frame.view[start : read.position])
        most = max(most_bytes(UUID(bytes=raw) if by_id else str(raw, "utf-8")), LEFT_OUT_FROM_BYTES)
        for _ in range((yield from read.count())):
            read.position += _INT32.size
            size = yield from read.records_size()
            if size > most:
                frame.leave_out(read.position + BATCH_HEADER_SIZE, read.position + size)
            read.position += size
            yield from read.tagged_fields()
        yield from read.tagged_fields()


class _Fields:
    """Reads one field after the other, waiting where its bytes have not come. Sizes of null are 0."""

    __slots__ = ("_flexible", "_frame", "_steps_left", "position")

    def __init__(self, frame: LargeFrame, position: int, *, flexible: bool) -> None:
        self._frame = frame
        self._flexible = flexible
        self._steps_left = MAX_STEPS
        self.position = position

    def wait_for(self, size: int) -> _Steps:
        """Raises ValueError where there have been too many steps."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise ValueError("too much to look through")
        while len(self._frame) < self.position + size:
            yield

    def string_size(self) -> _Number:
        if self._flexible:
            return max(0, (yield from self._varint()) - 1)
        yield from self.wait_for(_INT16.size)
        (size,) = _INT16.unpack_from(self._frame.view, self.position)
        self.position += _INT16.size
        return max(0, int(size))

    def count(self) -> _Number:
        if self._flexible:
            return max(0, (yield from self._varint()) - 1)
        yield from self.wait_for(_INT32.size)
        (size,) = _INT32.unpack_from(self._frame.view, self.position)
        self.position += _INT32.size
        return max(0, int(size))

    records_size = count

    def tagged_fields(self) -> _Steps:
        if self._flexible:
            for _ in range((yield from self._varint())):
                yield from self._varint()
                size = yield from self._varint()
                self.position += size

    def _varint(self) -> _Number:
        while True:
            yield from self.wait_for(1)
            try:
                value, self.position = read_unsigned_varint(
                    self._frame.view[: len(self._frame)], self.position
                )
            except IndexError:
                yield
            else:
                return value
