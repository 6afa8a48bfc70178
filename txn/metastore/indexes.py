"""Secondary indexes: sorted (index key, key) pairs over the records of a prefix, in step with them.

`plan` says what a change does to the index without doing it and refuses what could not be sorted, so that
`apply` cannot fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from txn.metastore.errors import InvalidOperation
from txn.metastore.ops import Effect, Record
from txn.metastore.schema import IndexKey, IndexSpec
from txn.metastore.sorted_set import LateSortedSet

_SORTABLE = frozenset({int, str, bytes, bool})
_CHUNK = 256

Types = tuple[type, ...]


class IndexChange(NamedTuple):
    """What one effect does to one index. Equal index keys: the record changed and stays in its place."""

    owner: SecondaryIndex
    effect: Effect
    old_key: IndexKey | None
    new_key: IndexKey | None


class SecondaryIndex:
    def __init__(self, name: str, spec: IndexSpec) -> None:
        self.name = name
        self.prefix = spec.prefix
        self._key_of = spec.key_of
        self._entries: LateSortedSet[tuple[IndexKey, str]] = LateSortedSet()
        self._by_key: dict[str, IndexKey] = {}
        self._types: Types | None = None
        """The types of the elements, as in every entry: what cannot be compared must never get in."""
        self._planned_types: Types | None = None
        self._planned_by = 0

    def rebuild(self, records: Mapping[str, Record]) -> None:
        """Start anew from all records of the store."""
        self._by_key = {}
        self._types = None
        prefix = self.prefix
        types: Types | None = None
        for key, record in records.items():
            if key.startswith(prefix):
                index_key = self._key_of(key, record.value)
                if index_key is not None:
                    types = self._check(key, index_key, types)
                    self._by_key[key] = index_key
        self._types = types
        self._entries = LateSortedSet((index_key, key) for key, index_key in self._by_key.items())

    def plan(self, effect: Effect, batch_number: int) -> IndexChange | None:
        """The change that an effect on a key of this prefix will bring.

        `batch_number` tells the effects of one batch from those of another, applied or not. Raises
        `InvalidOperation`, or whatever the index's `key_of` raises.
        """
        key, _, new = effect
        old_key = self._by_key.get(key)
        if new is None:
            return None if old_key is None else IndexChange(self, effect, old_key, None)
        new_key = self._key_of(key, new.value)
        if new_key is None:
            return None if old_key is None else IndexChange(self, effect, old_key, None)
        if self._by_key:
            self._check(key, new_key, self._types)
        else:
            # Nothing fixes the types but what came before in the same batch.
            planned = self._planned_types if self._planned_by == batch_number else None
            self._planned_types = self._check(key, new_key, planned)
            self._planned_by = batch_number
        return IndexChange(self, effect, old_key, new_key)

    def apply(self, change: IndexChange) -> None:
        _, effect, old_key, new_key = change
        if old_key == new_key:
            return
        key = effect.key
        if old_key is not None:
            self._entries.remove((old_key, key))
            del self._by_key[key]
        if new_key is not None:
            if not self._by_key:
                self._types = tuple(map(type, new_key))
            self._entries.add((new_key, key))
            self._by_key[key] = new_key

    def revert(self, change: IndexChange) -> None:
        """Undo `apply` of the change applied last."""
        owner, (key, old, new), old_key, new_key = change
        self.apply(IndexChange(owner, Effect(key, new, old), new_key, old_key))

    def scan(self, low: IndexKey | None, high: IndexKey | None) -> Iterator[tuple[IndexKey, str]]:
        """Entries with low <= index key < high, in order.

        Changes while it runs are allowed: what left before its turn is not given, what came in may be missed.
        """
        start: tuple[Any, ...] | None = None if low is None else (low,)
        stop = None if high is None else (high,)
        above = False
        while True:
            found = self._entries.between(start, stop, _CHUNK, above=above)
            for entry in found:
                if self._by_key.get(entry[1]) == entry[0]:
                    yield entry
            if len(found) < _CHUNK:
                return
            start, above = found[-1], True

    def _check(self, key: str, index_key: object, types: Types | None) -> Types:
        """The types of all index keys so far (None: there are none yet), once this one is among them."""
        if type(index_key) is not tuple:
            raise InvalidOperation(f"{key}: its key in index {self.name} is no tuple: {index_key!r}")
        found = tuple(map(type, index_key))
        if found == types:
            return found
        if types is not None:
            raise InvalidOperation(
                f"{key}: its key {index_key!r} in index {self.name} cannot be compared with those before it"
            )
        if not _SORTABLE.issuperset(found):
            raise InvalidOperation(f"{key}: its key {index_key!r} in index {self.name} cannot be sorted")
        return found
