"""9: Spark: sealog's own source and sink beside Spark's Kafka connector, and what a batch's commit costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import Result, Table, Target, percentile
from bench.setting import KAFKA, SEALOG, Samples, Setting, alternate, ratio
from bench.systems.server_process import ServerProcess
from bench.systems.spark import MASTER, SETTINGS, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Shape = tuple[int, int]
"""Tasks of a batch, and partitions that each of them writes to."""

PARTITIONS = 4
FLUSH_DELAY_MS = 5.0
_SHAPES: tuple[Shape, ...] = tuple((tasks, partitions) for tasks in (1, 4, 16) for partitions in (1, 12, 48))
TINY = {"rows": 300, "rounds": 1, "warmup": 0, "shapes": ((1, 1), (2, 3)), "commits": 1, "delays_ms": (1.0,)}
QUICK = {
    "rows": 100_000,
    "rounds": 3,
    "warmup": 1,
    "shapes": ((1, 1), (16, 1), (1, 48), (16, 48)),
    "commits": 5,
    "delays_ms": (0.0, FLUSH_DELAY_MS),
}
FULL = {
    "rows": 500_000,
    "rounds": 3,
    "warmup": 1,
    "shapes": _SHAPES,
    "commits": 5,
    "delays_ms": (0.0, FLUSH_DELAY_MS),
}

OURS = "sealog's own on sealog"
CONNECTOR = {SEALOG: "connector on sealog", KAFKA: "connector on Kafka"}


def run(
    setting: Setting,
    *,
    rows: int,
    rounds: int,
    warmup: int,
    shapes: Sequence[Shape],
    commits: int,
    delays_ms: Sequence[float],
) -> Result:
    settings = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
    result = Result(
        "spark",
        "9. Spark",
        f"PySpark {version('pyspark')} ({MASTER}, {settings}), its Kafka connector of the same version with its "
        f"defaults, pyarrow {version('pyarrow')}. {rows:,} rows of 1 KB, half of it random, {PARTITIONS} partitions, "
        f"read_committed, no compression; thousands of rows/s, medians of {rounds} rounds after {warmup} that warm up, "
        "worst and best in brackets. The connector's sink is at least once, sealog's exactly once. The rows to be "
        "written come from a Parquet table; reading it to nowhere is the limit of any sink.",
    )
    with session() as spark:
        table = _make_input(spark, setting.folder / "input", rows)
        result.tables.append(_throughput(setting, spark, table, rows, rounds, warmup, result))
        for delay_ms in delays_ms:
            result.tables.append(_commits(setting, spark, shapes, commits, delay_ms, result))
    return result


def _make_input(spark: SparkSession, path: Path, rows: int) -> Path:
    from pyspark.sql import functions as F

    hashes = [F.sha2(F.concat(F.lit(f"{n} "), F.col("id").cast("string")), 256) for n in range(8)]
    filler = F.lit(" it goes on with what does not change " * 13)
    (
        spark.range(0, rows, 1, PARTITIONS)
        .select(
            F.col("id").cast("string").alias("key"),
            F.rpad(F.concat(*hashes, filler), 1000, "x").alias("value"),
        )
        .write.parquet(str(path))
    )
    return path


def _options(system: ServerProcess) -> dict[str, str]:
    return {"kafka.bootstrap.servers": system.address}


def _create(system: ServerProcess, topic: str, partitions: int) -> None:
    from pyspark_sealog.cluster import Cluster
    from pyspark_sealog.settings import client_settings

    with Cluster(client_settings(_options(system))) as cluster:
        cluster._checked = True  # Apache Kafka, too
        cluster.create_topic(topic, partitions)


def _throughput(
    setting: Setting, spark: SparkSession, table: Path, rows: int, rounds: int, warmup: int, result: Result
) -> Table:
    def read(name: str) -> DataFrame:
        system, format_ = ways[name]
        options = _options(system) | {"kafka.isolation.level": "read_committed", "subscribe": "in"}
        return spark.read.format(format_).options(**options).load()

    def to_nowhere(name: str) -> None:
        read(name).write.format("noop").mode("overwrite").save()

    def to_parquet(name: str) -> None:
        read(name).write.mode("overwrite").parquet(str(setting.folder / "out"))

    def sink(name: str) -> None:
        system, format_ = ways[name]
        rows_ = spark.read.parquet(str(table)).write.format(format_).options(**_options(system))
        rows_.option("topic", f"out-{format_}").mode("append").save()

    works: Mapping[str, Callable[[str], None]] = {
        "source to noop": to_nowhere,
        "source to Parquet": to_parquet,
        "sink": sink,
    }
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        systems = {
            name: stack.enter_context(setting.system(name))
            for name in (SEALOG, KAFKA)
            if name in setting.systems
        }
        ways = {OURS: (systems[SEALOG], "sealog")}
        ways |= {CONNECTOR[name]: (system, "kafka") for name, system in systems.items()}
        for system in systems.values():
            for topic in ("in", "out-sealog", "out-kafka"):
                _create(system, topic, PARTITIONS)
            filling = spark.read.parquet(str(table)).write.format("kafka").options(**_options(system))
            filling.option("topic", "in").mode("append").save()
        for work, do in works.items():
            setting.say(f"spark: {work}")
            taken = alternate(list(ways), warmup + rounds, lambda name: rows / _seconds(lambda: do(name)))  # noqa: B023
            found[work] = {name: rates[warmup:] for name, rates in taken.items()}
        limit = [
            rows
            / _seconds(lambda: spark.read.parquet(str(table)).write.format("noop").mode("overwrite").save())
            for _ in range(rounds)
        ]
    result.raw |= found | {"input to noop": limit}
    for work, least in (("source to noop", 1.5), ("source to Parquet", 1.0), ("sink", 1.0)):
        for name in list(ways)[1:]:
            reached = ratio(percentile(found[work][OURS], 50), percentile(found[work][name], 50))
            result.targets.append(Target(f"{work}: {OURS} / {name}", reached, least, True))
    shown = Table("thousands of rows/s", ["", *works])
    shown.rows = [[name, *(_shown(found[work][name]) for work in works)] for name in ways]
    shown.rows.append(["the input to noop", None, None, _shown(limit)])
    return shown


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _shown(rates: Sequence[float]) -> str:
    middle, worst, best = (value / 1000 for value in (percentile(rates, 50), min(rates), max(rates)))
    return f"{middle:,.0f} ({worst:,.0f} .. {best:,.0f})"


def _commits(
    setting: Setting,
    spark: SparkSession,
    shapes: Sequence[Shape],
    commits: int,
    delay_ms: float,
    result: Result,
) -> Table:
    from pyspark.sql import functions as F

    from bench.timed_sink import TimedSink

    title = f"every flush delayed by {delay_ms:g} ms" if delay_ms else "bare disk"
    setting.say(f"spark: commits, {title}")
    spark.dataSource.register(TimedSink)
    times = setting.new_folder("commits")
    jobs: dict[str, list[float]] = {}

    def commit(broker: ServerProcess, name: str) -> float:
        tasks, partitions = names[name]
        frame = spark.range(0, tasks * partitions, 1, tasks).select(
            F.col("id").cast("string").alias("value"),
            (F.col("id") % partitions).cast("int").alias("partition"),
        )
        writer = frame.write.format("sealog_timed").options(**_options(broker))
        writer = writer.option("topic", f"t-{partitions}").option("times", str(times)).mode("append")
        jobs.setdefault(name, []).append(_seconds(writer.save))
        return float(times.read_text(encoding="ascii").splitlines()[-1])

    names = {f"{tasks} x {partitions}": (tasks, partitions) for tasks, partitions in shapes}
    with setting.system(SEALOG, flush_delay_ms=delay_ms) as broker:
        for partitions in sorted({partitions for _, partitions in shapes}):
            _create(broker, f"t-{partitions}", partitions)
        found = alternate(list(names), commits + 1, lambda name: commit(broker, name))
    samples = {name: Samples([[value] for value in taken[1:]]) for name, taken in found.items()}
    result.raw[f"commits, {title}"] = {"commit ms": found, "whole job s": jobs}
    medians = [of_shape.p50 for of_shape in samples.values()]
    if delay_ms:
        apart = (max(medians) - min(medians)) / delay_ms
        result.targets.append(
            Target(f"commit, {title}: slowest - quickest shape, in flushes", apart, 1.0, False)
        )
    else:
        apart = ratio(max(medians), min(medians))
        result.targets.append(Target(f"commit, {title}: slowest / quickest shape", apart, 1.5, False))
    table = Table(
        f"a batch's commit, {title}; p50 of {commits}",
        ["tasks", "partitions of each", "commit, ms", "spread", "whole write, s"],
    )
    for name, (tasks, partitions) in names.items():
        table.rows.append(
            [tasks, partitions, samples[name].p50, samples[name].spread, percentile(jobs[name][1:], 50)]
        )
    return table
