"""Who leads which range, as nodes say it. Pure.

Every node says which groups it leads, in which terms, who has what is committed there, and since when it leads; and
what it knows of others, so that two nodes that do not hear each other hear of each other. The latest term counts; what
a node does not say of itself any more, it does not lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Led:
    """`in_sync` are those that have nearly all; `since_ms` by the leader's wall clock; `step` is that of the record
    (`moves`) which the group has come to, -1 while it is on its way; `is_whole`: all members have the last change."""

    leader: int
    term: int
    voters: tuple[int, ...]
    in_sync: tuple[int, ...]
    since_ms: int
    learners: tuple[int, ...] = ()
    step: int = -1
    is_whole: bool = False

    def words(self, group: int) -> list[object]:
        members = list(self.voters), list(self.in_sync), self.since_ms, list(self.learners)
        return [group, self.leader, self.term, *members, self.step, self.is_whole]


class Leaders:
    """By group."""

    def __init__(self) -> None:
        self._led: dict[int, Led] = {}

    def said(self, node: int, words: Iterable[Sequence[Any]]) -> set[int]:
        """All that this node knows of at the moment, itself and others. The groups of which something changed."""
        words = list(words)
        own = {group for group, leader, *_ in words if leader == node}
        return self.said_of_some(
            node,
            words,
            [group for group, led in self._led.items() if led.leader == node and group not in own],
        )

    def said_of_some(self, node: int, words: Iterable[Sequence[Any]], ended: Iterable[int]) -> set[int]:
        """What it knows of some, and those that it leads no more."""
        changed: set[int] = set()
        for group, leader, term, voters, in_sync, since_ms, learners, step, is_whole in words:
            members = tuple(voters), tuple(in_sync), since_ms, tuple(learners)
            led = Led(leader, term, *members, step, is_whole)
            known = self._led.get(group)
            if known is None or term > known.term or (leader == node and term == known.term and led != known):
                self._led[group] = led
                changed.add(group)
        for group in ended:
            known = self._led.get(group)
            if known is not None and known.leader == node:
                del self._led[group]
                changed.add(group)
        return changed

    def get(self, group: int) -> Led | None:
        return self._led.get(group)

    def forget(self, group: int) -> None:
        """It is no more."""
        self._led.pop(group, None)
