"""The log as the core sees it: what the driver keeps, and behind that what is not durable yet.

Guarantee: `durable_index` counts an entry only when a write that still stands has been reported durable; a write
that was truncated meanwhile counts no further than the truncation, even if the same entry came back after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from raftish.entries import Entry


class LogView(Protocol):
    """The driver's log. It need not hold what was handed out and not reported durable; the core looks no further."""

    @property
    def first_index(self) -> int:
        """Of the first entry that is still there; 1 in a new log."""
        ...

    @property
    def last_index(self) -> int:
        """`first_index` - 1 where it is empty."""
        ...

    def term_at(self, index: int) -> int | None:
        """None for what is not there; index 0 has term 0, and `first_index` - 1 is still known."""
        ...

    def entries(self, first: int, last: int, max_bytes: int) -> Sequence[Entry]:
        """From `first` to at most `last`: one, and as many more as their payloads fit into `max_bytes`."""
        ...


class RaftLog:
    def __init__(self, view: LogView) -> None:
        """All that `view` has is durable."""
        self._view = view
        self._tail: list[Entry] = []
        self._tail_first = view.last_index + 1
        self._handed_index = self.durable_index = view.last_index
        self._writes: deque[list[int]] = deque()
        """[seq, last index] of what was handed out and is not durable, oldest first."""
        self._truncate_from: int | None = None
        self.last_index = view.last_index
        self.last_term = view.term_at(view.last_index) or 0

    @property
    def first_index(self) -> int:
        return self._view.first_index

    def term_at(self, index: int) -> int | None:
        if index >= self._tail_first:
            return self._tail[index - self._tail_first].term if index <= self.last_index else None
        return self._view.term_at(index)

    def entries(self, first: int, last: int, max_bytes: int) -> tuple[Entry, ...]:
        """As `LogView.entries`, over the whole log; may end early at the seam between the two parts."""
        if first < self._tail_first:
            return tuple(self._view.entries(first, min(last, self._tail_first - 1), max_bytes))
        found: list[Entry] = []
        size = 0
        for entry in self._tail[first - self._tail_first : last - self._tail_first + 1]:
            size += len(entry.payload)
            if found and size > max_bytes:
                break
            found.append(entry)
        return tuple(found)

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so has all that this one has (raft paper, 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def last_index_within(self, index: int, term: int) -> int:
        """The last index up to `index` whose term is not above `term`; terms never fall along a log."""
        low, high = self.first_index - 1, min(index, self.last_index)
        while low < high:
            middle = (low + high + 1) // 2
            found = self.term_at(middle)
            if found is None or found > term:
                high = middle - 1
            else:
                low = middle
        return high

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.index != self.last_index + 1 or entry.term < self.last_term:
                raise AssertionError(f"{entry.term}/{entry.index} after {self.last_term}/{self.last_index}")
            self._tail.append(entry)
            self.last_index = entry.index
            self.last_term = entry.term

    def truncate(self, first: int) -> None:
        """Take away everything from `first` on."""
        if first >= self._tail_first:
            del self._tail[first - self._tail_first :]
        else:
            self._tail.clear()
            self._tail_first = first
        last = first - 1
        if self._handed_index > last:
            self._handed_index = last
            self._truncate_from = first if self._truncate_from is None else min(first, self._truncate_from)
        for write in self._writes:
            write[1] = min(write[1], last)
        self.durable_index = min(self.durable_index, last)
        self.last_index = last
        self.last_term = self.term_at(last) or 0

    def restart(self) -> None:
        """The driver's log was replaced, durably, by another one."""
        index = self._view.last_index
        self._tail.clear()
        self._tail_first = index + 1
        self._writes.clear()
        self._truncate_from = None
        self.last_index = self._handed_index = self.durable_index = index
        self.last_term = self._view.term_at(index) or 0

    # Handing out what is to be written.

    @property
    def has_unwritten(self) -> bool:
        return self._truncate_from is not None or self._handed_index < self.last_index

    def hand_out(self, seq: int) -> tuple[int | None, tuple[Entry, ...]]:
        """(truncate from, entries to append after that), to be written as number `seq`."""
        truncate_from, self._truncate_from = self._truncate_from, None
        entries = tuple(self._tail[self._handed_index + 1 - self._tail_first :])
        self._handed_index = self.last_index
        self._writes.append([seq, self.last_index])
        return truncate_from, entries

    def persisted(self, seq: int) -> None:
        """Everything handed out up to `seq` is durable, and the driver's log has it."""
        while self._writes and self._writes[0][0] <= seq:
            self.durable_index = max(self.durable_index, self._writes.popleft()[1])
        done = self.durable_index + 1 - self._tail_first
        if done > 0:
            del self._tail[:done]
            self._tail_first += done
