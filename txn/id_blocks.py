"""Numbers that are never handed out twice, also over crashes: producer ids and segment ids.

The metadata store remembers the end of the block in use. A restart begins a new block, and whatever record names a
number comes after its block's record in the store's log: if the first is durable, so is the second.
"""

from __future__ import annotations

from txn.metastore import ABSENT, MetaStore, Put

BLOCK_SIZE = 1000


class IdBlocks:
    """Ids from 1 on. `key` is where the store keeps the first number of the next block."""

    def __init__(self, store: MetaStore, key: str) -> None:
        self._store = store
        self._key = key
        self._next = 0
        self._end = 0
        self._lsn = 0

    def allocate(self) -> tuple[int, int]:
        """(id, store position that must be durable before anything outside the store relies on the id).

        Raises:
            StoreFailed: the store takes no more records.
        """
        if self._next == self._end:
            record = self._store.get(self._key)
            self._next = record.value if record else 1
            self._end = self._next + BLOCK_SIZE
            expect = record.version if record else ABSENT
            self._lsn = self._store.apply([Put(self._key, self._end, expect)]).lsn
        number = self._next
        self._next += 1
        return number, self._lsn
