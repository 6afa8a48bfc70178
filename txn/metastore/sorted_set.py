"""A sorted set that sorts late: members that come and go between two reads cost no search at all.

Additions and removals are noted and carried out when somebody reads in order, or when a bounded number of
them has gathered, so that no read has to wait for many.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Generic, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")

MAX_NOTED = 128


class LateSortedSet(Generic[T]):
    """Members must be hashable and comparable with each other. Whoever changes it knows what is a member."""

    def __init__(self, members: Iterable[T] = ()) -> None:
        self._sorted: Any = SortedList(members)
        self._added: set[T] = set()
        self._removed: set[T] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._added) - len(self._removed)

    def add(self, member: T) -> None:
        """`member` must not be in it."""
        if member in self._removed:
            self._removed.remove(member)
        else:
            self._added.add(member)
            if len(self._added) >= MAX_NOTED:
                self._settle()

    def remove(self, member: T) -> None:
        """`member` must be in it."""
        if member in self._added:
            self._added.remove(member)
        else:
            self._removed.add(member)
            if len(self._removed) >= MAX_NOTED:
                self._settle()

    def between(self, low: object, high: object, limit: int, *, above: bool = False) -> list[T]:
        """The first `limit` members with low <= member < high (`above`: low < member); None: no bound."""
        self._settle()
        return list(islice(self._sorted.irange(low, high, (not above, False)), limit))

    def rank(self, bound: object) -> int:
        """How many members are below `bound`."""
        self._settle()
        return int(self._sorted.bisect_left(bound))

    def _settle(self) -> None:
        if self._removed:
            for member in self._removed:
                self._sorted.remove(member)
            self._removed.clear()
        if self._added:
            self._sorted.update(self._added)
            self._added.clear()
