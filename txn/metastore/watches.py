"""Watches: followers of a key, a prefix or an index range.

Guarantees that a watch is told of the state at its start as one `Snapshot`, then of every later change
exactly once, in order, batch by batch. Only a node of a group that took its state from another one, for it was
too far behind, tells another `Snapshot`: it stands in place of all that was told before it, and of the changes
between. Callbacks run at the end of the loop's turn, never inside the call
that made the change, so they may apply batches, add watches and cancel any watch, themselves included; what
they change is told in a later call. A store with a log of its own tells a change when it is applied, which is
before it is durable; a group of nodes tells it on each of them when it is committed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from storage.clock import Scheduler
from txn.metastore.indexes import IndexChange
from txn.metastore.ops import Effect, Record
from txn.metastore.schema import IndexKey


class Entry(NamedTuple):
    """One record of a snapshot; `index_key` only for a watch on an index range."""

    key: str
    record: Record
    index_key: IndexKey | None = None


class Snapshot(NamedTuple):
    """What a watch covers after batch `lsn`, in the order of keys, or of index keys."""

    lsn: int
    entries: tuple[Entry, ...]


class Change(NamedTuple):
    """What batch `lsn` did to one key: `old` is None when it was created, `new` when it was deleted.

    A watch on an index range also gets where the record stood in the range and where it stands, None meaning
    outside: it enters (`old_index_key` None), leaves (`new_index_key` None), moves (both, and they differ) or
    is updated in its place (both the same). A record that left the range is deleted only if `new` is None.
    """

    lsn: int
    key: str
    old: Record | None
    new: Record | None
    old_index_key: IndexKey | None = None
    new_index_key: IndexKey | None = None


Event: TypeAlias = Snapshot | Change
EventCallback: TypeAlias = Callable[[list[Event]], None]


class Watch:
    """Lives until it is cancelled."""

    def __init__(self, scheduler: Scheduler, callback: EventCallback, drop: Callable[[Watch], None]) -> None:
        self._scheduler = scheduler
        self._callback = callback
        self._drop = drop
        self._queued: list[Event] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """No event is delivered from now on, not even one that is queued. Harmless when repeated."""
        if not self._cancelled:
            self._cancelled = True
            self._queued = []
            self._drop(self)

    def tell(self, event: Event) -> None:
        if not self._queued:
            self._scheduler.call_soon(self._deliver)
        self._queued.append(event)

    def fail(self, error: Exception) -> None:
        """The watch cannot go on: it is cancelled, and the error raised in the loop."""
        self.cancel()
        self._scheduler.call_soon(_raise, error)

    def _deliver(self) -> None:
        # Each watch has its own call: one that raises takes nothing from the others.
        events, self._queued = self._queued, []
        if events:
            self._callback(events)


class IndexRange(NamedTuple):
    """The entries of one index with low <= index key < high; None is no bound."""

    name: str
    low: IndexKey | None = None
    high: IndexKey | None = None

    def holds(self, index_key: IndexKey) -> bool:
        return (self.low is None or self.low <= index_key) and (self.high is None or index_key < self.high)


class Settled(Protocol):
    """A state of the store (`settled`)."""

    def of_key(self, key: str) -> Snapshot: ...

    def of_prefix(self, prefix: str) -> Snapshot: ...

    def of_index(self, index_range: IndexRange) -> Snapshot: ...


class Watches:
    """All watches of a store, found by what they cover."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._by_key: dict[str, list[Watch]] = {}
        self._by_prefix: dict[str, list[Watch]] = {}
        self._prefix_lengths: list[int] = []
        """Distinct lengths of watched prefixes: a change costs one look-up per length, not per watch."""
        self._by_index: dict[str, list[tuple[IndexRange, Watch]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key or self._by_prefix or self._by_index)

    def add_key(self, key: str, callback: EventCallback, snapshot: Snapshot) -> Watch:
        return self._add(self._by_key, key, callback, snapshot)

    def add_prefix(self, prefix: str, callback: EventCallback, snapshot: Snapshot) -> Watch:
        if len(prefix) not in self._prefix_lengths:
            insort(self._prefix_lengths, len(prefix))
        return self._add(self._by_prefix, prefix, callback, snapshot)

    def add_index(self, index_range: IndexRange, callback: EventCallback, snapshot: Snapshot) -> Watch:
        def drop(watch: Watch) -> None:
            left = [pair for pair in self._by_index[index_range.name] if pair[1] is not watch]
            if left:
                self._by_index[index_range.name] = left
            else:
                del self._by_index[index_range.name]

        watch = Watch(self._scheduler, callback, drop)
        self._by_index.setdefault(index_range.name, []).append((index_range, watch))
        watch.tell(snapshot)
        return watch

    def _add(
        self, table: dict[str, list[Watch]], name: str, callback: EventCallback, snapshot: Snapshot
    ) -> Watch:
        def drop(watch: Watch) -> None:
            table[name].remove(watch)
            if not table[name]:
                del table[name]
                self._prefix_lengths = sorted({len(prefix) for prefix in self._by_prefix})

        watch = Watch(self._scheduler, callback, drop)
        table.setdefault(name, []).append(watch)
        watch.tell(snapshot)
        return watch

    def publish(self, lsn: int, effects: Sequence[Effect], index_changes: Sequence[IndexChange]) -> None:
        """Queue the effects of one batch for whoever watches them."""
        for effect in effects:
            key, old, new = effect
            watching = list(self._by_key.get(key, ()))
            for length in self._prefix_lengths:
                if length > len(key):
                    break
                watching += self._by_prefix.get(key[:length], ())
            if watching:
                change = Change(lsn, key, old, new)
                for watch in watching:
                    watch.tell(change)
        if self._by_index:
            for index_change in index_changes:
                self._publish_index(lsn, index_change)

    def restart(self, settled: Settled) -> None:
        """Tell every watch what there is now, in place of all before."""
        for key, watches in self._by_key.items():
            for watch in watches:
                watch.tell(settled.of_key(key))
        for prefix, watches in self._by_prefix.items():
            for watch in watches:
                watch.tell(settled.of_prefix(prefix))
        for pairs in list(self._by_index.values()):
            for index_range, watch in pairs:
                try:
                    watch.tell(settled.of_index(index_range))
                except TypeError as error:
                    watch.fail(error)

    def _publish_index(self, lsn: int, index_change: IndexChange) -> None:
        index, (key, old, new), old_key, new_key = index_change
        for index_range, watch in self._by_index.get(index.name, ()):
            try:
                old_inside = old_key if old_key is not None and index_range.holds(old_key) else None
                new_inside = new_key if new_key is not None and index_range.holds(new_key) else None
            except TypeError as error:
                # Bounds of another type than the index's keys: its owner's mistake, not that of who applied
                # this.
                watch.fail(error)
                continue
            if old_inside is not None or new_inside is not None:
                watch.tell(Change(lsn, key, old, new, old_inside, new_inside))


def _raise(error: Exception) -> None:
    raise error
