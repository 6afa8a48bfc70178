"""What every run says at its end, whichever tests it ran."""

import pytest

from tests.support.left_out import SECTIONS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for heading, lines in SECTIONS.items():
        terminalreporter.section(heading, sep="!")
        for line in lines:
            terminalreporter.write_line(line)
