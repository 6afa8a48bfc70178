"""pipeline/declarative, by Spark's own runner: sealog as a source and as a sink of a declarative pipeline."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.spark.spark_world import Topics
from tests.support.broker_process import CHECKOUT, BrokerProcess
from tests.support.toolchains import missing_toolchain, require_program
from wire.records import Record

EXAMPLE = CHECKOUT / "pipeline" / "declarative"
SPARK_HOME = Path(pyspark.__file__).parent


def test_the_example_runs_and_goes_on_where_it_was(
    tmp_path: Path, broker: BrokerProcess, topics: Topics
) -> None:
    require_program("java", "Spark cannot be tested")
    if importlib.util.find_spec("grpc_status") is None:
        missing_toolchain("pyspark[pipelines]", "declarative pipelines cannot be tested")
    here = tmp_path / "pipeline"
    shutil.copytree(EXAMPLE, here)
    spec = here / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("storage-root", f"file://{tmp_path}/storage"))
    for topic in ("declared-orders", "declared-large"):
        topics.create_topic(topic, 2)
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(CHECKOUT),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SEALOG_BOOTSTRAP": broker.address,
    }
    command = [str(SPARK_HOME / "bin" / "spark-pipelines"), "run", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.driver.memory=1g"]
    expected = []
    for turn in range(2):
        for number in range(10 * turn, 10 * turn + 10):
            order = {"id": number, "customer": "ab"[number % 2], "amount": float(number)}
            topics.append("declared-orders", [Record(None, json.dumps(order).encode())], number % 2)
            expected += [number] if number > 5 else []
        run = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=400)
        assert run.returncode == 0, run.stdout + run.stderr
        large = [
            json.loads(one.value or b"") for part in topics.snapshot("declared-large", 2) for one in part
        ]
        assert sorted(one["id"] for one in large) == expected, "each once, over both runs"
