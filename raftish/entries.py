"""Log entries, and what a node must remember about its term."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    NORMAL = 0
    NOOP = 1
    """A leader's first entry: what earlier terms left becomes committed with it (raft paper, section 8). A later one:
    what the programs above say to whoever leads next."""
    MEMBERSHIP = 2
    """`membership.encode` of the group's members from here on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; (term, index) names its content for good."""

    term: int
    index: int
    kind: Kind
    payload: bytes


class HardState(NamedTuple):
    """What must be durable before anything is said in its term."""

    term: int
    vote: int | None
    """Node id of the candidate that got this node's vote in `term`."""
