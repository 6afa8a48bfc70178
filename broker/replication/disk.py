"""The leader's disk: what it changes becomes entries of the cluster's log; a flush is done when they are committed.

Guarantees: reads see every change made here, committed or not; the changes reach all nodes in the order in which they
were made, so what a follower has is always what this disk was at some moment, and a flush covers all before it. Nothing
reaches this node's own files before it is committed, so whoever loses the leadership has nothing to take back.
After `fail` every change and every flush fails.

Flushes that block return at once: they order, and all is in order anyway. What is promised to others waits for a
`start_flush`.
"""

from __future__ import annotations

import builtins
import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import Buffer

from broker.replication.ops import OF_CONTENT, OVERHEAD_BYTES, Change, Code, encode
from broker.replication.store import Store
from storage.clock import Scheduler, Timer
from storage.disk import File, FlushDone

MAX_PAYLOAD_BYTES: Final = 1 << 20
SEND_AT_BYTES: Final = 256 << 10
"""So much is sent though nobody waits for it; less after `LINGER_MS`."""
LINGER_MS: Final = 20
RETRY_MS: Final = 5

Propose = Callable[[Sequence[bytes], Callable[[Exception | None], None]], bool]
"""(payloads, done): False where the log takes none at the moment. Raises where this node does not lead."""


class _Content:
    """A file that is open here, or has changes that are not committed."""

    __slots__ = ("base", "handles", "is_committed", "number", "pending", "size")

    def __init__(self, number: int, size: int, *, is_committed: bool) -> None:
        self.number = number
        self.size = size
        self.is_committed = is_committed
        """The file itself; its content may be behind."""
        self.pending: deque[Change] = deque()
        self.handles = 0
        self.base: File | None = None


class ReplicatedDisk:
    """A `storage.disk.Disk`."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        propose: Propose,
        *,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_lost`: nothing can be proposed any more. What was, may yet be committed: whoever waits for it must not
        hear that it failed."""
        self._on_lost = on_lost
        self._store = store
        self._scheduler = scheduler
        self._propose = propose
        self._tree = store.tree.copy()
        self._contents: dict[int, _Content] = {}
        self._changes: list[Change] = []
        self._changes_bytes = 0
        self._waiting: list[FlushDone] = []
        """For what is in `_changes`, or else for the last one proposed."""
        self._proposed: deque[list[FlushDone]] = deque()
        self._is_due = False
        self._linger: Timer | None = None
        self.failure: OSError | None = None

    # Names.

    def open(self, path: str, *, create: bool = False) -> ReplicatedFile:
        if create:
            self._check()
            number = self._tree.next_number
            self._tree.create(path, number)
            self._contents[number] = _Content(number, 0, is_committed=False)
            self._change((Code.CREATE, path, number))
        return ReplicatedFile(self, path, self._content(self._tree.number(path)))

    def open_readonly(self, path: str) -> ReplicatedFile:
        return self.open(path)

    def exists(self, path: str) -> bool:
        return self._tree.exists(path)

    def list(self, path: str) -> list[str]:
        return self._tree.list(path)

    def make_dir(self, path: str) -> None:
        for missing in self._tree.missing_dirs(path):
            self._check()
            self._tree.make_dir(missing)
            self._change((Code.MAKE_DIR, missing))

    def remove(self, path: str) -> None:
        self._check()
        self._tree.remove(path)
        self._change((Code.REMOVE, path))

    def remove_dir(self, path: str) -> None:
        self._check()
        self._tree.remove_dir(path)
        self._change((Code.REMOVE_DIR, path))

    def rename(self, old: str, new: str) -> None:
        self._check()
        self._tree.rename(old, new)
        self._change((Code.RENAME, old, new))

    def link(self, existing: str, new: str) -> None:
        raise OSError(errno.ENOTSUP, "a file of the leader's disk has one name", new)

    # Flushing.

    def flush_dir(self, path: str) -> None:
        self._check()

    def start_flush(self, file: File, done: FlushDone) -> None:
        self._flush(done)

    def start_flush_dir(self, path: str, done: FlushDone) -> None:
        self._flush(done)

    def start_remove(self, path: str, done: FlushDone) -> None:
        try:
            self.remove(path)
        except OSError as error:
            self._scheduler.call_soon(done, error)
            return
        self._flush(done)

    def _flush(self, done: FlushDone) -> None:
        if self.failure is not None:
            self._scheduler.call_soon(done, self.failure)
            return
        self._waiting.append(done)
        self._send_soon()

    def when_all_committed(self, done: FlushDone) -> None:
        self._flush(done)

    # What is committed: called by the replica, after it has applied the changes to the store.

    def committed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            code = change[0]
            if code in OF_CONTENT:
                content = self._contents[change[1]]
                content.pending.popleft()
                self._let_go(content)
            elif code is Code.CREATE:
                content = self._contents[change[2]]
                content.is_committed = True
                self._open_base(content)
                self._let_go(content)

    def fail(self, failure: OSError) -> None:
        """This node does not lead any more, or cannot. Whoever waits hears of it."""
        if self.failure is not None:
            return
        self.failure = failure
        if self._linger is not None:
            self._linger.cancel()
        waiting = [done for proposed in self._proposed for done in proposed] + self._waiting
        self._proposed.clear()
        self._waiting = []
        self._changes = []
        for done in waiting:
            self._scheduler.call_soon(done, failure)

    def close(self) -> None:
        for content in self._contents.values():
            if content.base is not None:
                content.base.close()
                content.base = None

    # Files.

    def _content(self, number: int) -> _Content:
        content = self._contents.get(number)
        if content is None:
            base = self._store.disk.open(Store.path(number))
            content = self._contents[number] = _Content(number, base.size(), is_committed=True)
            content.base = base
        return content

    def _open_base(self, content: _Content) -> None:
        """As long as it is open here it can be read, also when its name has gone."""
        path = Store.path(content.number)
        if content.base is None and content.handles and self._store.disk.exists(path):
            content.base = self._store.disk.open(path)

    def let_go(self, content: _Content) -> None:
        content.handles -= 1
        self._let_go(content)

    def _let_go(self, content: _Content) -> None:
        if content.handles or content.pending or not content.is_committed:
            return
        if content.base is not None:
            content.base.close()
            content.base = None
        self._contents.pop(content.number, None)

    def read(self, content: _Content, size_bytes: int, position: int) -> bytes:
        size = max(0, min(size_bytes, content.size - position))
        base = b""
        if size and content.is_committed:
            self._open_base(content)
            if content.base is not None:
                base = content.base.pread(size, position)
        if not content.pending:
            return base
        window = bytearray(size)
        window[: len(base)] = base
        for change in content.pending:
            if change[0] is Code.WRITE:
                at, data = change[2] - position, change[3]
                first, last = max(at, 0), min(at + len(data), size)
                if first < last:
                    window[first:last] = data[first - at : last - at]
            elif change[0] is Code.TRUNCATE:
                first = max(change[2] - position, 0)
                if first < size:
                    window[first:] = bytes(size - first)
        return bytes(window)

    def will_read(self, content: _Content, size_bytes: int, position: int) -> None:
        if content.base is not None:
            content.base.will_read(size_bytes, position)

    def write(self, content: _Content, data: bytes, position: int) -> None:
        self._check()
        for start in range(0, len(data), MAX_PAYLOAD_BYTES) or (0,):
            part = data[start : start + MAX_PAYLOAD_BYTES] if len(data) > MAX_PAYLOAD_BYTES else data
            self._change_content(content, (Code.WRITE, content.number, position + start, part), len(part))
        content.size = max(content.size, position + len(data))

    def allocate(self, content: _Content, position: int, size_bytes: int) -> None:
        self._check()
        self._change_content(content, (Code.ALLOCATE, content.number, position, size_bytes))
        content.size = max(content.size, position + size_bytes)

    def truncate(self, content: _Content, size_bytes: int) -> None:
        self._check()
        self._change_content(content, (Code.TRUNCATE, content.number, size_bytes))
        content.size = size_bytes

    def _change_content(self, content: _Content, change: Change, size_bytes: int = 0) -> None:
        content.pending.append(change)
        self._change(change, size_bytes)

    # Proposing.

    def check(self) -> None:
        self._check()

    def _check(self) -> None:
        if self.failure is not None:
            raise OSError(self.failure.errno, self.failure.strerror)

    def _change(self, change: Change, size_bytes: int = 0) -> None:
        self._changes.append(change)
        self._changes_bytes += size_bytes + OVERHEAD_BYTES
        if self._changes_bytes >= SEND_AT_BYTES:
            self._send_soon()
        elif self._linger is None and not self._is_due:
            self._linger = self._scheduler.call_later(LINGER_MS, self._send_soon)

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._scheduler.call_soon(self._send)

    def _send(self) -> None:
        """All that this turn changed, as few entries."""
        if self.failure is not None:
            return
        self._is_due = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if not self._changes:
            self._wait_for_the_last()
            return
        payloads = [encode(part) for part in self._parts()]
        waiting = self._waiting
        try:
            taken = self._propose(payloads, lambda error: self._outcome(waiting, error))
        except Exception as error:  # noqa: BLE001 - whatever the reason, this node cannot change anything
            self._on_lost()
            self.fail(OSError(errno.EIO, f"this node does not lead any more: {error}"))
            return
        if not taken:
            self._is_due = True
            self._scheduler.call_later(RETRY_MS, self._send)
            return
        self._changes = []
        self._changes_bytes = 0
        self._waiting = []
        self._proposed.append(waiting)

    def _wait_for_the_last(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._proposed:
            self._proposed[-1] += waiting
            return
        for done in waiting:
            self._scheduler.call_soon(done, None)

    def _parts(self) -> Sequence[Sequence[Change]]:
        parts: builtins.list[builtins.list[Change]] = [[]]
        size = 0
        for change in self._changes:
            grown = OVERHEAD_BYTES + (len(change[3]) if change[0] is Code.WRITE else 0)
            if parts[-1] and size + grown > MAX_PAYLOAD_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(change)
            size += grown
        return parts

    def _outcome(self, waiting: Sequence[FlushDone], error: Exception | None) -> None:
        if self.failure is not None:
            return
        if error is not None:
            self.fail(OSError(errno.EIO, f"the cluster did not take it: {error or type(error).__name__}"))
            return
        assert self._proposed
        assert self._proposed[0] is waiting
        self._proposed.popleft()
        for done in waiting:
            self._scheduler.call_soon(done, None)


class ReplicatedFile:
    """A `storage.disk.File`."""

    __slots__ = ("_content", "_disk", "_is_closed", "path")

    def __init__(self, disk: ReplicatedDisk, path: str, content: _Content) -> None:
        self.path = path
        self._disk = disk
        self._content = content
        self._is_closed = False
        content.handles += 1

    def pread(self, size_bytes: int, position: int) -> bytes:
        return self._disk.read(self._content, size_bytes, position)

    def will_read(self, size_bytes: int, position: int) -> None:
        self._disk.will_read(self._content, size_bytes, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(memoryview(buffer).cast("B") for buffer in buffers)
        self._disk.write(self._content, data, position)
        return len(data)

    def size(self) -> int:
        return self._content.size

    def allocate(self, position: int, size_bytes: int) -> None:
        self._disk.allocate(self._content, position, size_bytes)

    def truncate(self, size_bytes: int) -> None:
        self._disk.truncate(self._content, size_bytes)

    def flush(self) -> None:
        self._disk.check()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._disk.let_go(self._content)
