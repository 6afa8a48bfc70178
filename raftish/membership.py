"""Who belongs to a group: voters, and learners that get the log and have no vote.

Guarantee: `changed` alters one node at a time, so that any majority of the old and any of the new voters share
a node (dissertation, 4.1). A membership holds from the moment its entry is in the log, committed or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

MAX_MEMBERS = 64
_COUNTS = struct.Struct(">BB")
T = TypeVar("T", int, float)


class Step(Enum):
    ADD_LEARNER = "add a learner"
    PROMOTE = "make a learner a voter"
    REMOVE = "remove"


class Change(NamedTuple):
    step: Step
    node: int


class ChangeRefused(ValueError):
    """The change makes no sense for this membership, or not now; the message says why."""


@dataclass(frozen=True, slots=True)
class Membership:
    voters: frozenset[int]
    learners: frozenset[int] = frozenset()

    def __contains__(self, node: int) -> bool:
        return node in self.voters or node in self.learners

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.voters | self.learners))

    def majority_of(self, values: Mapping[int, T], absent: T) -> T:
        """The highest value that a majority of the voters has reached."""
        ordered = sorted([values.get(voter, absent) for voter in self.voters], reverse=True)
        return ordered[len(ordered) // 2]

    def is_majority(self, nodes: Iterable[int]) -> bool:
        return len(self.voters.intersection(nodes)) > len(self.voters) // 2

    def changed(self, change: Change) -> Membership:
        """Raises `ChangeRefused`."""
        step, node = change
        voters, learners = self.voters, self.learners
        if step is Step.ADD_LEARNER:
            if node in self:
                raise ChangeRefused(f"node {node} is a member already")
            if len(voters) + len(learners) >= MAX_MEMBERS:
                raise ChangeRefused(f"a group has at most {MAX_MEMBERS} members")
            return Membership(voters, learners | {node})
        if step is Step.PROMOTE:
            if node not in learners:
                raise ChangeRefused(f"node {node} is not a learner")
            return Membership(voters | {node}, learners - {node})
        if node not in self:
            raise ChangeRefused(f"node {node} is not a member")
        if voters == {node}:
            raise ChangeRefused(f"node {node} is the last voter")
        return Membership(voters - {node}, learners - {node})


def encode(membership: Membership) -> bytes:
    """Counts of voters and learners (a byte each), then the sorted ids, four bytes each."""
    voters, learners = sorted(membership.voters), sorted(membership.learners)
    ids = voters + learners
    return _COUNTS.pack(len(voters), len(learners)) + struct.pack(f">{len(ids)}I", *ids)


def decode(payload: bytes) -> Membership:
    """Raises ValueError for anything that `encode` would not have written."""
    if len(payload) < _COUNTS.size:
        raise ValueError("a membership of fewer than two bytes")
    voters, learners = _COUNTS.unpack_from(payload)
    if not voters or voters + learners > MAX_MEMBERS or len(payload) != 2 + 4 * (voters + learners):
        raise ValueError(f"a membership of {len(payload)} bytes for {voters} voters and {learners} learners")
    ids = struct.unpack_from(f">{voters + learners}I", payload, 2)
    membership = Membership(frozenset(ids[:voters]), frozenset(ids[voters:]))
    if encode(membership) != payload:
        raise ValueError("a membership that is not sorted, or names a node twice")
    return membership


class Memberships:
    """The last committed membership and those after it in the log."""

    def __init__(self, known: Iterable[tuple[int, Membership]]) -> None:
        """`known`: (index, membership) in ascending order; index 0 is what the group began with."""
        self._known = list(known)
        if not self._known:
            raise ValueError("a group without a first membership")

    @property
    def current(self) -> Membership:
        return self._known[-1][1]

    @property
    def index(self) -> int:
        """Of the entry that holds the current one."""
        return self._known[-1][0]

    def committed(self, commit: int) -> Membership:
        return next((m for index, m in reversed(self._known) if index <= commit), self._known[0][1])

    def append(self, index: int, membership: Membership) -> None:
        self._known.append((index, membership))

    def truncate(self, first: int) -> bool:
        """Forget those of entries from `first` on; whether the current one changed."""
        count = len(self._known)
        self._known = [known for known in self._known if known[0] < first]
        return len(self._known) != count

    def forget_before(self, commit: int) -> None:
        while len(self._known) > 1 and self._known[1][0] <= commit:
            del self._known[0]
