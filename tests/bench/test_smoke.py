"""Every workload and figure of bench/ runs, at the smallest size, and reports what it promises."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

from bench import render
from bench.figures import FIGURES
from bench.load import JavaLoad
from bench.report import Result
from bench.setting import KAFKA, SEALOG, Setting
from bench.workloads import WORKLOADS
from tests.support.kafka_process import require_kafka
from tests.support.shim import require

BESIDE_KAFKA = ("end-to-end",)
"""Beside Kafka this alone: its start is what takes the time."""

IN_TESTS_SPARK = "spark"
"""Where a session is that it can share."""


@pytest.fixture(scope="module")
def load() -> Iterator[JavaLoad]:
    """One JVM for all: its start is most of what a workload of this size takes."""
    require_kafka()
    with JavaLoad() as load:
        yield load


@pytest.fixture
def share(load: JavaLoad, monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], None]:
    return lambda module: monkeypatch.setattr(module, "JavaLoad", lambda: nullcontext(load))


def check(result: Result) -> None:
    assert result.tables
    for table in result.tables:
        assert table.rows
        for row in table.rows:
            assert len(row) == len(table.columns)
    json.dumps(result.as_json())
    assert result.title in render.markdown(result)
    page = render.html_page("a page", {"machine": "this"}, "a command", [result])
    assert page.count("<svg") == len(result.plots)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != IN_TESTS_SPARK])
def test_a_workload(name: str, tmp_path: Path, share: Callable[[ModuleType], None]) -> None:
    require("slowflush")
    workload = WORKLOADS[name]
    share(workload)
    systems = (SEALOG, KAFKA) if name in BESIDE_KAFKA else (SEALOG,)
    result = workload.run(Setting(tmp_path, systems, lambda _: None), **workload.TINY)
    check(result)
    said = {str(cell) for table in result.tables for row in [table.columns, *table.rows] for cell in row}
    assert any(SEALOG in cell for cell in said)
    numbers = [
        cell for table in result.tables for row in table.rows for cell in row if isinstance(cell, float)
    ]
    assert any(number > 0 for number in numbers if not math.isnan(number))
    assert {"QUICK", "FULL"} <= set(vars(workload))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure(name: str, tmp_path: Path, share: Callable[[ModuleType], None]) -> None:
    require("slowflush")
    figure = FIGURES[name]
    if hasattr(figure, "JavaLoad"):
        share(figure)
    result = figure.run(tmp_path, **figure.TINY)
    check(result)
    page = tmp_path / "page.md"
    page.write_text("# A page\n", encoding="utf-8")
    render.put_section(page, name, render.markdown(result))
    once = page.read_text(encoding="utf-8")
    render.put_section(page, name, render.markdown(result))
    assert page.read_text(encoding="utf-8") == once
    assert once.startswith("# A page\n")
    assert result.title in once


def test_kept_data_is_written_once(tmp_path: Path, share: Callable[[ModuleType], None]) -> None:
    """A second run of `restart` finds what the first one wrote, and adds nothing."""
    restart = FIGURES["restart"]
    share(restart)
    note = tmp_path / "full.written.json"
    restart.run(tmp_path, **restart.TINY)
    written = json.loads(note.read_text())
    assert written["megabytes"] == 1
    assert written["transactions"] >= 20
    restart.run(tmp_path, **restart.TINY)
    assert json.loads(note.read_text()) == written
