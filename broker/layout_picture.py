"""The segments of a topic drawn for a terminal: partitions from left to right, time from top to bottom.

A segment is a bar over its partitions; it continues those above it in the same columns. So a roll is a bar below a bar
of the same width, a split several bars below one, a merge one below several.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from wire.layouts import Response, Segment

SEALED, ACTIVE, HANDED_OVER = "░", "█", "▒"
MIN_BAR, MAX_BAR = 24, 64


def draw(topic: str, response: Response, width: int = 100) -> list[str]:
    """Lines of text."""
    segments = response.segments
    partitions = max(last for _, last in response.ranges) + 1
    continued = {parent for segment in segments for parent in segment.parents}
    bar = max(MIN_BAR, min(MAX_BAR, width - 56))
    head = (
        f"{topic}: {_count(partitions, 'partition')} in {_count(len(response.ranges), 'range')}, "
        f"{_count(len(segments), 'segment')}, layout epoch {response.epoch}"
    )
    title = f"{'segment':>8}  {_scale(partitions, bar)}  {'state':<7} {'size':>9} {'records':>10} {'open':>5}  since"
    lines = [head, "", title]
    lines += [_line(segment, segment.id in continued, partitions, bar) for segment in segments]
    lines += ["", f"{ACTIVE} active   {HANDED_OVER} handed over, not sealed yet   {SEALED} sealed"]
    lines.append("open: transactions with records there that have no outcome yet")
    return lines


def _line(segment: Segment, continued: bool, partitions: int, bar: int) -> str:
    left, right = segment.first * bar // partitions, (segment.last + 1) * bar // partitions
    if segment.state == "SEALED":
        fill, state = SEALED, "sealed"
    elif continued:
        fill, state = HANDED_OVER, "full"
    else:
        fill, state = ACTIVE, "active"
    label = f"{segment.first}" if segment.first == segment.last else f"{segment.first}-{segment.last}"
    width = max(right - left, 1)
    inner = f" {label} ".center(width, fill) if width >= len(label) + 2 else fill * width
    drawn = (" " * left + inner).ljust(bar)
    since = datetime.fromtimestamp(segment.created_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        f"{segment.id:>8}  {drawn}  {state:<7} {_size(segment.size_bytes):>9} {segment.records:>10,} "
        f"{segment.open or '':>5}  {since.removesuffix('+00:00')}Z"
    )


def _scale(partitions: int, bar: int) -> str:
    last = f"{partitions - 1}"
    return "0".ljust(bar - len(last)) + last if partitions > 1 else "0".ljust(bar)


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def plan(response: Response) -> Sequence[str]:
    """What the policy would do, a line per range or change."""
    lines = []
    for one in response.advice:
        where = f"{one.first}" if one.first == one.last else f"{one.first}-{one.last}"
        lines.append(f"{one.action:<6} {where:<9} {one.reason}")
    return lines
