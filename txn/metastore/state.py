"""The store's state in memory: a sorted map of records and its indexes. Pure: no I/O, no clock.

`plan` checks a batch and works out its net effect without changing anything; `commit` then cannot fail. So a
batch applies as a whole or not at all, and readers never see half of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from txn.metastore.errors import Conflict, InvalidOperation, LimitExceeded
from txn.metastore.indexes import IndexChange, SecondaryIndex
from txn.metastore.ops import (
    ABSENT,
    ANY,
    SEQUENCE_DIGITS,
    WITHIN_BATCH,
    Check,
    Delete,
    Effect,
    Op,
    Put,
    PutSequential,
    Record,
    Value,
)
from txn.metastore.schema import IndexKey, Schema
from txn.metastore.sorted_set import LateSortedSet
from txn.metastore.view import FrozenView

_FIRST_CHUNK = 32
_CHUNK = 512
_new = tuple.__new__  # what a NamedTuple's own constructor does, at half the cost
_MAX_SEQUENCE = 10**SEQUENCE_DIGITS - 1


class Batch(NamedTuple):
    """A batch that holds: what `commit` will do. Empty when it would change nothing."""

    lsn: int
    next_sequence: int
    effects: list[Effect]
    index_changes: list[IndexChange]
    assigned: tuple[str, ...]


class State:
    """Records, indexes and the two counters (lsn, sequence)."""

    def __init__(
        self,
        schema: Schema,
        *,
        max_key_bytes: int,
        records: dict[str, Record] | None = None,
        lsn: int = 0,
        next_sequence: int = 1,
    ) -> None:
        self.lsn = lsn
        self.next_sequence = next_sequence
        self._max_key_bytes = max_key_bytes
        self._short_key = max_key_bytes // 4
        """A character takes up to 4 bytes: a key of so many is short enough without being encoded."""
        self._records: dict[str, Record] = {} if records is None else records
        self._keys = LateSortedSet(self._records)
        self._indexes = {name: SecondaryIndex(name, spec) for name, spec in schema.indexes.items()}
        by_prefix: dict[str, list[SecondaryIndex]] = {}
        for index in self._indexes.values():
            by_prefix.setdefault(index.prefix, []).append(index)
            index.rebuild(self._records)
        self._indexes_by_prefix = tuple(by_prefix.items())
        self._plans = 0
        self._view: FrozenView | None = None

    def replace(self, records: dict[str, Record], lsn: int, next_sequence: int) -> None:
        """Become another state. Raises whatever an index's key function raises; not while a view is frozen."""
        assert self._view is None, "a frozen view of it is being read"
        self._records = records
        self._keys = LateSortedSet(records)
        for index in self._indexes.values():
            index.rebuild(records)
        self.lsn = lsn
        self.next_sequence = next_sequence

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    # -- changing

    def plan(self, ops: Sequence[Op], lsn: int = 0) -> Batch:
        """Check every condition in order; each operation sees the effects of those before it in the batch.

        `lsn` is what the batch will have; 0: the one after the last. Raises `Conflict`, `InvalidOperation`,
        `LimitExceeded`.
        """
        lsn = lsn or self.lsn + 1
        next_sequence = self.next_sequence
        short = self._short_key
        written: dict[str, Record | None] = {}
        assigned: list[str] = []
        for op in ops:
            kind = type(op)
            if kind is Put:
                key, value, expect = op  # type: ignore[misc]
                if type(key) is not str or not 0 < len(key) <= short:
                    self._check_key(key)
                if expect != ANY:
                    self._expect(key, expect, written)
                written[key] = _new(Record, (value, lsn))
            elif kind is Delete:
                key, expect = op  # type: ignore[misc]
                if expect != ANY:
                    self._expect(key, expect, written)
                written[key] = None
            elif kind is PutSequential:
                prefix, value = op  # type: ignore[misc]
                key, next_sequence = self._next_key(prefix, next_sequence, written)
                self._check_key(key)
                written[key] = Record(value, lsn)
                assigned.append(key)
            elif kind is Check:
                key, expect = op  # type: ignore[misc]
                self._expect(key, expect, written)
            else:
                raise InvalidOperation(f"not an operation: {op!r}")
        return self._batch(lsn, next_sequence, written, tuple(assigned))

    def plan_given(
        self, lsn: int, next_sequence: int, puts: Mapping[str, Value], deletes: Iterable[str]
    ) -> Batch:
        """The batch that another node's `plan` made of this same state: its net effects, without conditions.

        Raises ValueError where it deletes what is not there or its number is not a later one: then the states are not
        the same.
        """
        if lsn <= self.lsn:
            raise ValueError(f"batch {lsn} after batch {self.lsn}")
        written: dict[str, Record | None] = {key: _new(Record, (value, lsn)) for key, value in puts.items()}
        for key in deletes:
            if key not in self._records:
                raise ValueError(f"batch {lsn} deletes {key}, which is not there")
            written[key] = None
        return self._batch(lsn, next_sequence, written, ())

    def _batch(
        self, lsn: int, next_sequence: int, written: dict[str, Record | None], assigned: tuple[str, ...]
    ) -> Batch:
        records = self._records
        effects = []
        index_changes: list[IndexChange] = []
        self._plans += 1
        for key, new in written.items():
            old = records.get(key)
            if new is None and old is None:
                continue
            effect = _new(Effect, (key, old, new))
            effects.append(effect)
            for prefix, indexes in self._indexes_by_prefix:
                if key.startswith(prefix):
                    for index in indexes:
                        change = index.plan(effect, self._plans)
                        if change is not None:
                            index_changes.append(change)
        return Batch(lsn, next_sequence, effects, index_changes, assigned)

    def commit(self, batch: Batch) -> None:
        """Make the batch's effects the state. Only for the batch planned last."""
        lsn, next_sequence, effects, index_changes, _ = batch
        assert lsn > self.lsn, f"batch {lsn} after {self.lsn}"
        records = self._records
        view = self._view
        for key, old, new in effects:
            if view is not None:
                view.keep(key, old)
            if new is None:
                del records[key]
                self._keys.remove(key)
            else:
                if old is None:
                    self._keys.add(key)
                records[key] = new
        for change in index_changes:
            change.owner.apply(change)
        self.lsn = lsn
        self.next_sequence = next_sequence

    def undo(self, batches: Sequence[Batch], lsn: int, next_sequence: int) -> None:
        """Take back the batches committed last, which are in order; `lsn` and `next_sequence` were before them.

        A frozen view goes on: whatever of them it was to show, it has kept.
        """
        for batch in reversed(batches):
            for change in reversed(batch.index_changes):
                change.owner.revert(change)
            for key, old, new in reversed(batch.effects):
                if self._view is not None:
                    self._view.keep(key, new)
                if old is None:
                    del self._records[key]
                    self._keys.remove(key)
                else:
                    if new is None:
                        self._keys.add(key)
                    self._records[key] = old
        self.lsn = lsn
        self.next_sequence = next_sequence

    def _check_key(self, key: object) -> None:
        if type(key) is not str or not key:
            raise InvalidOperation(f"a key must be a string that is not empty, not {key!r}")
        limit = self._max_key_bytes
        if len(key) > self._short_key and len(key.encode("utf-8", "surrogatepass")) > limit:
            raise LimitExceeded(f"the key {key[:100]}... is longer than {limit} bytes")

    def _expect(self, key: str, expect: int, written: dict[str, Record | None]) -> None:
        if expect < ANY:
            raise InvalidOperation(f"{key}: {expect} is no version to expect")
        if key in written:
            actual = ABSENT if written[key] is None else WITHIN_BATCH
        else:
            record = self._records.get(key)
            actual = ABSENT if record is None else record.version
        if expect not in (ANY, actual):
            raise Conflict(key, expect, actual)

    def _next_key(self, prefix: str, number: int, written: dict[str, Record | None]) -> tuple[str, int]:
        if type(prefix) is not str:
            raise InvalidOperation(f"a prefix must be a string, not {prefix!r}")
        while number <= _MAX_SEQUENCE:
            key = f"{prefix}{number:0{SEQUENCE_DIGITS}d}"
            number += 1
            # Somebody may have put a record under a name that looks like ours: never overwrite it.
            if key not in self._records and key not in written:
                return key, number
        raise LimitExceeded("all sequence numbers have been given")

    # -- reading

    def count(self, prefix: str) -> int:
        """How many records have this prefix, without a walk over them."""
        if not prefix:
            return len(self._records)
        end = _end_of(prefix)
        high = len(self._records) if end is None else self._keys.rank(end)
        return high - self._keys.rank(prefix)

    def scan(self, prefix: str, after: str | None, limit: int | None) -> Iterator[tuple[str, Record]]:
        """Records below `prefix`, and above the key `after`, in the order of keys; at most `limit`.

        Changes while it runs are allowed: a record deleted before its turn is not given, one changed is given
        as it is now, one added may be missed.
        """
        start = prefix
        above = after is not None and after >= prefix
        if after is not None and above:
            start = after
        stop = _end_of(prefix)
        size = _FIRST_CHUNK
        left = len(self._records) if limit is None else limit
        while left > 0:
            keys = self._keys.between(start, stop, size, above=above)
            for key in keys:
                record = self._records.get(key)
                if record is not None:
                    yield key, record
                    left -= 1
                    if left == 0:
                        return
            if len(keys) < size:
                return
            start, above, size = keys[-1], True, _CHUNK

    def scan_index(
        self, name: str, low: IndexKey | None, high: IndexKey | None, limit: int | None
    ) -> Iterator[tuple[IndexKey, str]]:
        """Entries with low <= index key < high, in order; at most `limit`."""
        entries = self._index(name).scan(low, high)
        return entries if limit is None else islice(entries, limit)

    def _index(self, name: str) -> SecondaryIndex:
        index = self._indexes.get(name)
        if index is None:
            raise KeyError(f"no index named {name}")
        return index

    # -- freezing

    def freeze(self, without: Iterable[Batch] = ()) -> FrozenView:
        """A view of the state as it is now, for a snapshot; one at a time. `release` it at its end.

        `without`: of the state as it was before these batches, which are the last ones, in their order.
        """
        assert self._view is None, "one view at a time"
        view = self._view = FrozenView(self._records, self._keys)
        for batch in without:
            for key, old, _ in batch.effects:
                view.keep(key, old)
        return view

    def release(self) -> None:
        self._view = None


def _end_of(prefix: str) -> str | None:
    """The lowest string above all that start with `prefix`; None when there is none."""
    stem = prefix.rstrip("\U0010ffff")
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None
