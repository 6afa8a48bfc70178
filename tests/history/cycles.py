"""Transactions that append to lists and read them, checked for circles of dependencies, as Jepsen's Elle does.

Every value is appended once, so a read of a list tells which appends it saw and in which order. From the lists' order
follow the dependencies:

    ww  T1 appended to a key, T2 appended next            wr  T2 read the value that T1 had appended last
    rw  T1 read a key up to a value, T2 appended next

A circle of ww alone is G0 (Adya), of ww and wr G1c, with one rw or more a read that could not happen in any order of
the transactions. It holds where a key's writers exclude each other, as exactly-once loops do; transactions that merely
write to one log side by side may mix there, in Kafka too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.history.violations import (
    CYCLE,
    G0,
    G1A,
    G1B,
    G1C,
    LOST_UPDATE,
    NOT_A_PREFIX,
    Violation,
)

Name = tuple[str, int]
_PLAINEST = ("ww", "wr", "rw")
_KINDS = ((frozenset({"ww"}), G0), (frozenset({"ww", "wr"}), G1C), (frozenset({"ww", "wr", "rw"}), CYCLE))


@dataclass(slots=True)
class ListTransaction:
    """A committed transaction: per key what it read (None: it did not look) and what it appended after that."""

    name: Name
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    appends: dict[str, list[str]] = field(default_factory=dict)


def check_lists(
    lists: Mapping[str, Sequence[str]], transactions: Iterable[ListTransaction], aborted: Mapping[str, Name]
) -> list[Violation]:
    """`lists`: each key's values in their final order. `aborted`: who appended each value that came to nothing."""
    found: list[Violation] = []
    transactions = list(transactions)
    writer = {value: one.name for one in transactions for values in one.appends.values() for value in values}
    place = {key: {value: at for at, value in enumerate(values)} for key, values in lists.items()}
    edges: dict[Name, dict[Name, str]] = defaultdict(dict)

    def depends(first: Name | None, second: Name | None, kind: str) -> None:
        if first is not None and second is not None and first != second:
            # The plainest reason is kept: a circle that needs no read is the worse one.
            edges[first][second] = min(kind, edges[first].get(second, kind), key=_PLAINEST.index)

    for values in lists.values():
        for before, after in itertools.pairwise(values):
            depends(writer.get(before), writer.get(after), "ww")
    updates: dict[tuple[str, int], list[Name]] = defaultdict(list)
    for one in transactions:
        for key, seen in one.reads.items():
            order = lists.get(key, ())
            broken = [value for value in seen if value in aborted]
            if broken:
                found.append(Violation(G1A, f"{one.name} of {key}: {broken[0]} of {aborted[broken[0]]}"))
                continue
            if tuple(order[: len(seen)]) != tuple(seen):
                found.append(
                    Violation(NOT_A_PREFIX, f"{one.name} of {key}: {seen[-3:]}, it is {tuple(order[-3:])}")
                )
                continue
            if seen and len(seen) < len(order):
                last, following = writer.get(seen[-1]), writer.get(order[len(seen)])
                if last is not None and last == following and last != one.name:
                    found.append(Violation(G1B, f"{one.name} of {key}: {seen[-1]}, in the middle of {last}"))
            if seen:
                depends(writer.get(seen[-1]), one.name, "wr")
            if len(seen) < len(order):
                depends(one.name, writer.get(order[len(seen)]), "rw")
            if one.appends.get(key) and all(value in place.get(key, {}) for value in one.appends[key]):
                updates[key, len(seen)].append(one.name)
    for (key, at), names in updates.items():
        if len(names) > 1:
            found.append(Violation(LOST_UPDATE, f"{names} of {key} after {at} values"))
    for allowed, kind in _KINDS:
        circle = _circle(edges, allowed)
        if circle:
            found.append(Violation(kind, " -> ".join(map(str, circle))))
            break
    return found


def _circle(edges: Mapping[Name, Mapping[Name, str]], allowed: frozenset[str]) -> list[Name]:
    """The transactions of one circle over edges of these kinds; none: empty. Depth first, without recursion."""
    done: set[Name] = set()
    for start in edges:
        if start in done:
            continue
        path: list[Name] = [start]
        on_path = {start}
        stack = [iter(edges[start].items())]
        while stack:
            for name, kind in stack[-1]:
                if kind not in allowed or name in done:
                    continue
                if name in on_path:
                    return [*path[path.index(name) :], name]
                path.append(name)
                on_path.add(name)
                stack.append(iter(edges.get(name, {}).items()))
                break
            else:
                stack.pop()
                done.add(path[-1])
                on_path.discard(path.pop())
    return []
