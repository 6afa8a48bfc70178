"""Up to which entry a log is known to be on the device, as a note beside it.

A log whose last file ends early was torn by a power cut, or was damaged later: the bytes do not tell. The note does,
for what was flushed longer ago than it: an entry that it covers and that cannot be read is damage. It is not flushed
itself but where entries it covers are cut off, so that it never speaks of more than there is.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from crc32c import crc32c

from storage.disk import Disk

_NOTE: Final = Struct(">QI")
_EVERY_MS: Final = 1000


class DurableMark:
    """Raises OSError."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._file = disk.open(path, create=not disk.exists(path))
        data = self._file.pread(_NOTE.size, 0)
        self.index = 0
        if len(data) == _NOTE.size and crc32c(data[:8]) == int.from_bytes(data[8:], "big"):
            self.index = int.from_bytes(data[:8], "big")
        self._noted_ms = 0

    def durable(self, index: int, now_ms: int) -> None:
        """So far it is on the device. Noted now and then."""
        if index > self.index and now_ms - self._noted_ms >= _EVERY_MS:
            self._noted_ms = now_ms
            self._write(index)

    def lower(self, index: int) -> None:
        """What comes after is about to be cut off; blocks until the note of it is durable."""
        if index < self.index:
            self._write(index)
            self._file.flush()

    def _write(self, index: int) -> None:
        self.index = index
        packed = index.to_bytes(8, "big")
        self._file.pwritev([packed + crc32c(packed).to_bytes(4, "big")], 0)

    def close(self) -> None:
        self._file.close()
