"""The disk as the rest of the system sees it.

Everything that touches a file goes through `Disk` and `File`, so that a simulator can hand in one that loses,
tears, delays or refuses. Paths are relative to the disk's root and use "/". All calls but `start_flush*` are
synchronous: reads and writes meet the page cache; only flushes wait for the device, and those run elsewhere.
A flush covers what was written before it was started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from typing_extensions import Buffer

FlushDone = Callable[[OSError | None], None]


class File(Protocol):
    """An open file. Positions and sizes are bytes. Every method may raise OSError."""

    path: str

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` at `position`; fewer only at the end of the file."""
        ...

    def will_read(self, size_bytes: int, position: int) -> None:
        """A hint that this will be read soon: the device may begin now, and nobody waits for it."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers one after another at `position`; the total written. Never a short write."""
        ...

    def size(self) -> int: ...

    def allocate(self, position: int, size_bytes: int) -> None:
        """Reserve zeroed space, growing the file if need be (posix_fallocate)."""
        ...

    def truncate(self, size_bytes: int) -> None: ...

    def flush(self) -> None:
        """Block until everything written is on the device (fdatasync). For start-up and shutdown."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files below one root."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. With `create` the file must not exist yet (FileExistsError)."""
        ...

    def open_readonly(self, path: str) -> File: ...

    def exists(self, path: str) -> bool: ...

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted; an absent folder has none."""
        ...

    def make_dir(self, path: str) -> None:
        """Create a folder and its parents; fine if it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_dir(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomically, replacing `new`."""
        ...

    def link(self, existing: str, new: str) -> None:
        """Give a file another name, which must not be there yet (FileExistsError): the file lives as long as either."""
        ...

    def flush_dir(self, path: str) -> None:
        """Block until the folder's entries are on the device."""
        ...

    def start_flush(self, file: File, done: FlushDone) -> None:
        """Flush off the event loop; `done(error)` is called on it. At most one flush per file at a time is
        asked."""
        ...

    def start_flush_dir(self, path: str, done: FlushDone) -> None:
        """`flush_dir` off the event loop; `done(error)` is called on it."""
        ...

    def start_remove(self, path: str, done: FlushDone) -> None:
        """`remove` off the event loop, as giving back a large file's space takes its time; `done(error)` is called on
        it."""
        ...
