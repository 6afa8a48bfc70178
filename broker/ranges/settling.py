"""Settlement where ranges are led elsewhere (design, sections 6 and 14): leaders report, the coordinator records.

A leader's report of a partition: up to which offset all outcomes are known there (its last stable offset), and the
aborted ranges below, those that no coordinator has heard of included. All of it is final, so a report may be late,
repeated, or of a leader that is one no more. The coordinator asks for reports of the partitions that finished
transactions wrote to, records them (aborted ranges, then what is resolved, then deletions: every prefix is safe), and
collects the headers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from broker.ranges.asking import Answer, Asking, AskLeader, Words
from broker.ranges.outcomes import Outcomes
from broker.ranges.topics import RangeTopics
from broker.ranges.view import RangesView
from storage.clock import Scheduler, Timer
from txn import keys
from txn.metastore import Delete, MetaStore, Op, Put, StoreFailed
from txn.partition import Partition
from txn.settlement import BATCH_OPS, PASS_DELAY_MS
from txn.transaction import State, Transaction, span

MOST_RANGES: Final = 1_000
"""In one report of a partition; the rest comes with the next one."""


class Reports:
    """A leader's side: answers "report": [group, [partition...]] -> [[partition, limit, is all, segments, ranges]...]

    `limit`: what is below is on record from then on, for each segment by itself, [segment, limit in it]: a replica that
    is behind may not have the last one. `is all`: nothing is above.
    Ranges are [segment, first, last, producer id], of which the first may lie in an earlier segment.
    """

    def __init__(self, topics: RangeTopics, view: RangesView, outcomes: Outcomes, asking: Asking) -> None:
        self._topics = topics
        self._view = view
        self._outcomes = outcomes
        asking.serve("report", self._report)

    def _report(self, words: Words, answer: Answer) -> None:
        group, indexes = words
        partitions = self._topics.partitions_of(group)
        wanted = [partitions[index] for index in indexes if index in partitions]
        replica = self._topics.replica_of(group)
        if not wanted or not all(
            one.log is replica and self._view.leads(one) and self._view.knows_end(one) for one in wanted
        ):
            answer(None)
            return
        answer([self._of(partition) for partition in wanted])

    def _of(self, partition: Partition) -> list[Any]:
        limit = partition.last_stable_offset
        is_all = limit == partition.end_offset
        resolved = min(self._outcomes.resolved(partition), limit)
        aborted = sorted(
            (first, last, producer_id)
            for producer_id, first, last in partition.transactions.aborted_within(resolved, limit - 1)
        )
        if len(aborted) > MOST_RANGES:
            limit, is_all = aborted[MOST_RANGES][0], False
            aborted = aborted[:MOST_RANGES]
        # By its true first offset in every segment, with which nobody else's begins: another aborted transaction may
        # have begun where the segment does, and both would be one record.
        ranges = [
            [segment_id, first, min(last, end - 1, limit - 1), producer_id]
            for first, last, producer_id in aborted
            for segment_id, _, end in partition.segments_within(first, min(last, limit - 1))
        ]
        segments = [
            [segment_id, min(end, limit)]
            for segment_id, _, end in partition.segments_within(resolved, limit - 1)
        ]
        return [partition.index, limit, is_all, segments, ranges]


@dataclass(slots=True, eq=False)
class _Finished:
    number: int
    key: keys.TxnKey
    op_count: int
    aborted: bool
    lasts: dict[Partition, int]
    """What is not on record yet: per partition the last offset that it wrote."""


class RangesSettlement:
    """The coordinator's side; in place of a `txn.settlement.Settlement`."""

    def __init__(self, store: MetaStore, scheduler: Scheduler, topics: RangeTopics, ask: AskLeader) -> None:
        self._store = store
        self._scheduler = scheduler
        self._topics = topics
        self._ask = ask
        self._queue: deque[_Finished] = deque()
        self._finished_count = 0
        self._timer: Timer | None = None
        self._asked: set[int] = set()

    @property
    def backlog(self) -> int:
        """Finished transactions whose headers still stand."""
        return len(self._queue)

    def finished(self, transaction: Transaction, *, has_header: bool = True) -> None:
        """A transaction reached its end."""
        assert has_header
        self._finished_count += 1
        self._queue.append(
            _Finished(
                self._finished_count,
                transaction.key,
                transaction.op_count,
                transaction.state is State.ABORTED,
                {partition: span(segments)[1] for partition, segments in transaction.writes.items()},
            )
        )
        self._wake()

    def forget_partition(self, partition: Partition) -> None:
        for finished in self._queue:
            finished.lasts.pop(partition, None)

    def _wake(self) -> None:
        if self._timer is None and self._queue:
            self._timer = self._scheduler.call_later(PASS_DELAY_MS, self._pass)

    def _pass(self) -> None:
        """Ask for reports of all that is waited for, one question per range at a time."""
        self._timer = None
        if not self._store.takes():
            self._wake()
            return
        wanted: dict[int, set[int]] = {}
        for finished in self._queue:
            for partition in list(finished.lasts):
                group = self._topics.group_of(partition)
                if group is None:
                    del finished.lasts[partition]
                else:
                    wanted.setdefault(group, set()).add(partition.index)
        try:
            self._collect({}, 0)
        except StoreFailed:
            return  # another node leads, and goes on with the headers that stand
        for group, indexes in wanted.items():
            if group not in self._asked:
                self._asked.add(group)
                words = [group, sorted(indexes)]
                self._ask(
                    "report", group, partial(list, words), partial(self._told, group, self._finished_count)
                )
        self._wake()

    def _told(self, group: int, asked_after: int, reports: Words | None) -> None:
        self._asked.discard(group)
        if reports is None:
            return
        partitions = self._topics.partitions_of(group)
        aborted: list[Op] = []
        moved: list[Op] = []
        limits: dict[Partition, tuple[int, bool]] = {}
        segments: dict[int, dict[int, int]] = {}
        for index, limit, is_all, resolved, ranges in reports:
            partition = partitions.get(index)
            if partition is None:
                continue
            limits[partition] = limit, is_all
            aborted += [
                Put(keys.aborted(segment, index, first), [last, producer_id])
                for segment, first, last, producer_id in ranges
            ]
            for segment_id, until in resolved:
                segments.setdefault(segment_id, {})[index] = until
        for segment_id, offsets in segments.items():
            key = keys.resolved(segment_id)
            record = self._store.get(key)
            known: dict[int, int] = record.value if record is not None else {}
            grown = {index: limit for index, limit in offsets.items() if limit > known.get(index, 0)}
            if grown:
                moved.append(Put(key, {**known, **grown}))
        try:
            self._apply(aborted + moved)
            self._collect(limits, asked_after)
        except StoreFailed:
            return  # another node leads, or these are asked for again

    def _apply(self, ops: list[Op]) -> None:
        for start in range(0, len(ops), BATCH_OPS):
            self._store.apply(ops[start : start + BATCH_OPS])

    def _collect(self, limits: dict[Partition, tuple[int, bool]], asked_after: int) -> None:
        """The headers of those of which all is on record.

        What an aborted one wrote above all that is there is gone, should it have been closed when that was asked for.
        """
        kept: deque[_Finished] = deque()
        ops: list[Op] = []
        for finished in self._queue:
            for partition, (limit, is_all) in limits.items():
                last = finished.lasts.get(partition)
                if last is None:
                    continue
                is_gone = is_all and finished.aborted and finished.number <= asked_after
                if last < limit or is_gone:
                    del finished.lasts[partition]
            if finished.lasts:
                kept.append(finished)
            else:
                ops.append(Delete(keys.txn(finished.key)))
                ops += [Delete(keys.txn_op(finished.key, n)) for n in range(finished.op_count)]
        self._queue = kept
        self._apply(ops)
