"""Settlement: the outcomes of finished transactions move to their segments, and their headers are collected.

After a pass, everything below `/resolved/<segment>` of a partition is visible unless a range under `/aborted/` covers
it (design T8), so the headers and op records of the transactions that lie wholly below are not needed any more. What
is written is safe in any prefix: aborted ranges first, then the resolved offsets, then the deletions; the store's log
keeps that order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from storage.clock import Scheduler, Timer
from txn import keys
from txn.metastore import Delete, MetaStore, Op, Put, StoreFailed
from txn.partition import Partition
from txn.transaction import State, Transaction, WritesBySegment

PASS_DELAY_MS = 250
BATCH_OPS = 2_000


_Writes = dict[Partition, WritesBySegment]


@dataclass(slots=True, eq=False)
class _Finished:
    key: keys.TxnKey
    op_count: int
    has_header: bool
    aborted: bool
    writes: _Writes
    """What is not settled yet of what it wrote."""


class Settlement:
    """Collects finished transactions in passes that run beside the work and that nobody waits for."""

    def __init__(self, store: MetaStore, scheduler: Scheduler) -> None:
        self._store = store
        self._scheduler = scheduler
        self._queue: deque[_Finished] = deque()
        self._timer: Timer | None = None

    @property
    def backlog(self) -> int:
        """Finished transactions whose headers still stand."""
        return len(self._queue)

    def unsettled_segments(self) -> set[int]:
        """Segments with records of finished transactions whose outcome is not recorded for good yet."""
        return {
            segment_id
            for finished in self._queue
            for segments in finished.writes.values()
            for segment_id in segments
        }

    def finished(self, transaction: Transaction, *, has_header: bool = True) -> None:
        """A transaction reached its end. Without a header (lost in a crash): its batches are aborted, by T3."""
        aborted = transaction.state is State.ABORTED
        self._queue.append(
            _Finished(transaction.key, transaction.op_count, has_header, aborted, transaction.writes)
        )
        if self._timer is None:
            self._timer = self._scheduler.call_later(PASS_DELAY_MS, self._timed_pass)

    def forget_partition(self, partition: Partition) -> None:
        """The partition's topic is deleted: nothing of it needs settling."""
        for finished in self._queue:
            finished.writes.pop(partition, None)

    def _timed_pass(self) -> None:
        self._timer = None
        try:
            self.run()
        except StoreFailed:
            return  # the store says so to everyone; recovery settles from the headers that stand
        if self._queue:
            self._timer = self._scheduler.call_later(PASS_DELAY_MS, self._timed_pass)

    def run(self) -> None:
        """One pass over everything that is finished."""
        limits: dict[Partition, int] = {}
        aborted: list[Op] = []
        resolved: dict[int, dict[int, int]] = {}
        collected: list[Op] = []
        kept: deque[_Finished] = deque()
        for finished in self._queue:
            left: _Writes = {}
            for partition, segments in finished.writes.items():
                limit = limits.get(partition)
                if limit is None:
                    # Never at or above the high watermark: what a crash cuts off gets its offsets used again (T8).
                    limit = limits[partition] = partition.last_stable_offset
                for segment_id, write in segments.items():
                    if write.first < limit:
                        resolved.setdefault(segment_id, {})[partition.index] = limit
                        if finished.aborted:
                            key = keys.aborted(segment_id, partition.index, write.first)
                            aborted.append(Put(key, [min(write.last, limit - 1), finished.key[0]]))
                    if write.last >= limit:
                        left.setdefault(partition, {})[segment_id] = write
            finished.writes = left
            if left:
                kept.append(finished)
            elif finished.has_header:
                collected.append(Delete(keys.txn(finished.key)))
                collected += [Delete(keys.txn_op(finished.key, n)) for n in range(finished.op_count)]
        self._queue = kept
        moved: list[Op] = []
        for segment_id, offsets in resolved.items():
            key = keys.resolved(segment_id)
            record = self._store.get(key)
            moved.append(Put(key, {**(record.value if record else {}), **offsets}))
        ops = aborted + moved + collected
        for start in range(0, len(ops), BATCH_OPS):
            self._store.apply(ops[start : start + BATCH_OPS])

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
