"""What transactions mean for the readers of one partition: its open transactions and its aborted ranges.

Gives the last stable offset (design D4) and says of a batch whether it was aborted (T8). Pure; offsets in, answers
out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict

from txn.keys import TxnKey


class PartitionTransactions:
    """Open transactions by first offset, aborted ranges by producer id.

    One producer id has at most one transaction at a time, so inside an aborted range [first, last] every batch of
    that producer id belongs to the aborted transaction: a range and an id are enough.
    """

    __slots__ = ("_aborted", "_open", "_writers", "aborted_count")

    def __init__(self) -> None:
        self._open: OrderedDict[TxnKey, int] = OrderedDict()
        self._writers: dict[int, int] = {}
        """How many transactions each producer id has open here: one, or more where votes of it await their group."""
        self._aborted: dict[int, tuple[list[int], list[int]]] = {}
        self.aborted_count = 0

    def opened(self, key: TxnKey, first_offset: int) -> None:
        """A transaction wrote its first batch here. Offsets only grow, so insertion order is offset order."""
        if key not in self._open:
            self._writers[key[0]] = self._writers.get(key[0], 0) + 1
        self._open[key] = first_offset

    def closed(self, key: TxnKey) -> None:
        """The outcome is decided and durable; an abort tells its range by `add_aborted` first."""
        if self._open.pop(key, None) is None:
            return
        left = self._writers.pop(key[0]) - 1
        if left:
            self._writers[key[0]] = left

    def add_aborted(self, producer_id: int, first: int, last: int) -> None:
        firsts, lasts = self._aborted.setdefault(producer_id, ([], []))
        at = bisect_left(firsts, first)
        if at < len(firsts) and firsts[at] == first:
            lasts[at] = max(lasts[at], last)
            return
        firsts.insert(at, first)
        lasts.insert(at, last)
        self.aborted_count += 1

    def drop_aborted_below(self, offset: int) -> None:
        """Forget ranges that end below the log start: their batches are gone."""
        for producer_id in list(self._aborted):
            firsts, lasts = self._aborted[producer_id]
            keep = bisect_left(lasts, offset)
            if keep:
                del firsts[:keep], lasts[:keep]
                self.aborted_count -= keep
                if not firsts:
                    del self._aborted[producer_id]

    def clear(self) -> None:
        """Nothing is known."""
        self._open.clear()
        self._writers.clear()
        self._aborted.clear()
        self.aborted_count = 0

    def __contains__(self, key: TxnKey) -> bool:
        """Whether this transaction is open here."""
        return key in self._open

    def is_writing(self, producer_id: int) -> bool:
        """Whether a transaction of this producer is open here."""
        return producer_id in self._writers

    def open_transactions(self) -> list[tuple[TxnKey, int]]:
        """(transaction, first offset) of each that is open here, by offset."""
        return list(self._open.items())

    def open_producers(self) -> list[int]:
        """The producer ids of the transactions that are open here."""
        return [producer_id for producer_id, _, _ in self._open]

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def first_open_offset(self) -> int | None:
        return next(iter(self._open.values()), None)

    def aborted_within(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """(producer id, first, last offset) of the aborted ranges that touch first..last."""
        found = []
        for producer_id, (firsts, lasts) in self._aborted.items():
            # Of one producer id they follow each other, so both lists ascend.
            touched = range(bisect_left(lasts, first), bisect_right(firsts, last))
            found += [(producer_id, firsts[at], lasts[at]) for at in touched]
        return found

    def is_aborted(self, producer_id: int, base_offset: int) -> bool:
        ranges = self._aborted.get(producer_id)
        if ranges is None:
            return False
        at = bisect_right(ranges[0], base_offset) - 1
        return at >= 0 and ranges[1][at] >= base_offset
