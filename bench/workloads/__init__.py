"""The workloads of the comparison, in the order of the report. Each has `run(setting, **size)` and sizes TINY (smoke
tests), QUICK and FULL."""

from __future__ import annotations

from types import ModuleType

from bench.workloads import (
    bulk,
    cluster,
    concurrent,
    end_to_end,
    footprint,
    growth,
    latency,
    link,
    price,
    spark,
)

WORKLOADS: dict[str, ModuleType] = {
    "latency": latency,
    "price": price,
    "concurrent": concurrent,
    "end-to-end": end_to_end,
    "bulk": bulk,
    "footprint": footprint,
    "growth": growth,
    "link": link,
    "cluster": cluster,
    "spark": spark,
}
