"""Which terms of a range's group the leader of a term continues (docs/raft.md, section 8, "Hand-overs").

A leader that is about to hand over puts a *clean mark* behind all that it wrote: nothing was or will be written under
its term behind it. Whoever leads next and finds the mark as the last entry of the term before has all that the former
leader ever wrote and answered: it continues that term, and those that this one continued. So a leader's *lineage* is
the list of its own term and of those. A list and not an interval: what a leader of a term in between wrote may be
lost altogether, with its term.

Guarantee: a term is in the lineage of a leader only if all that was ever written under it is in the leader's log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

import msgpack

from raftish.entries import Entry, Kind
from storage.format import CorruptLog

log = logging.getLogger("sealog")

MOST_TERMS: Final = 64
"""In a lineage, the newest ones: a transaction that is older than so many hand-overs aborts."""
_CLEAN: Final = "clean"


class Log(Protocol):
    """`broker.replication.range_group.RangeGroup` is one."""

    @property
    def last_index(self) -> int: ...

    def term_at(self, index: int) -> int | None: ...

    def entries(self, first: int, last: int, max_bytes: int) -> Sequence[Entry]: ...


def mark(lineage: Sequence[int]) -> bytes:
    """What a bare entry says that is the last one of its term."""
    packed: bytes = msgpack.packb([_CLEAN, list(lineage)])
    return packed


UNMARK: Final = b""
"""Behind a mark that does not hold any more, before anything else is written."""


def of_leader(log_: Log, term: int) -> tuple[int, ...]:
    """Of the leader of `term`, which has just begun and has written nothing but bare entries."""
    index = log_.last_index
    while index > 0 and log_.term_at(index) == term:
        index -= 1
    try:
        found = log_.entries(index, index, 1 << 10)
    except (ValueError, OSError, CorruptLog) as error:
        log.info("what term %d continues cannot be read: %s", term, error)
        return (term,)
    return (*_marked(found[0]), term)[-MOST_TERMS:]


def _marked(entry: Entry) -> tuple[int, ...]:
    """The lineage that a clean mark names; nothing where the entry is another one."""
    if entry.kind is not Kind.NOOP or not entry.payload:
        return ()
    word, terms = msgpack.unpackb(entry.payload)
    return tuple(terms) if word == _CLEAN and terms and terms[-1] == entry.term else ()
