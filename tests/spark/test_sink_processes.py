"""The part of the sink's failure matrix that takes drivers and executors of their own: they are really killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.faults import FaultySource
from tests.spark.sink_world import PARTITIONS, Watcher, numbers_seen, run, stream
from tests.spark.spark_world import Topics, wait_until
from tests.support.broker_process import CHECKOUT, BrokerProcess, free_port
from tests.support.toolchains import require_program

DRIVER_TIMEOUT_S = 900.0

pytestmark = pytest.mark.timeout(3_000)
SMALL_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Driver:
    """A driver's process, its output in a file."""

    def __init__(
        self, folder: Path, queries: list[dict[str, object]], master: str = "local[2]", **conf: str
    ) -> None:
        require_program("java", "Spark cannot be tested")
        self.log = folder / "driver.log"
        orders = {"master": master, "conf": conf, "folder": str(folder), "queries": queries}
        python_path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", json.dumps(orders)],
                cwd=CHECKOUT,
                env=os.environ | {"PYTHONPATH": python_path, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> bool:
        """Whether all queries ended well. However it ended, nothing of it is left."""
        try:
            return self.process.wait(DRIVER_TIMEOUT_S) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3_000:]


def query(
    broker: BrokerProcess,
    source: str,
    target: str,
    folder: Path,
    fault: str,
    *,
    tasks: int = 2,
    **options: str,
) -> dict[str, object]:
    return {
        "address": broker.address,
        "source": source,
        "target": target,
        "folder": str(folder),
        "fault": fault,
        "tasks": tasks,
        "options": options,
    }


@pytest.fixture
def ends(topics: Topics) -> tuple[str, str]:
    source, target = topics.create(1, "in"), topics.create(PARTITIONS, "out")
    topics.numbers(source, range(100))
    return source, target


def test_the_driver_is_killed_inside_commit_and_restarted_with_other_partitions(
    broker: BrokerProcess, topics: Topics, ends: tuple[str, str], tmp_path: Path
) -> None:
    """Before the commit of the first batch, then behind the commit of the first; three drivers, 2, 3 and 1 tasks."""
    source, target = ends
    topics.numbers(source, range(100, 200))
    with Watcher(broker.address, target):
        for fault, tasks, seen in (
            ("kill-driver-before-commit", 2, range(0)),
            ("kill-driver-after-commit", 3, range(100)),
        ):
            driver = Driver(tmp_path, [query(broker, source, target, tmp_path, fault, tasks=tasks)])
            assert not driver.wait(), driver.tail()
            assert (tmp_path / "fault").exists(), driver.tail()
            (tmp_path / "fault").unlink()
            assert numbers_seen(topics, target) == [*seen]
        driver = Driver(tmp_path, [query(broker, source, target, tmp_path, "", tasks=1)])
        assert driver.wait(), driver.tail()
    assert numbers_seen(topics, target) == [*range(200)]


def test_two_drivers_on_one_checkpoint(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, ends: tuple[str, str], tmp_path: Path
) -> None:
    """The first has written batch 0 and is about to commit; the second comes and gets through before it."""
    source, target = ends
    spark.dataSource.register(FaultySource)
    with Watcher(broker.address, target):
        first = Driver(tmp_path, [query(broker, source, target, tmp_path, "hold-commit")])
        wait_until("the first driver is in its commit", (tmp_path / "fault").exists)
        run(stream(spark, broker.address, source), broker.address, target, tmp_path)
        assert numbers_seen(topics, target) == [*range(100)]
        (tmp_path / "fault.go").touch()
        first.wait()
    assert numbers_seen(topics, target) == [*range(100)]


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A standalone cluster: a master, and two workers that count as two hosts, which speculation wants."""
    java = require_program("java", "Spark cannot be tested")
    home = Path(pyspark.__file__).parent
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",  # what bin/load-spark-env.sh would find
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")]),
    }
    base = [java, *SMALL_JAVA, "-cp", f"{home}/jars/*"]
    deploy = "org.apache.spark.deploy"
    commands = [
        [*base, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    ]
    for number in (2, 3):
        options = ["--host", f"127.0.0.{number}", "-c", "1", "-m", "600m", "--webui-port", "0"]
        commands.append(
            [*base, f"{deploy}.worker.Worker", *options, "-d", str(folder / f"w{number}"), master]
        )
    with ExitStack() as stack:
        log = stack.enter_context(open(folder / "cluster.log", "ab"))
        for command in commands:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.kill)
        wait_until(
            "both workers are registered",
            lambda: (folder / "cluster.log").read_text(errors="replace").count("Registering worker") == 2,
            DRIVER_TIMEOUT_S,
        )
        yield master


def test_an_executor_is_killed_and_a_slow_task_gets_a_speculative_twin(
    broker: BrokerProcess, topics: Topics, ends: tuple[str, str], tmp_path: Path
) -> None:
    source, target = ends
    second = topics.create(PARTITIONS, "out")
    folders = [tmp_path / name for name in ("executor", "twin")]
    conf = {
        "spark__executor__memory": "512m",
        "spark__executor__cores": "1",
        "spark__executor__extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark__speculation": "true",
        "spark__speculation__interval": "100ms",
        "spark__speculation__multiplier": "1.5",
        "spark__speculation__quantile": "0.5",
        "spark__speculation__minTaskRuntime": "1s",
    }
    with standalone(tmp_path) as master, Watcher(broker.address, target), Watcher(broker.address, second):
        queries = [
            query(broker, source, target, folders[0], "kill-executor"),
            query(broker, source, second, folders[1], "twin"),
        ]
        driver = Driver(tmp_path, queries, master, **conf)
        assert driver.wait(), driver.tail()
        assert all((folder / "fault").exists() for folder in folders)
        assert numbers_seen(topics, target) == [*range(100)]
        assert numbers_seen(topics, second) == [*range(100)]
