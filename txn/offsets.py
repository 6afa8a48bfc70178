"""Committed offsets of consumer groups, and those that wait for a transaction's end.

The metadata store holds every committed offset; this module holds only what is pending. Two open transactions
never hold one (group, partition): the second is refused or waits (design, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from txn import keys
from txn.metastore import Delete, MetaStore, Op, Put
from txn.transaction import PendingOffset, TopicPartition, Transaction

GroupPartition = tuple[str, str, int]
"""(group id, topic, partition)."""


class GroupOffsets:
    """Reads the store, writes nothing itself: callers put the operations it builds into their own batches."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._held: dict[GroupPartition, Transaction] = {}
        self._waiting: dict[GroupPartition, list[_Once]] = {}
        self._waits: dict[Transaction, list[_Once]] = {}
        """The same, by the transaction that waits: its own end sets it free as well."""

    def committed(self, group_id: str, topic: str, partition: int) -> PendingOffset | None:
        record = self._store.get(keys.group_offset(group_id, topic, partition))
        return None if record is None else PendingOffset(*record.value[:3])

    def all_committed(self, group_id: str) -> Iterator[tuple[TopicPartition, PendingOffset]]:
        prefix = keys.group_offsets(group_id)
        for key, record in self._store.scan(prefix):
            topic, partition = key[len(prefix) :].rsplit("/", 1)
            yield (topic, int(partition)), PendingOffset(*record.value[:3])

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction holds an offset here: UNSTABLE_OFFSET_COMMIT under require_stable (KIP-447)."""
        return (group_id, topic, partition) in self._held

    def pending_partitions(self, group_id: str) -> list[TopicPartition]:
        return [(topic, partition) for group, topic, partition in self._held if group == group_id]

    @staticmethod
    def put_ops(group_id: str, offsets: dict[TopicPartition, PendingOffset], now_ms: int) -> list[Op]:
        """What commits these offsets. The record: [offset, leader epoch, metadata, commit time in ms]."""
        return [
            Put(keys.group_offset(group_id, topic, partition), [o.offset, o.leader_epoch, o.metadata, now_ms])
            for (topic, partition), o in offsets.items()
        ]

    def group_ids(self) -> Iterator[str]:
        """Every group that has committed offsets, without a walk over these."""
        after = None
        while True:
            for key, _ in self._store.scan(keys.GROUPS, after, limit=1):
                group_id, rest = keys.parse_group(key)
                if rest.startswith("offset/"):
                    yield group_id
                    after = keys.group_offsets(group_id) + keys.LAST
                else:
                    after = key
                break
            else:
                return

    def commit_times_ms(self, group_id: str) -> Iterator[tuple[TopicPartition, int]]:
        """When each offset of a group was committed, by the wall clock."""
        prefix = keys.group_offsets(group_id)
        for key, record in self._store.scan(prefix):
            topic, partition = key[len(prefix) :].rsplit("/", 1)
            yield (topic, int(partition)), record.value[3]

    @staticmethod
    def delete_ops(group_id: str, partitions: Iterable[TopicPartition]) -> list[Op]:
        """What forgets these offsets of a group."""
        return [Delete(keys.group_offset(group_id, topic, partition)) for topic, partition in partitions]

    def delete_group_ops(self, group_id: str) -> list[Op]:
        """What forgets all offsets of a group."""
        return [Delete(key) for key, _ in self._store.scan(keys.group_offsets(group_id))]

    def delete_topic_ops(self, topic: str) -> list[Op]:
        """What forgets a deleted topic's offsets in every group."""
        found: list[Op] = []
        for key, _ in self._store.scan(keys.GROUPS):
            _, rest = keys.parse_group(key)
            if rest.startswith(f"offset/{topic}/"):
                found.append(Delete(key))
        return found

    def holder(
        self, group_id: str, offsets: dict[TopicPartition, Any], mine: Transaction
    ) -> GroupPartition | None:
        """A (group, partition) of these that another open transaction holds, if there is one."""
        for topic, partition in offsets:
            at = (group_id, topic, partition)
            other = self._held.get(at)
            if other is not None and other is not mine:
                return at
        return None

    def when_released(self, at: GroupPartition, waiting: Transaction, callback: Callable[[], None]) -> None:
        """Call back when the transaction that holds it ends, or the one that waits does, whichever comes first."""
        once = _Once(callback)
        self._waiting.setdefault(at, []).append(once)
        self._waits.setdefault(waiting, []).append(once)

    def hold(
        self, transaction: Transaction, group_id: str, offsets: dict[TopicPartition, PendingOffset]
    ) -> None:
        transaction.offsets.setdefault(group_id, {}).update(offsets)
        for topic, partition in offsets:
            self._held[(group_id, topic, partition)] = transaction

    def release(self, transaction: Transaction) -> None:
        """The transaction ended: whoever waited for one of its partitions goes on, and so does what it waited for."""
        ready: list[_Once] = []
        for group_id, offsets in transaction.offsets.items():
            for topic, partition in offsets:
                at = (group_id, topic, partition)
                if self._held.pop(at, None) is not None:
                    ready += self._waiting.pop(at, ())
        ready += self._waits.pop(transaction, ())
        for once in ready:
            once()


class _Once:
    """A callback that two lists hold: the first to call it does."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def __call__(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
