"""What every run says at its end, whichever tests it ran and in however many processes."""

import pytest

from tests.support.left_out import SECTIONS


class FromWorkers:
    """Of a run in several processes (pytest-xdist): what each process left out is known to itself alone."""

    def pytest_testnodedown(self, node: object) -> None:
        for heading, lines in getattr(node, "workeroutput", {}).get("left_out", {}).items():
            SECTIONS.setdefault(heading, []).extend(lines)


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("dsession"):
        config.pluginmanager.register(FromWorkers())


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = SECTIONS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for heading, lines in SECTIONS.items():
        terminalreporter.section(heading, sep="!")
        for line in sorted(lines):
            terminalreporter.write_line(line)
