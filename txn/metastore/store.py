"""The metadata store: an ordered map of path keys to records, durable by a log and snapshots.

Guarantees that a batch applies as a whole or not at all, in memory at once and on disk in the order of
application: after a crash the store holds the effect of all batches up to some batch, every one reported
durable among them. Source: design, section 3. All methods belong to the event loop's thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

import msgpack

from storage.clock import Scheduler
from storage.disk import Disk
from txn.metastore.errors import InvalidOperation, LimitExceeded, StoreFailed, TryAgain
from txn.metastore.files import Folder
from txn.metastore.journal import Journal, Snapshots
from txn.metastore.log import Log
from txn.metastore.ops import Applied, Op, Record
from txn.metastore.recovery import RecoveryReport, recover
from txn.metastore.schema import IndexKey, Options, Schema
from txn.metastore.settled import Settled
from txn.metastore.snapshot import Snapshotter
from txn.metastore.state import Batch, State
from txn.metastore.waiters import Callback
from txn.metastore.watches import EventCallback, IndexRange, Watch, Watches


class Stats(NamedTuple):
    """Figures for whoever watches over the store."""

    records: int
    lsn: int
    durable_lsn: int
    flushes: int
    log_bytes: int
    """Since the last snapshot."""
    snapshots: int
    """Written since the store was opened."""
    snapshot_error: OSError | None
    """Why the last attempt at a snapshot was given up; the store itself goes on."""


class MetaStore:
    """Made by `open`, over a log of its own; or by `Replicated`, over a group of nodes."""

    def __init__(
        self,
        schema: Schema,
        options: Options,
        state: State,
        journal: Journal,
        watches: Watches,
        snapshots: Snapshots,
        *,
        tells_at_once: bool,
    ) -> None:
        """`tells_at_once`: watches hear of a batch when it is applied, else from whoever has made the journal."""
        self._schema = schema
        self._options = options
        self._state = state
        self._journal = journal
        self._watches = watches
        self._told_at_once = watches if tells_at_once else None
        self._snapshots = snapshots
        # Exact types only: what came back from disk as another type would make two states of one.
        self._packer = msgpack.Packer(strict_types=True)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        schema: Schema,
        scheduler: Scheduler,
        options: Options | None = None,
        *,
        durable_lsn: int = 0,
    ) -> tuple[Self, RecoveryReport]:
        """Open the store in `directory`, or make one there. Blocks while it reads.

        `durable_lsn`: the caller knows that all up to this batch was durable; a store that ends before is refused.

        Raises `CorruptStore`, `UnknownFormat`, OSError, and whatever an index's key function raises. One
        process at a time may have it open: the caller sees to that.
        """
        folder = Folder(disk, directory)
        with no_collection():
            recovered = recover(folder, durable_lsn)
            options = options or Options()
            image = recovered.image
            state = State(
                schema,
                max_key_bytes=options.max_key_bytes,
                records=image.records,
                lsn=image.lsn,
                next_sequence=image.next_sequence,
            )
        log = Log(disk, scheduler, options, recovered.current, lsn=image.lsn, claimed_lsn=image.claimed_lsn)
        snapshots = Snapshotter(
            folder,
            scheduler,
            options,
            state,
            log,
            log_bytes=image.log_bytes,
            snapshot_bytes=image.snapshot_bytes,
        )
        log.after_write = snapshots.consider
        log.before_close = snapshots.stop
        log.when_failed(lambda _: snapshots.stop())
        store = cls(schema, options, state, log, Watches(scheduler), snapshots, tells_at_once=True)
        return store, recovered.report

    # -- reading

    def __len__(self) -> int:
        return len(self._state)

    def get(self, key: str) -> Record | None:
        """The record of a key, with everything applied so far, durable or not."""
        return self._state.get(key)

    def scan(
        self, prefix: str, after: str | None = None, limit: int | None = None
    ) -> Iterator[tuple[str, Record]]:
        """Records whose key starts with `prefix` and is above `after`, in the order of keys, at most `limit`.

        The store may be changed meanwhile: a record deleted before its turn is not given, one changed is
        given as it is by then, one added may be missed.
        """
        return self._state.scan(prefix, after, limit)

    def scan_index(
        self, name: str, low: IndexKey | None = None, high: IndexKey | None = None, limit: int | None = None
    ) -> Iterator[tuple[IndexKey, str]]:
        """(index key, key) with low <= index key < high, in order, at most `limit`; None is no bound.

        Tuples compare element by element, so low=(7,), high=(8,) gives all that start with the integer 7. The
        store may be changed meanwhile, as in `scan`. Raises KeyError for an index that the schema lacks.
        """
        return self._state.scan_index(name, low, high, limit)

    def count(self, prefix: str) -> int:
        """How many records have this prefix, without a walk over them."""
        return self._state.count(prefix)

    def partition_of(self, key: str) -> str:
        """The group of keys that this key stays together with when a store is sharded
        (`Schema.partition_of`)."""
        return self._schema.partition_of(key)

    # -- changing

    def check(self) -> None:
        """Raises StoreFailed where `apply` would, whatever the operations."""
        self._journal.begin()

    def takes(self) -> bool:
        """Whether it is worth while to come now: False where another moment is better (`TryAgain`)."""
        try:
            self._journal.begin()
        except TryAgain:
            return False
        except StoreFailed:
            return True
        return True

    def apply(self, ops: Sequence[Op]) -> Applied:
        """Apply a batch as a whole: in memory at once, on disk with the end of the loop's turn.

        Each operation sees the effects of those before it in the batch; of several changes of one key,
        readers, watches and the log see only the net one. A batch that changes nothing gets the lsn of the
        last one. Values are kept, not copied: they must not be changed any more.

        Raises, with nothing applied: `Conflict`, `InvalidOperation`, `LimitExceeded`, `StoreFailed`, and
        whatever an index's key function raises.
        """
        journal = self._journal
        lsn = journal.begin()
        state = self._state
        batch = state.plan(ops, lsn)
        if not batch.effects and batch.next_sequence == state.next_sequence:
            return Applied(state.lsn, batch.assigned)
        payload = self._encode(batch)
        journal.append(batch, payload)
        state.commit(batch)
        if self._told_at_once:
            self._told_at_once.publish(batch.lsn, batch.effects, batch.index_changes)
        return Applied(batch.lsn, batch.assigned)

    def _encode(self, batch: Batch) -> bytes:
        puts: list[object] = []
        deletes = []
        for key, _, new in batch.effects:
            if new is None:
                deletes.append(key)
            else:
                puts += (key, new.value)
        try:
            payload = self._packer.pack([batch.next_sequence, puts, deletes])
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidOperation(f"a key or value that is not plain msgpack data: {error}") from error
        if len(payload) > self._options.max_batch_bytes:
            raise LimitExceeded(
                f"a batch of {len(payload)} bytes, the limit is {self._options.max_batch_bytes}"
            )
        if len(payload) > self._options.max_value_bytes:
            for key, _, new in batch.effects:
                size = 0 if new is None else len(self._packer.pack(new.value))
                if size > self._options.max_value_bytes:
                    limit = self._options.max_value_bytes
                    raise LimitExceeded(f"{key}: a value of {size} bytes, the limit is {limit}")
        return bytes(payload)

    # -- durability: on a log of its own, the device has it; in a group, it is committed

    @property
    def lsn(self) -> int:
        """Of the last batch applied."""
        return self._state.lsn

    @property
    def durable_lsn(self) -> int:
        """Every batch up to this one is on the device."""
        return self._journal.durable_lsn

    def when_written(self, callback: Callback) -> None:
        """Call `callback(error or None)` when the kernel has everything applied so far: no kill of the
        process loses it then."""
        if self._options.written_is_durable:
            self._journal.when_durable(self._state.lsn, callback)
        else:
            self._journal.when_written(callback)

    def when_durable(self, lsn: int, callback: Callback) -> None:
        """Call `callback(error or None)` when the device has everything up to `lsn`; it asks for a flush if
        need be.

        Callbacks come in the order of lsns, never inside this call. The error is `StoreFailed`. Raises
        ValueError for an lsn not given yet.
        """
        self._journal.when_durable(lsn, callback)

    def when_record_durable(self, key: str, callback: Callback) -> None:
        """As `when_durable`, for the record of a key as it stands now. What repeats a recorded outcome waits for it:
        the record is here as soon as it is applied, also where its flush then fails.

        Always the error once nothing can be applied any more: what the caller knows may then be ahead of the record.
        """
        record = self.get(key)
        self._journal.when_recorded(record.version if record is not None else self.lsn, callback)

    # -- watching

    def watch(
        self,
        callback: EventCallback,
        *,
        key: str | None = None,
        prefix: str | None = None,
        index: tuple[str, IndexKey | None, IndexKey | None] | None = None,
    ) -> Watch:
        """Follow a key, the keys of a prefix, or the entries of an index with low <= index key < high.

        `callback(events)` gets a `Snapshot` of the state as of now first, then every later `Change` exactly
        once, in order. It runs at the end of a turn, never inside a call of the store, and may itself change
        the store. Raises KeyError for an index that the schema lacks, ValueError unless exactly one thing is
        named.
        """
        if (key is not None) + (prefix is not None) + (index is not None) != 1:
            raise ValueError("a watch is on one of key, prefix and index")
        settled = Settled(self._state, self._journal.untold, self._journal.durable_lsn)
        if key is not None:
            return self._watches.add_key(key, callback, settled.of_key(key))
        if prefix is not None:
            return self._watches.add_prefix(prefix, callback, settled.of_prefix(prefix))
        assert index is not None
        index_range = IndexRange(*index)
        return self._watches.add_index(index_range, callback, settled.of_index(index_range))

    # -- life

    @property
    def failure(self) -> StoreFailed | None:
        """Why nothing can be changed any more, once the log has failed."""
        return self._journal.failure

    def when_failed(self, callback: Callback) -> None:
        """Call `callback(error)` once if the log fails, or at the end of this turn if it has."""
        self._journal.when_failed(callback)

    def stats(self) -> Stats:
        return Stats(
            records=len(self._state),
            lsn=self._state.lsn,
            durable_lsn=self._journal.durable_lsn,
            flushes=self._journal.flushes,
            log_bytes=self._snapshots.log_bytes,
            snapshots=self._snapshots.written,
            snapshot_error=self._snapshots.last_error,
        )

    @property
    def closed(self) -> bool:
        return self._journal.closed

    def close(self, done: Callable[[Exception | None], None] | None = None) -> None:
        """Write and flush everything, then close the files; `done(error or None)` is called at the end.

        All of it happens before this returns, unless a flush is in flight: then the loop must go on until
        that has ended, and only then those who wait for durability are told, and `done` after them. Nothing
        can be applied from now on; reads go on. Harmless when repeated.
        """
        self._journal.close(done or _nothing)


@contextmanager
def no_collection() -> Iterator[None]:
    """Reading makes millions of objects and no garbage: looking for some would double the time it takes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _nothing(error: Exception | None) -> None:
    """Nobody asked to be told: the waiters were, and `failure` stays."""
