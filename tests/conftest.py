"""What every run says at its end, whichever tests it ran and in however many processes."""

import pytest
from hypothesis import settings

from tests.clients.feature_run import FeatureRun
from tests.support.left_out import SECTIONS

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("sealog", deadline=None)
settings.load_profile("sealog")


class FromWorkers:
    """Of a run in several processes (pytest-xdist): what each process left out is known to itself alone."""

    def pytest_testnodedown(self, node: object) -> None:
        for heading, lines in getattr(node, "workeroutput", {}).get("left_out", {}).items():
            SECTIONS.setdefault(heading, []).extend(lines)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "feature(name, client): what of a client a scenario shows")
    config.pluginmanager.register(FeatureRun())
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
