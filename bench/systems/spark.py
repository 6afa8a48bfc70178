"""A Spark session to measure in, and what Spark's own Kafka connector needs. Needs the extra `spark`, java and mvn."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.systems.java import CACHE, jars
from bench.systems.server_process import CHECKOUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
SETTINGS = {"spark.driver.memory": "2g", "spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
"""All else is Spark's default."""


def connector_jars() -> list[Path]:
    """Spark's Kafka connector and what it needs beside PySpark, fetched once."""
    pom = CHECKOUT / "tests" / "support" / "spark" / "pom.xml"
    return sorted(jars(pom, CACHE / "spark-kafka").glob("*.jar"))


@contextmanager
def session() -> Iterator[SparkSession]:
    """A session with the Kafka connector, whose Python workers find this checkout."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master(MASTER).appName("sealog bench")
        settings = SETTINGS | {
            "spark.jars": ",".join(map(str, connector_jars())),
            "spark.sql.warehouse.dir": folder,
            "spark.ui.showConsoleProgress": "false",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()
