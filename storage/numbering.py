"""The numbers of a replicated range's entries in one segment: index -> place and term (docs/raft.md, section 7).

Guarantees: entries are counted without a gap from the header block's first index on; a place is known for every
`PLACE_EVERY_BYTES` at least, so that finding an entry reads no more than that besides; what `truncate` takes
away is as if it had never been added.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final, Protocol

from crc32c import crc32c

from storage.format import HEADER_BLOCK_BYTES, CorruptLog, Numbered

PLACE_EVERY_BYTES: Final = 64 << 10


class EntryLike(Protocol):
    """An entry of a range's log as its group hands it in, as `raftish.entries.Entry` is. `kind`: one of those below."""

    @property
    def term(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """As it is read again."""

    term: int
    index: int
    kind: int
    payload: bytes


NORMAL: Final = 0
"""A batch or a roll (`storage.payloads`)."""
NOOP: Final = 1
MEMBERSHIP: Final = 2


class Numbering:
    """Of one segment. Positions are bytes in its file."""

    __slots__ = ("first_index", "last_index", "members", "places", "positions", "stored", "terms")

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self.last_index = first_index - 1
        self.terms: list[tuple[int, int]] = []
        """(first index, term), in order: each term that wrote here, once."""
        self.members: list[tuple[int, bytes]] = []
        """(index, payload) of the entries that change the group's members."""
        self.places = array("Q")
        """Some indexes, and beside them the positions of their entries."""
        self.positions = array("I")
        self.stored: tuple[int, int, int] | None = None
        """Of a sealed segment, position, count and CRC of the places in the footer."""

    @property
    def last_term(self) -> int | None:
        return self.terms[-1][1] if self.terms else None

    def add(self, position: int, term: int) -> int:
        """Count the entry at `position`; its index."""
        self.last_index = index = self.last_index + 1
        terms = self.terms
        if not terms or terms[-1][1] != term:
            terms.append((index, term))
        positions = self.positions
        if not positions or position - positions[-1] >= PLACE_EVERY_BYTES:
            positions.append(position)
            self.places.append(index)
        return index

    def truncate(self, index: int) -> None:
        """Forget the entries from `index` on."""
        self.last_index = min(self.last_index, index - 1)
        while self.terms and self.terms[-1][0] >= index:
            self.terms.pop()
        while self.members and self.members[-1][0] >= index:
            self.members.pop()
        while self.places and self.places[-1] >= index:
            self.places.pop()
            self.positions.pop()

    def term_at(self, index: int) -> int | None:
        if not self.first_index <= index <= self.last_index:
            return None
        return self.terms[bisect_right(self.terms, index, key=_first) - 1][1]

    def place_before(self, index: int) -> tuple[int, int]:
        """(index, position) of the nearest known entry that is not behind `index`."""
        at = bisect_right(self.places, index) - 1
        return (self.places[at], self.positions[at]) if at >= 0 else (self.first_index, HEADER_BLOCK_BYTES)

    # Footers and checkpoints.

    def encode_places(self) -> bytes:
        """Indexes, then positions, little-endian."""
        parts: list[array[int]] = [self.places[:], self.positions[:]]
        if sys.byteorder == "big":
            for part in parts:
                part.byteswap()
        return b"".join(part.tobytes() for part in parts)

    def decode_places(self, blob: bytes, path: str) -> None:
        assert self.stored is not None
        position, count, crc = self.stored
        if len(blob) != count * BYTES_PER_PLACE or crc32c(blob) != crc:
            raise CorruptLog(path, position, "the places of the entries are damaged")
        self.places, self.positions = array("Q"), array("I")
        self.places.frombytes(blob[: count * 8])
        self.positions.frombytes(blob[count * 8 :])
        if sys.byteorder == "big":
            self.places.byteswap()
            self.positions.byteswap()

    def unload(self) -> None:
        """Give the places of a sealed segment back."""
        self.places, self.positions = array("Q"), array("I")

    def summary(self) -> list[Any]:
        """Everything but the places, for msgpack."""
        return [
            self.last_index,
            [list(term) for term in self.terms],
            [list(change) for change in self.members],
            list(self.stored or (0, len(self.places), 0)),
        ]

    @classmethod
    def from_summary(cls, header: Numbered, summary: list[Any]) -> Numbering:
        last_index, terms, members, stored = summary
        numbering = cls(header.first_index)
        numbering.last_index = last_index
        numbering.terms = [(first, term) for first, term in terms]
        numbering.members = [(index, payload) for index, payload in members]
        numbering.stored = (stored[0], stored[1], stored[2])
        return numbering


BYTES_PER_PLACE: Final = 12


def _first(term: tuple[int, int]) -> int:
    return term[0]
