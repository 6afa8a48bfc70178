"""Reading on for a consumer that is behind, while it works on its last answer.

A client asks for more only when it has used up what it got, so all that its next fetch needs would be waited for.
Once an answer has left, what it had no room for, and then what follows it, is read: a piece per turn of the loop, no
more than a next answer holds, and within one bound for all connections. The next fetch takes what fits its question,
and what it does not take is dropped. What lies below the last stable offset never changes, so a kept piece is as true
later as when it was read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from storage.clock import Scheduler
from txn.partition import Partition, Slice
from wire.errors import KafkaError


class Wanted(NamedTuple):
    """A piece of a partition's log: batches from the one that holds `offset` on, at most `max_bytes`."""

    partition: Partition
    offset: int
    read_committed: bool
    max_bytes: int


class Budget:
    """Bytes that all connections of a node may keep; at the limit, who has kept longest has nothing any more."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes
        self._holders: dict[ReadAhead, None] = {}

    def take(self, size_bytes: int, holder: ReadAhead) -> bool:
        while size_bytes > self._left and self._holders:
            oldest = next(iter(self._holders))
            if oldest is holder:
                return False
            oldest.drop()
        if size_bytes > self._left:
            return False
        self._left -= size_bytes
        self._holders[holder] = None
        return True

    def give_back(self, size_bytes: int) -> None:
        self._left += size_bytes

    def leave(self, holder: ReadAhead) -> None:
        """It has given all of it back."""
        self._holders.pop(holder, None)


class ReadAhead:
    """Of one connection. `plan` says what comes next, `go_on` that there is time for it, `take` that it is needed."""

    __slots__ = ("_budget", "_is_expected", "_is_scheduled", "_kept", "_left_bytes", "_plan", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._budget = Budget(0)
        self._kept: dict[Partition, tuple[Wanted, Slice]] = {}
        self._plan: deque[Wanted] = deque()
        self._left_bytes = 0
        self._is_expected = False
        self._is_scheduled = False

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._kept

    @property
    def is_empty(self) -> bool:
        return not self._kept

    def take(self, wanted: Wanted) -> Slice | None:
        """What was read for just this question, if it was and is no larger than it may be."""
        kept = self._kept.pop(wanted.partition, None)
        if kept is None:
            return None
        planned, piece = kept
        self._budget.give_back(piece.size_bytes)
        if planned[1:3] != wanted[1:3] or piece.size_bytes > wanted.max_bytes:
            return None
        return piece

    def plan(self, wanted: Sequence[Wanted], size_bytes: int, budget: Budget) -> None:
        """Keep this much of it, in this order; of an earlier plan nothing is left."""
        self.drop()
        self._plan.extend(wanted)
        self._left_bytes = size_bytes
        self._is_expected = False
        self._budget = budget

    def drop(self) -> None:
        for _, piece in self._kept.values():
            self._budget.give_back(piece.size_bytes)
        self._kept.clear()
        self._plan.clear()
        self._budget.leave(self)

    def go_on(self) -> None:
        """The answers have left: there is time for the plan's next piece."""
        if self._plan and not self._is_scheduled:
            self._is_scheduled = True
            self._scheduler.call_soon(self._step if self._is_expected else self._expect)

    def _expect(self) -> None:
        """Let the device begin with all of it, and with what the answer after that will need."""
        self._is_scheduled = False
        self._is_expected = True
        left = 2 * self._left_bytes
        try:
            for wanted in self._plan:
                size = min(wanted.max_bytes, left)
                wanted.partition.expect(wanted.offset, read_committed=wanted.read_committed, size_bytes=size)
                left -= size
                if left <= 0:
                    break
        except KafkaError:
            self._plan.clear()
        self.go_on()

    def _step(self) -> None:
        self._is_scheduled = False
        if not self._plan:
            return
        wanted = self._plan.popleft()
        allowed = min(wanted.max_bytes, self._left_bytes)
        if allowed <= 0 or not self._budget.take(allowed, self):
            self._plan.clear()
            return
        size = 0
        try:
            piece = wanted.partition.fetch(
                wanted.offset, read_committed=wanted.read_committed, max_bytes=allowed, at_least_one=False
            )
            size = piece.size_bytes
        except KafkaError:
            # The client hears of it when it asks.
            self._plan.clear()
        self._budget.give_back(allowed - size)
        if size:
            self._left_bytes -= size
            self._kept[wanted.partition] = (wanted, piece)
            self.go_on()
        else:
            # The next batch has no room: the answer would end here, too.
            self._plan.clear()
