"""Reads that wait until the leader knows that it still was the leader when they came (dissertation, 6.4).

Guarantee: a read is given out with the commit index at its coming or a later one, after a majority answered a
heartbeat that was sent after its coming. The index is one of the leader's own term at least: before that, it cannot
know what earlier leaders committed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReadReady:
    context: Any
    index: int | None
    """What the read may be answered from as soon as everything up to it is applied. None: not the leader any more."""


class PendingReads:
    def __init__(self) -> None:
        self._unplaced: list[Any] = []
        """Came before the term's first commit."""
        self._waiting: deque[tuple[Any, int, int]] = deque()
        """(context, index, round to be confirmed), in order."""

    def __len__(self) -> int:
        return len(self._unplaced) + len(self._waiting)

    def add(self, context: Any, index: int | None, confirm_round: int) -> None:
        if index is None:
            self._unplaced.append(context)
        else:
            self._waiting.append((context, index, confirm_round))

    def place(self, index: int, confirm_round: int) -> bool:
        """The term has its first commit; whether any read waited for that."""
        placed = bool(self._unplaced)
        self._waiting.extend((context, index, confirm_round) for context in self._unplaced)
        self._unplaced.clear()
        return placed

    def confirmed(self, confirmed_round: int) -> list[ReadReady]:
        ready = []
        while self._waiting and self._waiting[0][2] <= confirmed_round:
            context, index, _ = self._waiting.popleft()
            ready.append(ReadReady(context, index))
        return ready

    def fail_all(self) -> list[ReadReady]:
        failed = [ReadReady(context, None) for context, _, _ in self._waiting]
        failed += [ReadReady(context, None) for context in self._unplaced]
        self._waiting.clear()
        self._unplaced.clear()
        return failed
