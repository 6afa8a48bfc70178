"""A note in the data folder of how far the metadata store was durable.

The store's log says in each frame how far it was durable, but a file that lost its end lost those frames, too: with the
note a log that was cut short is told from a whole one. Guarantee: it never says more than is true, whatever a crash
leaves of it; one that is absent or damaged says nothing.
"""

from __future__ import annotations

import contextlib
import re

from crc32c import crc32c

from storage.disk import Disk, File

NAME = "durable"
_LINE = re.compile(rb"(metadata (\d{20})) ([0-9a-f]{8})\n")


def _line(lsn: int) -> bytes:
    text = b"metadata %020d" % lsn
    return text + b" %08x\n" % crc32c(text)


class DurableNote:
    """The file, opened for the life of a node. It is written over in place, within one sector."""

    def __init__(self, disk: Disk) -> None:
        """Raises OSError."""
        self._file: File = disk.open(NAME, create=not disk.exists(NAME))
        found = _LINE.fullmatch(self._file.pread(64, 0))
        self.lsn = int(found[2]) if found and int(found[3], 16) == crc32c(found[1]) else 0
        """What it says: all up to this batch of the metadata store was durable."""

    def write(self, lsn: int) -> None:
        """Without waiting for the device, and without complaint: an older note is as true."""
        if lsn > self.lsn:
            with contextlib.suppress(OSError):
                self._file.pwritev([_line(lsn)], 0)
                self.lsn = lsn

    def close(self, lsn: int) -> None:
        """The last word of a clean stop, which waits for the device."""
        self.write(lsn)
        with contextlib.suppress(OSError):
            self._file.flush()
        self._file.close()
