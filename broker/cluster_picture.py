"""The state of a cluster drawn for a terminal, out of the answers of all nodes that gave one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from wire.cluster import Node, Range, Response

LEADS, FOLLOWS, BEHIND, CATCHING_UP, NOT_HERE = "●", "○", "◐", "◌", " "
MOST_RANGES = 30


@dataclass(frozen=True, slots=True)
class Seen:
    """What all answers together say."""

    cluster_id: str
    controller: int
    nodes: tuple[Node, ...]
    silent: frozenset[int]
    """Nodes that did not answer the one who asks."""
    ranges: tuple[Range, ...]
    plan: tuple[str, ...]


def merge(answers: Mapping[int, Response | None]) -> Seen:
    """Of each node its answer, or None. A range is as its leader has it, else as the newest epoch says.

    Nodes and plan are as the controller has them, if it answered. There must be an answer.
    """
    given = {number: answer for number, answer in answers.items() if answer is not None}
    first = next(iter(given.values()))
    best = next((one for one in given.values() if one.controller == one.node_id), first)
    ranges: dict[str, Range] = {}
    for number, answer in given.items():
        for one in answer.ranges:
            known = ranges.get(one.name)
            if known is None or (one.epoch, one.leader == number) > (known.epoch, bool(known.lag)):
                ranges[one.name] = one
    return Seen(
        best.cluster_id,
        best.controller,
        best.nodes,
        frozenset(set(answers) - set(given)),
        tuple(ranges.values()),
        best.plan,
    )


def draw(seen: Seen, *, every_range: bool = False) -> list[str]:
    """Lines of text: a table of nodes, one of ranges over nodes, and what is not as it should be."""
    led = [one for one in seen.ranges if one.leader >= 0]
    head = (
        f"cluster {seen.cluster_id}: {_count(len(seen.nodes), 'node')}, {_count(len(seen.ranges), 'range')}, "
        f"{'node ' + str(seen.controller) if seen.controller >= 0 else 'no node'} takes changes"
    )
    lines = [head, "", *_nodes(seen), "", *_ranges(seen, every_range)]
    silent = sorted(seen.silent)
    lines += [f"node {number} does not answer" for number in silent]
    if len(led) < len(seen.ranges):
        lines.append(f"{_count(len(seen.ranges) - len(led), 'range')} without a leader")
    return lines


def _nodes(seen: Seen) -> list[str]:
    rows = [("node", "address", "rack", "state", "since", "leads", "holds", "behind")]
    for node in seen.nodes:
        number = node.id
        leads = sum(one.leader == number for one in seen.ranges)
        holds = sum(number in one.replicas + one.learners for one in seen.ranges)
        behind = sum(one.lag.get(number, 0) for one in seen.ranges)
        state = node.state.lower() + (", away" if node.away or number in seen.silent else "")
        since = datetime.fromtimestamp(node.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        rows.append(
            (
                str(number),
                node.address or "-",
                node.rack or "-",
                state,
                since if node.since_ms else "-",
                str(leads),
                str(holds),
                f"{behind:,}",
            )
        )
    return _table(rows, right=(0, 5, 6, 7))


def _ranges(seen: Seen, every_range: bool) -> list[str]:
    numbers = sorted({node.id for node in seen.nodes} | {n for one in seen.ranges for n in one.replicas})
    ordered = sorted(seen.ranges, key=lambda one: (not _ill(one, seen), one.name))
    shown = ordered if every_range else ordered[:MOST_RANGES]
    rows = [("range", "epoch", *map(str, numbers), "")]
    for one in shown:
        marks = [_mark(one, number) for number in numbers]
        notes = [f"node {number} is {lag:,} behind" for number, lag in sorted(one.lag.items()) if lag]
        rows.append((one.name, str(one.epoch), *marks, ", ".join(notes)))
    lines = _table(rows, right=(1,))
    if len(shown) < len(ordered):
        lines.append(f"... and {len(ordered) - len(shown)} more (--all)")
    legend = f"{LEADS} leads   {FOLLOWS} follows   {BEHIND} follows, behind   {CATCHING_UP} catching up"
    return [*lines, "", legend]


def _ill(one: Range, seen: Seen) -> bool:
    return (
        one.leader < 0 or bool(one.learners) or any(one.lag.values()) or bool(seen.silent & set(one.replicas))
    )


def _mark(one: Range, number: int) -> str:
    if number in one.learners:
        return CATCHING_UP
    if number not in one.replicas:
        return NOT_HERE
    if number == one.leader:
        return LEADS
    return BEHIND if one.lag.get(number, 0) else FOLLOWS


def _table(rows: Sequence[Sequence[str]], right: Sequence[int]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
