"""The records under `/layout/`: which segments a topic has, and of which partitions.

A record holds an epoch that counts its changes and the segments of all ranges, parents before children. Every change
here gives a new record; the old one stays as it was, so that a conditional write can be refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Any
from uuid import UUID

from storage.compaction_job import Rewritten
from storage.layout import LayoutChanged, RollEvent, SegmentInfo, tails

Layout = dict[str, Any]


def directory(name: str, topic_id: UUID) -> str:
    """The folder of a topic's segments."""
    return f"topics/{name}.{topic_id.hex}"


def new_layout(first_segment: SegmentInfo) -> Layout:
    return {"epoch": 1, "segments": [_record(first_segment)]}


def segments_of(layout: Layout) -> list[SegmentInfo]:
    return [
        SegmentInfo(
            record["id"],
            record["first"],
            record["last"],
            record["state"],
            tuple(record["parents"]),
            end_offsets=record["end_offsets"],
            generation=record["generation"],
        )
        for record in layout["segments"]
    ]


def with_range(layout: Layout, first_segment: SegmentInfo) -> Layout:
    """One more range, of partitions that no segment had before."""
    assert all(first_segment.first > segment["last"] for segment in layout["segments"])
    return _next(layout, [*layout["segments"], _record(first_segment)])


def with_children(layout: Layout, parents: Sequence[int], children: Sequence[tuple[int, int, int]]) -> Layout:
    """The children (segment id, first and last partition) take the parents' place as tails: a roll, split or merge.

    The parents stay ACTIVE until their footers are durable.

    Raises:
        LayoutChanged: a parent is no tail any more, or the children do not cover what the parents cover.
    """
    current = {segment.segment_id: segment for segment in tails(segments_of(layout))}
    if any(parent not in current for parent in parents):
        raise LayoutChanged(f"of segments {list(parents)} not all are the ends of their ranges any more")
    spans = [current[parent] for parent in parents]
    if [p for _, first, last in children for p in range(first, last + 1)] != [
        p for span in spans for p in range(span.first, span.last + 1)
    ]:
        raise LayoutChanged(f"segments {list(parents)} hold other partitions than {children}")
    made = [
        SegmentInfo(
            segment_id,
            first,
            last,
            "ACTIVE",
            tuple(span.segment_id for span in spans if span.first <= last and span.last >= first),
        )
        for segment_id, first, last in children
    ]
    return _next(layout, [*layout["segments"], *map(_record, made)])


def with_roll(layout: Layout, event: RollEvent) -> Layout:
    """The child continues the parent, with the same partitions. Raises LayoutChanged."""
    parent = next(segment for segment in layout["segments"] if segment["id"] == event.parent_id)
    return with_children(layout, (event.parent_id,), ((event.child_id, parent["first"], parent["last"]),))


def with_sealed(layout: Layout, segment_id: int, end_offsets: Mapping[int, int]) -> Layout:
    """A segment's footer is durable."""
    return _next(
        layout,
        [
            {**segment, "state": "SEALED", "end_offsets": dict(end_offsets)}
            if segment["id"] == segment_id
            else segment
            for segment in layout["segments"]
        ],
    )


def with_compacted(layout: Layout, rewritten: Sequence[Rewritten], now_ms: int) -> Layout:
    """Sealed segments have other files, with the same offsets.

    Raises:
        LayoutChanged: one of them is gone, or another compaction came first.
    """
    changes = {one.segment_id: one for one in rewritten}
    segments = []
    for segment in layout["segments"]:
        one = changes.pop(segment["id"], None)
        if one is None:
            segments.append(segment)
            continue
        if segment["generation"] not in (one.generation, one.generation - 1):
            raise LayoutChanged(f"segment {segment['id']} was compacted by another")
        segments.append(
            {
                **segment,
                "generation": one.generation,
                "cleaned_ms": segment["cleaned_ms"] or now_ms,
                "tombstones": one.tombstones,
            }
        )
    if changes:
        raise LayoutChanged(f"segments {sorted(changes)} are gone")
    return _next(layout, segments)


def with_joined(layout: Layout, generations: Mapping[int, int], joined: Rewritten) -> Layout:
    """Compacted segments that follow each other have become one, which has the id and the children of the last.

    `generations` are those of the segments that were joined, the last one's included, in their order.

    Raises:
        LayoutChanged: one of them is gone, or has changed.
    """
    by_id = {segment["id"]: segment for segment in layout["segments"]}
    chain = [by_id[segment_id] for segment_id in generations if segment_id in by_id]
    if [(one["id"], one["generation"]) for one in chain] != list(generations.items()):
        raise LayoutChanged(f"not all of the segments {list(generations)} are there as they were")
    first, *_, last = chain
    assert last["id"] == joined.segment_id
    assert all(after["parents"] == [before["id"]] for before, after in pairwise(chain))
    one = {
        **last,
        "parents": first["parents"],
        "generation": joined.generation,
        "cleaned_ms": max(segment["cleaned_ms"] for segment in chain),
    }
    return _next(
        layout,
        [
            one if segment is last else segment
            for segment in layout["segments"]
            if segment is last or segment["id"] not in generations
        ],
    )


def without(layout: Layout, segment_ids: Set[int]) -> Layout:
    """These sealed segments are gone; their children still name them as parents.

    Raises:
        LayoutChanged: one of them is not there, or is not sealed.
    """
    going = [segment for segment in layout["segments"] if segment["id"] in segment_ids]
    if len(going) != len(segment_ids) or any(segment["state"] != "SEALED" for segment in going):
        raise LayoutChanged(f"not all of the segments {sorted(segment_ids)} are there and sealed")
    return _next(layout, [segment for segment in layout["segments"] if segment["id"] not in segment_ids])


def _next(layout: Layout, segments: list[dict[str, Any]]) -> Layout:
    return {"epoch": layout["epoch"] + 1, "segments": segments}


def _record(info: SegmentInfo) -> dict[str, Any]:
    return {
        "id": info.segment_id,
        "first": info.first,
        "last": info.last,
        "state": info.state,
        "parents": list(info.parents),
        "end_offsets": None,
        "generation": 0,
        "cleaned_ms": None,
        "tombstones": False,
    }
