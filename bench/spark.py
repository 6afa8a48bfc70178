"""`python -m bench.spark`: rows per second through Spark, sealog's own source and sink beside the Kafka connector.

One run, one session, one broker; every figure is the best of some turns, so that what is cold or disturbed falls out.
Needs the extra `spark`, Java and Maven.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.spark_world import Topics, connector_jars, make_session
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_process import KafkaProcess

PARTITIONS = 4


@contextmanager
def session() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory() as folder:
        spark = make_session("local[2]", Path(folder), spark__jars=",".join(map(str, connector_jars())))
        yield spark
        spark.stop()


def best(work: Callable[[], None], turns: int) -> float:
    """The shortest time of some turns, in seconds."""
    times = []
    for _ in range(turns):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


class Bench:
    def __init__(self, spark: SparkSession, rows: int, size_bytes: int, turns: int, folder: Path) -> None:
        self._spark, self._rows, self.turns, self._folder = spark, rows, turns, folder
        self._frame = spark.range(0, rows, 1, PARTITIONS).select(
            F.col("id").cast("string").alias("key"),
            F.rpad(F.sha2(F.col("id").cast("string"), 256), size_bytes, "x").alias("value"),
        )

    def read(self, format_: str, address: str, topic: str) -> tuple[float, float]:
        """Rows per second to nowhere, and to Parquet."""

        def frame() -> DataFrame:
            options = {"kafka.bootstrap.servers": address, "kafka.isolation.level": "read_committed"}
            return self._spark.read.format(format_).options(**options).option("subscribe", topic).load()

        nowhere = best(lambda: frame().write.format("noop").mode("overwrite").save(), self.turns)
        table = str(self._folder / format_)
        parquet = best(lambda: frame().write.mode("overwrite").parquet(table), self.turns)
        return self._rows / nowhere, self._rows / parquet

    def write(self, format_: str, address: str, topic: str, turns: int) -> float:
        options = {"kafka.bootstrap.servers": address, "topic": topic}
        seconds = best(
            lambda: self._frame.write.format(format_).options(**options).mode("append").save(), turns
        )
        return self._rows / seconds


@click.command()
@click.option("--rows", default=500_000, show_default=True)
@click.option("--size", default=1_000, show_default=True, help="Bytes in a value.")
@click.option("--turns", default=3, show_default=True)
@click.option("--kafka/--no-kafka", default=True, show_default=True, help="Apache Kafka beside sealog.")
def main(rows: int, size: int, turns: int, kafka: bool) -> None:
    """Rows per second of source and sink."""
    with session() as spark, tempfile.TemporaryDirectory() as folder:
        bench = Bench(spark, rows, size, turns, Path(folder))
        click.echo(f"{rows:,} rows of {size} bytes, {PARTITIONS} partitions, best of {turns}; rows/s")
        click.echo(f"{'':28}{'source: noop':>14}{'Parquet':>12}{'sink':>12}")
        with BrokerProcess(Path(folder) / "sealog") as broker:
            for format_ in ("sealog", "kafka"):
                _measure(bench, format_, broker.address, f"format({format_}) on sealog")
        if kafka:
            with KafkaProcess(Path(folder) / "kafka") as server:
                _measure(bench, "kafka", server.address, "format(kafka) on Apache Kafka")


def _measure(bench: Bench, format_: str, address: str, name: str) -> None:
    topics = Topics(address)
    topics._checked = True  # Apache Kafka, too
    source, target = topics.create(PARTITIONS), topics.create(PARTITIONS)
    topics.close()
    bench.write("kafka", address, source, 1)
    nowhere, parquet = bench.read(format_, address, source)
    sink = bench.write(format_, address, target, bench.turns)
    click.echo(f"{name:28}{nowhere:14,.0f}{parquet:12,.0f}{sink:12,.0f}")


if __name__ == "__main__":
    main()
