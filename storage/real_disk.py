"""The disk interface on a real file system.

Guarantees: `pwritev` never writes short; a flush that failed is reported once and never repeated here; a file
that is closed while its flush runs stays open underneath until the flush ended, so a descriptor is never
reused below it; flushes of different files run in parallel, as many at once as there are flush threads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from typing_extensions import Buffer

from storage.disk import File, FlushDone

IOV_MAX = 1024
DEFAULT_FLUSH_THREADS = 16
"""As many as there are flushes at once, up to this. A commit waits for the flushes of all ranges that it wrote to: with
fewer threads than ranges it would take several flush delays, not one."""


class CallSoonThreadsafe(Protocol):
    """An event loop's method of that name."""

    def __call__(self, callback: Callable[..., Any], *args: Any) -> object: ...


class LockHeld(RuntimeError):
    """Another process holds the lock file; the message names its process id."""


class Lock:
    """An exclusive lock on a file; held until `release` or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealFile:
    """An open file. All methods but the background flush run on the event loop's thread."""

    __slots__ = ("_closed", "_fd", "_guard", "_pins", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._guard = threading.Lock()
        self._pins = 0
        self._closed = False

    def pread(self, size_bytes: int, position: int) -> bytes:
        data = os.pread(self._fd, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        # A short read is the end of the file, a signal, or the kernel's 2 GiB limit: ask until nothing comes.
        parts = [data]
        got = len(data)
        while got < size_bytes and (data := os.pread(self._fd, size_bytes - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def will_read(self, size_bytes: int, position: int) -> None:
        os.posix_fadvise(self._fd, position, size_bytes, os.POSIX_FADV_WILLNEED)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        total = 0
        for start in range(0, len(buffers), IOV_MAX):
            chunk = buffers[start : start + IOV_MAX] if len(buffers) > IOV_MAX else buffers
            expected = sum(memoryview(buffer).nbytes for buffer in chunk)
            written = os.pwritev(self._fd, chunk, position + total)
            if written < expected:
                self._write_rest(chunk, position + total, written, expected)
            total += expected
        return total

    def _write_rest(self, buffers: Sequence[Buffer], position: int, written: int, expected: int) -> None:
        data = memoryview(b"".join(memoryview(buffer).cast("B") for buffer in buffers))
        while written < expected:
            count = os.pwrite(self._fd, data[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "a write made no progress", self.path)
            written += count

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def allocate(self, position: int, size_bytes: int) -> None:
        try:
            os.posix_fallocate(self._fd, position, size_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                raise
            # No reservation on this file system: a hole reads as zeros all the same.
            if self.size() < position + size_bytes:
                os.ftruncate(self._fd, position + size_bytes)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def flush(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            if not self._pins:
                os.close(self._fd)

    def pin(self) -> None:
        with self._guard:
            if self._closed:
                raise OSError(errno.EBADF, "file is closed", self.path)
            self._pins += 1

    def unpin(self) -> None:
        with self._guard:
            self._pins -= 1
            if self._closed and not self._pins:
                os.close(self._fd)


class RealDisk:
    """A `Disk` below one folder of the real file system.

    `call_soon_threadsafe` is the event loop's; flushes end there. The flush threads start with the first
    flush.
    """

    def __init__(
        self,
        root: str | Path,
        call_soon_threadsafe: CallSoonThreadsafe,
        *,
        flush_threads: int = DEFAULT_FLUSH_THREADS,
        make: bool = True,
    ) -> None:
        self._root = os.fspath(root)
        self._call_soon_threadsafe = call_soon_threadsafe
        self._flush_threads = flush_threads
        self._queue: SimpleQueue[tuple[Callable[[], None], FlushDone] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._outstanding = 0
        self._closed = False
        if make:
            os.makedirs(self._root, exist_ok=True)

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    # Files and folders.

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return RealFile(path, os.open(self._path(path), flags, 0o644))

    def open_readonly(self, path: str) -> RealFile:
        return RealFile(path, os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._path(path))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(path)))
        except FileNotFoundError:
            return []

    def make_dir(self, path: str) -> None:
        os.makedirs(self._path(path), exist_ok=True)

    def remove(self, path: str) -> None:
        os.unlink(self._path(path))

    def remove_dir(self, path: str) -> None:
        os.rmdir(self._path(path))

    def rename(self, old: str, new: str) -> None:
        os.replace(self._path(old), self._path(new))

    def link(self, existing: str, new: str) -> None:
        os.link(self._path(existing), self._path(new))

    def flush_dir(self, path: str) -> None:
        fd = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # Flushing off the loop.

    def start_flush(self, file: File, done: FlushDone) -> None:
        if not isinstance(file, RealFile):
            raise TypeError("start_flush takes a file of this disk")
        file.pin()

        def flush() -> None:
            try:
                file.flush()
            finally:
                file.unpin()

        self._submit(flush, done)

    def start_flush_dir(self, path: str, done: FlushDone) -> None:
        self._submit(lambda: self.flush_dir(path), done)

    def start_remove(self, path: str, done: FlushDone) -> None:
        self._submit(lambda: self.remove(path), done)

    def _submit(self, work: Callable[[], None], done: FlushDone) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the disk is closed", self._root)
        self._outstanding += 1
        if len(self._threads) < min(self._outstanding, self._flush_threads):
            thread = threading.Thread(
                target=self._flush_loop, name=f"flush-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._queue.put((work, done))

    def _flush_loop(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            outcome: OSError | None = None
            try:
                work()
            except OSError as error:
                outcome = error
            # A closed loop refuses with RuntimeError: nobody is left to be told.
            with contextlib.suppress(RuntimeError):
                self._call_soon_threadsafe(self._finished, done, outcome)

    def _finished(self, done: FlushDone, outcome: OSError | None) -> None:
        self._outstanding -= 1
        done(outcome)

    # Ownership.

    def lock(self, path: str) -> Lock:
        """Take the exclusive lock of this file, creating it and writing our process id into it; else
        `LockHeld`."""
        fd = os.open(self._path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise LockHeld(f"{self._path(path)} is locked by process {holder}") from None
        except BaseException:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return Lock(fd)

    def close(self) -> None:
        """Let the flushes already asked for end, and stop the threads. Files stay their owners' to close."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
