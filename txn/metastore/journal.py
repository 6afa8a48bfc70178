"""What makes a store's batches durable, in order: a log of its own (`Log`), or a group of nodes (`LeaderJournal`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from txn.metastore.errors import StoreFailed
from txn.metastore.state import Batch
from txn.metastore.waiters import Callback


class Journal(Protocol):
    """Callbacks never come from within the call that handed them in."""

    @property
    def failure(self) -> StoreFailed | None:
        """Why nothing can be appended any more."""
        ...

    @property
    def closed(self) -> bool: ...

    @property
    def durable_lsn(self) -> int: ...

    @property
    def flushes(self) -> int:
        """Of its own, that ended well."""
        ...

    @property
    def untold(self) -> Sequence[Batch]:
        """Batches that are applied and that watches are not told of yet, in order."""
        ...

    def begin(self) -> int:
        """The lsn that the next batch gets. Raises `StoreFailed` when nothing can be appended."""
        ...

    def append(self, batch: Batch, payload: bytes) -> None:
        """Take a batch whose lsn `begin` gave in this same turn; it is not applied yet. Raises `StoreFailed`."""
        ...

    def when_written(self, callback: Callback) -> None: ...

    def when_durable(self, lsn: int, callback: Callback) -> None: ...

    def when_recorded(self, lsn: int, callback: Callback) -> None: ...

    def when_failed(self, callback: Callback) -> None: ...

    def close(self, done: Callable[[Exception | None], None]) -> None: ...


class Snapshots(Protocol):
    """Whoever writes the store's snapshots, so far as the store's figures go."""

    written: int
    last_error: OSError | None

    @property
    def log_bytes(self) -> int: ...
