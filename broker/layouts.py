"""The records under `/layout/`: which segments a topic has, and of which partitions.

A record holds an epoch that counts its changes and the segments of all ranges, parents before children. Every change
here gives a new record; the old one stays as it was, so that a conditional write can be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from storage.layout import RollEvent, SegmentInfo

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
        )
        for record in layout["segments"]
    ]


def with_range(layout: Layout, first_segment: SegmentInfo) -> Layout:
    """One more range, of partitions that no segment had before."""
    assert all(first_segment.first > segment["last"] for segment in layout["segments"])
    return _next(layout, [*layout["segments"], _record(first_segment)])


def with_child(layout: Layout, event: RollEvent) -> Layout:
    """The child takes the parent's place as the tail. The parent stays ACTIVE until its footer is durable."""
    segments = layout["segments"]
    parent = next(segment for segment in segments if segment["id"] == event.parent_id)
    child = SegmentInfo(event.child_id, parent["first"], parent["last"], "ACTIVE", (event.parent_id,))
    return _next(layout, [*segments, _record(child)])


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
    }
