"""The examples of docs/spark.md, run as they stand there, one after the other."""

import re
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_sealog import options, sink_options
from pyspark_sealog.segment_reader import SEGMENT_OPTIONS
from pyspark_sealog.settings import _KNOWN
from tests.spark.spark_world import sealed
from tests.support.broker_process import CHECKOUT, BrokerProcess

GUIDE = (CHECKOUT / "docs" / "spark.md").read_text(encoding="utf-8")


def test_the_examples_run(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(examples) >= 5
    names: dict[str, object] = {
        "checkpoint": str(tmp_path / "checkpoint"),
        "data": str(broker.data),
        "table": str(tmp_path / "table"),
    }
    for number, example in enumerate(examples):
        code = example.replace("127.0.0.1:9092", broker.address)
        if "segments" in code:
            sealed(broker, "orders")
        exec(compile(code, f"docs/spark.md, example {number + 1}", "exec"), names)


def test_every_option_is_in_the_guide() -> None:
    named = set(re.findall(r"`([\w.]+)`", GUIDE))
    known = {*options._SOURCE, *SEGMENT_OPTIONS, *sink_options._SINK, *_KNOWN} - {"kafka.security.protocol"}
    assert known - named == set()


def test_the_jars_are_those_that_the_tests_use() -> None:
    pom = (CHECKOUT / "tests" / "support" / "spark" / "pom.xml").read_text(encoding="utf-8")
    fetched = re.findall(
        r"<groupId>([\w.]+)</groupId>\s*<artifactId>([\w.-]+)</artifactId>\s*<version>([\d.]+)<", pom
    )
    for parts in fetched[1:]:
        assert ":".join(parts) in GUIDE
