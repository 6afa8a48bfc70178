"""The state as watches know it: without the batches that they are not told of yet."""

from __future__ import annotations

from collections.abc import Sequence

from txn.metastore.ops import Record
from txn.metastore.schema import IndexKey
from txn.metastore.state import Batch, State
from txn.metastore.watches import Entry, IndexRange, Snapshot


class Settled:
    """For this turn. `untold` are the last batches of `state`, in order; `lsn` is that of the state before them."""

    def __init__(self, state: State, untold: Sequence[Batch], lsn: int) -> None:
        self._state = state
        self._lsn = lsn if untold else state.lsn
        self._before: dict[str, Record | None] = {}
        self._index_before: dict[tuple[str, str], IndexKey | None] = {}
        for batch in untold:
            for key, old, _ in batch.effects:
                self._before.setdefault(key, old)
            for owner, effect, old_key, _ in batch.index_changes:
                self._index_before.setdefault((owner.name, effect.key), old_key)

    def of_key(self, key: str) -> Snapshot:
        record = self._get(key)
        return self._snapshot(() if record is None else (Entry(key, record),))

    def of_prefix(self, prefix: str) -> Snapshot:
        found: dict[str, Record | None] = dict(self._state.scan(prefix, None, None))
        if self._before:
            found |= {key: old for key, old in self._before.items() if key.startswith(prefix)}
            found = dict(sorted(found.items()))
        return self._snapshot(
            tuple(Entry(key, record) for key, record in found.items() if record is not None)
        )

    def of_index(self, index_range: IndexRange) -> Snapshot:
        """Raises KeyError for an index that the schema lacks."""
        pairs = list(self._state.scan_index(*index_range, None))
        changed = {key: old for (name, key), old in self._index_before.items() if name == index_range.name}
        if changed:
            pairs = [pair for pair in pairs if pair[1] not in changed]
            pairs += [
                (old, key) for key, old in changed.items() if old is not None and index_range.holds(old)
            ]
            pairs.sort()
        entries = []
        for index_key, key in pairs:
            record = self._get(key)
            assert record is not None, f"{key} is in an index and has no record"
            entries.append(Entry(key, record, index_key))
        return self._snapshot(tuple(entries))

    def _get(self, key: str) -> Record | None:
        return self._before[key] if key in self._before else self._state.get(key)

    def _snapshot(self, entries: tuple[Entry, ...]) -> Snapshot:
        return Snapshot(self._lsn, entries)
