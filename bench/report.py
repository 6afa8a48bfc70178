"""What a benchmark found: tables, targets reached or not, plots. Plain data; bench/render.py makes pages of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | float | int | None


@dataclass(slots=True)
class Table:
    """Rows of cells below their columns. Numbers are rounded only when shown."""

    title: str
    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)


@dataclass(slots=True)
class Target:
    """What was to be reached, and what was measured: at least or at most the limit."""

    text: str
    value: float
    limit: float
    at_least: bool

    @property
    def reached(self) -> bool:
        if math.isnan(self.value):
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(slots=True)
class Plot:
    """Series of (x, y) points under one pair of axes."""

    title: str
    x: str
    y: str
    series: dict[str, list[tuple[float, float]]]
    log_x: bool = False
    log_y: bool = False
    points: bool = False
    """Single points, not lines."""


@dataclass(slots=True)
class Result:
    """One workload or figure. `raw` is whatever the page leaves out, for the JSON file."""

    name: str
    title: str
    text: str
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {
            "targets": [{**dataclasses.asdict(target), "reached": target.reached} for target in self.targets]
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def shown(cell: Cell) -> str:
    """A cell as people read it: three significant digits."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        if math.isnan(cell):
            return "-"
        if abs(cell) >= 100:
            return f"{cell:,.0f}"
        return f"{cell:.2f}" if abs(cell) < 10 else f"{cell:.1f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return cell
