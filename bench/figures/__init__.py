"""Figures of sealog alone, for docs/performance.md. Each module has `run(folder, **size)`, SHORT, and sizes TINY (smoke
tests), QUICK and FULL."""

from __future__ import annotations

from types import ModuleType

from bench.figures import commits, failover, fetch_sealed, many_topics, ranges, restart, splits

FIGURES: dict[str, ModuleType] = {
    "many-topics": many_topics,
    "splits": splits,
    "ranges": ranges,
    "fetch-sealed": fetch_sealed,
    "commits": commits,
    "failover": failover,
    "restart": restart,
}
