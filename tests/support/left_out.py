"""What a run leaves out, said aloud: skipped, never counted as passed, and listed at the end of the run.

`tests/conftest.py` prints the list. Skips that nobody would miss in a summary line use this.
"""

import os
from typing import NoReturn

import pytest

SECTIONS: dict[str, list[str]] = {}
"""By heading: one line per test that was left out, and why."""


def leave_out(heading: str, reason: str) -> NoReturn:
    """Skip the test that is running."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "before the first test").rsplit(" ", 1)[0]
    SECTIONS.setdefault(heading, []).append(f"{test}: {reason}")
    pytest.skip(f"{heading}: {reason}")
