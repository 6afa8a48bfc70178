"""The files of a store's folder.

    log-0000000001       batches, in order; a file's predecessors come before it without a gap
    snapshot-0000000003  the state before the first batch of log file 3
    *.new                being made; gets its name once it is flushed, so a named file has a whole header

Recovery needs the newest snapshot and the log files from its number on; the others are left over and removed.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from storage.disk import Disk, File
from txn.metastore import frames

_NAME = re.compile(r"(log|snapshot)-(\d{10})")
_UNFINISHED = ".new"


@dataclass(frozen=True, slots=True)
class Listing:
    """A folder's files by number; others than the store's are not looked at."""

    logs: tuple[int, ...]
    snapshots: tuple[int, ...]
    unfinished: tuple[str, ...]


class Folder:
    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path

    def log_path(self, number: int) -> str:
        return self._path(f"log-{number:010d}")

    def snapshot_path(self, number: int) -> str:
        return self._path(f"snapshot-{number:010d}")

    def list(self) -> Listing:
        found: dict[str, list[int]] = {"log": [], "snapshot": []}
        unfinished = []
        for name in self.disk.list(self.path):
            match = _NAME.fullmatch(name.removesuffix(_UNFINISHED))
            if match is None:
                continue
            if name.endswith(_UNFINISHED):
                unfinished.append(self._path(name))
            else:
                found[match[1]].append(int(match[2]))
        return Listing(tuple(sorted(found["log"])), tuple(sorted(found["snapshot"])), tuple(unfinished))

    def make(self) -> None:
        """Create the folder, durably."""
        self.disk.make_dir(self.path)
        path = self.path
        while path:
            path = path.rpartition("/")[0]
            self.disk.flush_dir(path)

    def create(self, path: str, kind: int, number: int) -> File:
        """An unfinished file with its header written, not flushed. Replaces one that was given up."""
        unfinished = path + _UNFINISHED
        if self.disk.exists(unfinished):
            self.disk.remove(unfinished)
        file = self.disk.open(unfinished, create=True)
        try:
            file.pwritev([frames.encode_file_header(kind, number)], 0)
        except OSError:
            file.close()
            self.give_up(path)
            raise
        return file

    def give_up(self, path: str) -> None:
        """Remove the unfinished file if that can be done: if it stays, the next start removes it."""
        with contextlib.suppress(OSError):
            self.disk.remove(path + _UNFINISHED)

    def finish(self, path: str) -> None:
        """Give the unfinished file its name; not durable before the folder is flushed."""
        self.disk.rename(path + _UNFINISHED, path)

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name
