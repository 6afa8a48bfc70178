"""Says aloud when the tests of this folder cannot run."""

import importlib.util
import os

from tests.support.left_out import leave_out
from tests.support.toolchains import HEADING


def test_what_the_spark_tests_need_is_installed() -> None:
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("SEALOG_REQUIRE_TOOLCHAINS") != "1":
        leave_out(HEADING, f"no {', '.join(missing)}: nothing of tests/spark can be tested")
    assert not missing, "pip install -e '.[spark]'"
