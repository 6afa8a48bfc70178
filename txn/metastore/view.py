"""A frozen view of a changing map: taken at once, walked in steps, paying only for what changes.

Guarantees that the steps together give every record exactly once as it was when the view was taken, in the
order of keys, however the map changes between the steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from txn.metastore.ops import Record
from txn.metastore.sorted_set import LateSortedSet


class FrozenView:
    """Whoever changes the map calls `keep` before each change."""

    def __init__(self, records: Mapping[str, Record], keys: LateSortedSet[str]) -> None:
        self._records = records
        self._keys = keys
        self._cursor = ""
        """Everything up to this key has been given; keys are never empty."""
        self._kept: dict[str, Record | None] = {}
        """What stood, when the view was taken, under the keys above the cursor that changed since."""
        self._kept_keys: LateSortedSet[str] = LateSortedSet()

    def keep(self, key: str, old: Record | None) -> None:
        """The record `old` (None: nothing) is about to give way to another, or to nothing."""
        if key > self._cursor and key not in self._kept:
            self._kept[key] = old
            self._kept_keys.add(key)

    def take(self, max_records: int) -> list[tuple[str, Record]] | None:
        """The next records, no more than `max_records`, possibly none of a stretch; None at the end."""
        kept_keys = self._kept_keys.between(self._cursor, None, max_records, above=True)
        keys = set(self._keys.between(self._cursor, None, max_records, above=True))
        keys.update(kept_keys)
        if not keys:
            return None
        stretch = sorted(keys)[:max_records]
        taken = []
        for key in stretch:
            record = self._kept.pop(key) if key in self._kept else self._records[key]
            if record is not None:
                taken.append((key, record))
        self._cursor = stretch[-1]
        for key in kept_keys:
            if key <= self._cursor:
                self._kept_keys.remove(key)
        return taken
