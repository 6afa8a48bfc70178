"""One broker and one small Spark session for all tests here: a session takes seconds to start.

Without Java or PySpark these tests are left out, and listed; under SEALOG_REQUIRE_TOOLCHAINS=1 they fail.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import CHECKOUT, BrokerProcess
from tests.support.toolchains import require_program

NEEDED = ("pyspark", "pyarrow", "pandas")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]

# Without them nothing here can even be imported; one test stays and says so.
collect_ignore_glob: list[str] = []
if MISSING:
    collect_ignore_glob = [
        path.name for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_spark_is_here.py"
    ]
else:
    from pyspark.sql import SparkSession

    from bench.systems.spark import connector_jars
    from tests.spark.spark_world import Topics, make_session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a run of several processes, what shares the session is in one of them."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("spark") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    require_program("java", "Spark cannot be tested")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    # The stock connector's jars are there from the start where they can be got: its tests share this session.
    jars = ",".join(map(str, connector_jars())) if shutil.which("mvn") else ""
    session = make_session("local[2,4]", tmp_path_factory.mktemp("warehouse"), spark__jars=jars)
    yield session
    session.stop()


@pytest.fixture
def topics(broker: BrokerProcess) -> "Iterator[Topics]":
    with Topics(broker.address) as topics:
        yield topics


@pytest.fixture
def sealog(broker: BrokerProcess) -> Callable[..., dict[str, str]]:
    """The options that every source and sink needs, and more: sealog(subscribe="t")."""

    def options(**more: object) -> dict[str, str]:
        return {"kafka.bootstrap.servers": broker.address} | {
            name: str(value) for name, value in more.items()
        }

    return options
