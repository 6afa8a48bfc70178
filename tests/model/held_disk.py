"""A disk whose flushes end when the explorer says so, each by itself and in any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from support.sim_disk import Inode, SimDisk, SimFile

from storage.disk import FlushDone


class HeldDisk(SimDisk):
    """While `holding`, background work is kept under (kind, path) until `complete` is called with it."""

    def __init__(self, scheduler: Any, **options: Any) -> None:
        super().__init__(scheduler, **options)
        self.holding = False
        self.held: dict[tuple[str, str], Callable[[OSError | None], None]] = {}
        self.covered: dict[tuple[str, str], int] = {}
        """Of each held flush, how many of the changes that are pending it covers."""

    def _start(self, kind: str, path: str, finish: Callable[[], None], done: FlushDone) -> None:
        covered = len(self._node(path).pending) if kind in ("flush", "flush_dir") else 0

        def complete(error: OSError | None) -> None:
            if error is None:
                finish()
            else:
                self._failed(path, covered)
            done(error)

        if self.holding:
            assert (kind, path) not in self.held, f"two of {kind} {path} at once"
            self.held[kind, path] = complete
            self.covered[kind, path] = covered
        else:
            self.scheduler.call_soon(complete, None)

    def _failed(self, path: str, covered: int) -> None:
        node = self._node(path)
        assert isinstance(node, Inode), "only files' flushes are let fail"
        node.flushing = False
        node.lose(covered)

    def complete(self, key: tuple[str, str], error: OSError | None = None) -> None:
        del self.covered[key]
        self.held.pop(key)(error)

    def release(self) -> None:
        """From now on nothing is held."""
        self.holding = False
        while self.held:
            self.complete(next(iter(self.held)))

    def _opened(self, path: str, *, writable: bool) -> SimFile:
        file = _Unreserved(self, path, self._inode(path), writable=writable)
        self.open_files.add(file)
        return file

    def after(self, scheduler: Any, keep: str | Callable[[str], str] | None) -> HeldDisk:
        """What the next start finds: after a kill (None), or a power cut that keeps "all" or "none" of the unflushed
        bytes, or what a function of the path says."""
        self._alive = False
        self.held.clear()
        self.covered.clear()
        if keep is None:
            self._forget_flushing(self._root)
            return HeldDisk(scheduler, root=self._root)
        return HeldDisk(scheduler, root=self._folder_after_crash(self._root, "", random.Random(0), keep, {}))


class _Unreserved(SimFile):
    """Nothing is reserved: the files stay small, and copying them quick."""

    def allocate(self, position: int, size_bytes: int) -> None:
        self._check(write=True)
