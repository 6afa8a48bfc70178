"""What `sealog dump` shows of a replicated range's log besides batches: numbers, and what the group says to itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raftish import membership
from storage.format import MEMBERS_FLAG, NOOP_FLAG, ROLL_FLAG
from storage.payloads import BadPayload, decode
from storage.scan import BareEntry, ScannedEntry, Scanner
from storage.segment import Segment

Item = dict[str, Any]


def numbers(segment: Segment) -> Item | None:
    """Where the segment stands in its range's log; None in a range that is not replicated by a group."""
    numbered, numbering = segment.header.numbered, segment.numbering
    if numbered is None or numbering is None:
        return None
    return {
        "first_index": numbered.first_index,
        "last_index": numbering.last_index if segment.state == "SEALED" else None,
        "previous_term": numbered.previous_term,
        "members": members(numbered.members),
    }


def indexed(segment: Segment, scanner: Scanner) -> Iterator[tuple[int | None, ScannedEntry | BareEntry]]:
    """The entries, each with its number in the range's log. Of what compaction has written only the roll has one."""
    numbered, numbering = segment.header.numbered, segment.numbering
    index = numbered.first_index if numbered is not None else None
    if segment.header.generation:
        last = numbering.last_index if numbering is not None else None
        for entry in scanner.all():
            yield (last if isinstance(entry, BareEntry) else None), entry
        return
    for entry in scanner.all():
        yield index, entry
        if index is not None:
            index += 1


def bare(entry: BareEntry, index: int | None) -> Item:
    """An entry of no partition."""
    return {
        "kind": "entry",
        "position": entry.position,
        "index": index,
        "term": entry.term,
        **_content(entry),
    }


def _content(entry: BareEntry) -> Item:
    if entry.flag == NOOP_FLAG:
        return {"says": "noop"}
    if entry.flag == MEMBERS_FLAG:
        return {"says": "members", "members": members(entry.payload)}
    assert entry.flag == ROLL_FLAG
    try:
        roll = decode(entry.payload, entry.term)
    except BadPayload:
        return {"says": "roll", "child": None, "created_ms": None}
    return {"says": "roll", "child": roll[0], "created_ms": roll[1]}


def members(packed: bytes) -> Item | None:
    """None for what no group writes."""
    try:
        found = membership.decode(packed)
    except ValueError:
        return None
    return {"voters": sorted(found.voters), "learners": sorted(found.learners)}
