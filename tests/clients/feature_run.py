"""The run's part in the table of clients and features: gather, print, and hold docs/compatibility.md to it.

A plugin of its own, since the process that sums a run up need not be one that runs tests (pytest-xdist).
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

from tests.clients import features
from tests.support.broker_process import CHECKOUT

DOCUMENT = CHECKOUT / "docs" / "compatibility.md"
SHOWN = CHECKOUT / ".cache" / "clients" / "features.md"
"""What `python -m docs.client_table` prints for the document."""


class FeatureRun:
    def __init__(self) -> None:
        self.table = features.Table()
        self.whole = False
        """Whether every scenario that shows a feature is a part of this run."""
        self._deselected = False
        self._wrong: list[str] = []

    # -- where tests run

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._deselected = self._deselected or any(item.get_closest_marker("feature") for item in items)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        collected = {item.path for item in items}
        every = {
            path for path in features.HERE.glob("test_*.py") if re.search(r"\bshows\b", path.read_text())
        }
        parts = any("::" in each for each in config.args)
        self.whole = every <= collected and not parts and not self._deselected

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        features.note(self.table, item, report)
        return report

    # -- where the run is summed up

    def pytest_testnodedown(self, node: Any) -> None:
        came = getattr(node, "workeroutput", {})
        for client, feature, outcomes in came.get("features", ()):
            self.table.outcomes[client, feature].update(outcomes)
        self.whole = self.whole or came.get("all_scenarios", False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            found = [[*key, sorted(outcomes)] for key, outcomes in self.table.outcomes.items()]
            session.config.workeroutput |= {"features": found, "all_scenarios": self.whole}
            return
        names = features.client_names()
        if not any(map(self.table.ran, names)):
            return
        features.declared(self.table)
        on_kafka = "SEALOG_TEST_BOOTSTRAP" in os.environ and os.environ.get("SEALOG_TEST_BROKER") != "sealog"
        if not self.whole or on_kafka:
            return
        if all(map(self.table.ran, names)):
            SHOWN.parent.mkdir(parents=True, exist_ok=True)
            SHOWN.write_text(features.markdown(self.table.rows(names)))
        self._wrong = list(features.disagreements(self.table, DOCUMENT.read_text(encoding="utf-8")))
        if self._wrong and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        versions = features.versions()
        shown = [name for name in features.client_names() if self.table.ran(name)]
        if not shown:
            return
        terminalreporter.section("clients and what they showed")
        terminalreporter.write_line(", ".join(f"{name} {versions[name]}" for name in shown))
        width = max(map(len, features.FEATURES))
        terminalreporter.write_line(" ".join([" " * width, *(f"{name:<15}" for name in shown)]))
        for feature, *cells in self.table.rows(shown):
            terminalreporter.write_line(" ".join([f"{feature:<{width}}", *(f"{cell:<15}" for cell in cells)]))
        if self._wrong:
            terminalreporter.section(
                "docs/compatibility.md says otherwise: python -m docs.client_table", sep="!"
            )
        for line in self._wrong:
            terminalreporter.write_line(line)
