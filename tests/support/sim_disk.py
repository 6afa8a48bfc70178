"""A disk in memory that can lose, tear, delay and refuse.

It keeps two versions of everything: what the page cache shows and what the device holds. A power cut
(`crash`) leaves, of what was written and never flushed, whatever a seed picks: per 512-byte sector an old or
a newer version, per file an old or a newer size, per folder any subset of the entries' changes. A killed
process (`kill`) loses nothing written. Memory that was allocated and never written reads as zeros, as
`posix_fallocate` promises.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from storage.disk import FlushDone

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine stopped here. Not an Exception: nothing may catch it and go on."""


class Inode:
    """One file: `cached` as processes see it, `durable` as the device holds it, and the changes between the
    two."""

    __slots__ = ("cached", "durable", "flushing", "lost", "pending")

    def __init__(self, content: bytes = b"") -> None:
        self.cached = bytearray(content)
        self.durable = bytearray(content)
        # (position, data) for a write, (size, None) for a change of size; in order
        self.pending: list[tuple[int, bytes | None]] = []
        # Of failed flushes: no later one writes it, unless it is written anew.
        self.lost: list[tuple[int, bytes | None]] = []
        self.flushing = False

    def change(self, position: int, data: bytes | None) -> None:
        apply(self.cached, position, data)
        self.pending.append((position, data))

    def settle(self, count: int) -> None:
        """The first `count` pending changes are on the device."""
        for position, data in self.pending[:count]:
            apply(self.durable, position, data)
        del self.pending[:count]

    def lose(self, count: int) -> None:
        """The flush of the first `count` pending changes failed. As on Linux, the pages count as clean from here on."""
        self.lost += self.pending[:count]
        del self.pending[:count]

    def after_crash(self, rng: random.Random, mode: str) -> bytes:
        pending = self.lost + self.pending
        total = len(pending)
        if mode == "random":
            mode = rng.choice(("none", "all", "prefix", "sectors", "sectors"))
        if mode == "none" or not total:
            return bytes(self.durable)
        if mode == "all":
            return bytes(self.cached)
        if mode == "prefix":
            result = bytearray(self.durable)
            cut = rng.randrange(total)
            for position, data in pending[:cut]:
                apply(result, position, data)
            position, data = pending[cut]
            if data is not None:
                end = rng.randrange(position, position + len(data) + 1) // SECTOR_BYTES * SECTOR_BYTES
                apply(result, position, data[: max(0, end - position)])
            return bytes(result)
        versions: dict[int, int] = {}
        size = len(self.durable)
        size_version = rng.randrange(total + 1)
        image = bytearray(max(len(self.cached), len(self.durable)))
        image[: len(self.durable)] = self.durable
        for index, (position, data) in enumerate(pending):
            if data is None:
                first, end = position, len(image)
                data = bytes(max(0, end - first))
                if index < size_version:
                    size = position
            else:
                first, end = position, position + len(data)
                if index < size_version:
                    size = max(size, end)
            if end > len(image):
                image.extend(bytes(end - len(image)))
            at = first
            while at < end:
                sector = at // SECTOR_BYTES
                stop = min(end, (sector + 1) * SECTOR_BYTES)
                if sector not in versions:
                    versions[sector] = rng.choice((0, total, rng.randrange(total + 1)))
                if index < versions[sector]:
                    image[at:stop] = data[at - first : stop - first]
                at = stop
        if size > len(image):
            image.extend(bytes(size - len(image)))
        return bytes(image[:size])


def apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        if position < len(content):
            del content[position:]
        else:
            content.extend(bytes(position - len(content)))
        return
    end = position + len(data)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    content[position:end] = data


class Folder:
    """Names as processes see them and as the device holds them; `None` in a change takes a name away."""

    __slots__ = ("cached", "durable", "pending")

    def __init__(self) -> None:
        self.cached: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self.pending: list[dict[str, Inode | Folder | None]] = []

    def change(self, names: dict[str, Inode | Folder | None]) -> None:
        rename_names(self.cached, names)
        self.pending.append(names)

    def settle(self, count: int) -> None:
        for names in self.pending[:count]:
            rename_names(self.durable, names)
        del self.pending[:count]


def rename_names(entries: dict[str, Inode | Folder], names: dict[str, Inode | Folder | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


class SimFile:
    """An open file of a `SimDisk`; lives on after its name is removed, as on a real disk."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode, *, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._writable = writable
        self._open = True

    def _check(self, *, write: bool = False) -> None:
        self._disk.check_alive()
        if not self._open:
            raise OSError(errno.EBADF, "file is closed", self.path)
        if write and not self._writable:
            raise OSError(errno.EBADF, "file is open for reading only", self.path)

    def pread(self, size_bytes: int, position: int) -> bytes:
        self._check()
        self._disk.reads[self.path] += 1
        self._disk.meet("read", self.path)
        return bytes(self._inode.cached[position : position + size_bytes])

    def will_read(self, size_bytes: int, position: int) -> None:
        self._check()
        self._disk.hints.append((self.path, position, size_bytes))

    def pwritev(self, buffers: Sequence[Any], position: int) -> int:
        self._check(write=True)
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._disk.meet("write", self.path)
        self._disk.writes[self.path] += 1
        self._inode.change(position, data)
        return len(data)

    def size(self) -> int:
        self._check()
        return len(self._inode.cached)

    def allocate(self, position: int, size_bytes: int) -> None:
        self._check(write=True)
        self._disk.meet("allocate", self.path)
        if position + size_bytes > len(self._inode.cached):
            self._inode.change(position + size_bytes, None)

    def truncate(self, size_bytes: int) -> None:
        self._check(write=True)
        self._disk.meet("truncate", self.path)
        self._inode.change(size_bytes, None)

    def flush(self) -> None:
        self._check()
        self._disk.flush_now(self.path, self._inode)

    def close(self) -> None:
        self._open = False
        self._disk.open_files.discard(self)

    @property
    def inode(self) -> Inode:
        return self._inode


class SimDisk:
    """A `storage.disk.Disk` in memory.

    `flush_delay_ms` is virtual time, a number or a function of the path. `stop_after(n)` cuts the power at
    the n-th change from now; `fail(kind, ...)` makes operations fail.
    """

    def __init__(
        self,
        scheduler: Any = None,
        *,
        flush_delay_ms: float | Callable[[str], float] = 0.0,
        root: Folder | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.flush_delay_ms = flush_delay_ms
        self._root = root if root is not None else Folder()
        self._alive = True
        self._stop_at: int | None = None
        self._failures: list[list[Any]] = []
        self.changes = 0
        """Changes, flush starts and flush ends so far: the places where `stop_after` can cut."""
        self.flushes: Counter[str] = Counter()
        """Completed flushes per path (folders too)."""
        self.writes: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()
        self.hints: list[tuple[str, int, int]] = []
        """Files, positions and sizes of what was said to be read soon."""
        self.flushes_in_flight = 0
        self.most_flushes_in_flight = 0
        self.open_files: set[SimFile] = set()

    # Faults, driven by the test.

    def stop_after(self, changes: int) -> None:
        """Cut the power at the `changes`-th change from now: it does not happen, and `PowerCut` is raised."""
        self._stop_at = self.changes + changes

    def fail(
        self, kind: str, path_part: str = "", *, error: int = errno.EIO, times: int = 1, after: int = 0
    ) -> None:
        """Fail the next `times` operations of a kind ("write", "allocate", "truncate", "flush", "flush_dir", "create",
        "rename", "link", "remove", "read") on paths that contain `path_part`, when `after` of them have passed."""
        self._failures.append([kind, path_part, error, times, after])

    def crash(
        self, seed: int, *, keep: str | Callable[[str], str] = "random", scheduler: Any = None
    ) -> SimDisk:
        """Cut the power: the disk as the next start finds it. `keep`: "none" (only what was flushed), "all",
        "prefix" (in order of writing, the last write torn), "sectors" (any mixture), or "random" per file; or
        a function of the path that says which."""
        self._alive = False
        rng = random.Random(seed)
        return SimDisk(
            scheduler,
            flush_delay_ms=self.flush_delay_ms,
            root=self._folder_after_crash(self._root, "", rng, keep, {}),
        )

    def kill(self, scheduler: Any = None) -> SimDisk:
        """Kill the process, not the kernel: nothing written is lost, nothing more is flushed than was."""
        self._alive = False
        self._forget_flushing(self._root)
        return SimDisk(scheduler, flush_delay_ms=self.flush_delay_ms, root=self._root)

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Damage a file behind everyone's back, in the cache and on the device."""
        inode = self._inode(path)
        for content in (inode.cached, inode.durable):
            apply(content, position, data)

    def content(self, path: str) -> bytes:
        return bytes(self._inode(path).cached)

    def durable_content(self, path: str) -> bytes:
        return bytes(self._inode(path).durable)

    def replace(self, path: str, data: bytes) -> None:
        """Set a file's whole content, in the cache and on the device; creates it durably if it is absent."""
        parent, name = self._parent(path)
        inode = Inode(data)
        for entries in (parent.cached, parent.durable):
            entries[name] = inode

    def unflushed(self) -> list[str]:
        """Paths with changes that no flush has covered. Space reserved beyond what is durable changes no content."""
        found: list[str] = []
        self._walk(self._root, "", found)
        return found

    # Disk.

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.check_alive()
        if create:
            parent, name = self._parent(path)
            if name in parent.cached:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self.meet("create", path)
            parent.change({name: Inode()})
        return self._opened(path, writable=True)

    def open_readonly(self, path: str) -> SimFile:
        self.check_alive()
        return self._opened(path, writable=False)

    def _opened(self, path: str, *, writable: bool) -> SimFile:
        file = SimFile(self, path, self._inode(path), writable=writable)
        self.open_files.add(file)
        return file

    def exists(self, path: str) -> bool:
        self.check_alive()
        try:
            self._node(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, path: str) -> list[str]:
        self.check_alive()
        try:
            node = self._node(path)
        except FileNotFoundError:
            return []
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return sorted(node.cached)

    def make_dir(self, path: str) -> None:
        self.check_alive()
        folder = self._root
        for name in split(path):
            child = folder.cached.get(name)
            if child is None:
                self.meet("create", path)
                child = Folder()
                folder.change({name: child})
            if not isinstance(child, Folder):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            folder = child

    def remove(self, path: str) -> None:
        self.check_alive()
        parent, name = self._parent(path)
        self._inode(path)
        self.meet("remove", path)
        parent.change({name: None})

    def remove_dir(self, path: str) -> None:
        self.check_alive()
        node = self._node(path)
        parent, name = self._parent(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if node.cached:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.meet("remove", path)
        parent.change({name: None})

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        node = self._node(old)
        old_parent, old_name = self._parent(old)
        new_parent, new_name = self._parent(new)
        self.meet("rename", old)
        if old_parent is new_parent:
            old_parent.change({old_name: None, new_name: node})
        else:
            old_parent.change({old_name: None})
            new_parent.change({new_name: node})

    def link(self, existing: str, new: str) -> None:
        self.check_alive()
        inode = self._inode(existing)
        parent, name = self._parent(new)
        if name in parent.cached:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self.meet("link", new)
        parent.change({name: inode})

    def flush_dir(self, path: str) -> None:
        self.check_alive()
        folder = self._folder(path)
        self.meet("flush_dir", path)
        folder.settle(len(folder.pending))
        self.flushes[path] += 1

    def start_flush(self, file: SimFile, done: FlushDone) -> None:
        self.check_alive()
        inode = file.inode
        assert not inode.flushing, f"two flushes of {file.path} at once"
        inode.flushing = True
        covered = len(inode.pending)

        def finish() -> None:
            inode.flushing = False
            self._settle(file.path, inode, covered)

        self._start("flush", file.path, finish, done)

    def start_flush_dir(self, path: str, done: FlushDone) -> None:
        self.check_alive()
        folder = self._folder(path)
        covered = len(folder.pending)

        def finish() -> None:
            self.meet("flush_dir", path)
            folder.settle(covered)
            self.flushes[path] += 1

        self._start("flush_dir", path, finish, done)

    def start_remove(self, path: str, done: FlushDone) -> None:
        self._start("remove", path, lambda: self.remove(path), done)

    def _start(self, kind: str, path: str, finish: Callable[[], None], done: FlushDone) -> None:
        assert self.scheduler is not None, "a SimDisk without a scheduler cannot flush in the background"
        self._count()
        self.flushes_in_flight += 1
        self.most_flushes_in_flight = max(self.most_flushes_in_flight, self.flushes_in_flight)

        def complete() -> None:
            self.flushes_in_flight -= 1
            if not self._alive:
                return
            try:
                finish()
            except OSError as error:
                done(error)
            else:
                done(None)

        delay = self.flush_delay_ms(path) if callable(self.flush_delay_ms) else self.flush_delay_ms
        if delay:
            self.scheduler.call_later(delay, complete)
        else:
            self.scheduler.call_soon(complete)

    # For SimFile and the faults.

    def check_alive(self) -> None:
        if not self._alive:
            raise PowerCut

    def meet(self, kind: str, path: str) -> None:
        """Count a change and meet the fault that waits for it, if any."""
        if kind != "read":
            self._count()
        for failure in self._failures:
            if failure[0] == kind and failure[1] in path:
                if failure[4]:
                    failure[4] -= 1
                    continue
                failure[3] -= 1
                if not failure[3]:
                    self._failures.remove(failure)
                raise OSError(failure[2], os.strerror(failure[2]), path)

    def _count(self) -> None:
        self.changes += 1
        if self._stop_at is not None and self.changes >= self._stop_at:
            self._alive = False
            raise PowerCut

    def flush_now(self, path: str, inode: Inode) -> None:
        self._settle(path, inode, len(inode.pending))

    def _settle(self, path: str, inode: Inode, covered: int) -> None:
        try:
            self.meet("flush", path)
        except OSError:
            inode.lose(covered)
            raise
        inode.settle(covered)
        self.flushes[path] += 1

    def _node(self, path: str) -> Inode | Folder:
        node: Inode | Folder = self._root
        for name in split(path):
            if not isinstance(node, Folder) or name not in node.cached:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = node.cached[name]
        return node

    def _inode(self, path: str) -> Inode:
        node = self._node(path)
        if not isinstance(node, Inode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _folder(self, path: str) -> Folder:
        node = self._node(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        *parents, name = split(path)
        return self._folder("/".join(parents)), name

    def _folder_after_crash(
        self,
        folder: Folder,
        path: str,
        rng: random.Random,
        keep: str | Callable[[str], str],
        seen: dict[int, Inode],
    ) -> Folder:
        entries = dict(folder.durable)
        mode = keep(path) if callable(keep) else keep
        if mode == "random":
            mode = rng.choice(("none", "all", "prefix", "subset"))
        total = len(folder.pending)
        cut = rng.randrange(total + 1)
        for index, names in enumerate(folder.pending):
            kept = {
                "none": False,
                "all": True,
                "prefix": index < cut,
                "subset": rng.random() < 0.5,
                "sectors": rng.random() < 0.5,
            }[mode]
            if kept:
                rename_names(entries, names)
        result = Folder()
        for name, node in sorted(entries.items(), key=lambda item: item[0]):
            child = f"{path}/{name}" if path else name
            if isinstance(node, Folder):
                result.cached[name] = self._folder_after_crash(node, child, rng, keep, seen)
            else:
                if id(node) not in seen:
                    seen[id(node)] = Inode(node.after_crash(rng, keep(child) if callable(keep) else keep))
                result.cached[name] = seen[id(node)]
        result.durable = dict(result.cached)
        return result

    def _forget_flushing(self, folder: Folder) -> None:
        for node in folder.cached.values():
            if isinstance(node, Folder):
                self._forget_flushing(node)
            else:
                node.flushing = False

    def _walk(self, folder: Folder, path: str, found: list[str]) -> None:
        if folder.pending:
            found.append(path)
        for name, node in sorted(folder.cached.items()):
            child = f"{path}/{name}" if path else name
            if isinstance(node, Folder):
                self._walk(node, child, found)
            elif any(data is not None or at < len(node.durable) for at, data in node.pending):
                found.append(child)


def split(path: str) -> list[str]:
    return [name for name in path.split("/") if name]
