"""Programs of other languages that some tests need.

Where one is missing its tests are left out, and listed as such; under SEALOG_REQUIRE_TOOLCHAINS=1 they fail.
"""

import os
import shutil
from typing import NoReturn

import pytest

from tests.support.left_out import leave_out

HEADING = "left out: a program is missing here"


def require_program(name: str, purpose: str) -> str:
    """The path of a program; the test that is running does not go on without it."""
    found = shutil.which(name)
    if found is None:
        missing_toolchain(name, purpose)
    return found


def missing_toolchain(name: str, purpose: str) -> NoReturn:
    """The test that is running cannot go on: left out loudly, or a failure."""
    message = f"no {name}: {purpose}"
    if os.environ.get("SEALOG_REQUIRE_TOOLCHAINS") == "1":
        pytest.fail(message)
    leave_out(HEADING, message)
