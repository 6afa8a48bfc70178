"""The three streaming queries of the pipeline, and what feeds them. Every arrow is exactly once:

flights.json -> flights-raw -> [clean, enrich] -> flights -> [delays per week, carrier, airport] -> delays -> Parquet
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from pipeline.tables import WINDOW_DAYS
from pyspark_sealog.cluster import Cluster
from pyspark_sealog.settings import client_settings

RAW: Final = "flights-raw"
CLEAN: Final = "flights"
DELAYS: Final = "delays"

RAW_SCHEMA: Final = (
    "id bigint, time_hour timestamp, carrier string, origin string, dest string, "
    "dep_delay double, arr_delay double, distance bigint"
)
CLEAN_SCHEMA: Final = (
    "id bigint, time timestamp, carrier string, airline string, origin string, dest string, airport string, "
    "dep_delay int, arr_delay int, wind_speed double, visib double"
)
DELAYS_SCHEMA: Final = (
    "week timestamp, carrier string, origin string, flights bigint, dep_delay bigint, arr_delay bigint"
)
PARTITIONS: Final = 4
EVERY: Final = "1 second"
"""How often a query looks for more."""
MOST_BATCHES: Final = 6
LEAST_BATCHES: Final = 3
"""In how many batches the flights are enriched: there must be a middle to be killed in."""


def batch_size(flights: int) -> int:
    """How many flights a batch takes: each batch costs seconds, whatever is in it."""
    return flights // min(max(LEAST_BATCHES, flights // 50_000), MOST_BATCHES) + 1


def session(folder: Path) -> SparkSession:
    """A small Spark on this machine."""
    spark: SparkSession = (
        SparkSession.builder.master("local[2]")
        .appName("sealog pipeline")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        # A job of minutes: the time that the thorough compiler takes would not come back.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Pipeline:
    """The queries on one broker; `folder` has the files that go in and out, and the checkpoints."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._broker = {"kafka.bootstrap.servers": bootstrap}
        self._folder = folder

    def make_topics(self) -> None:
        with Cluster(client_settings(self._broker)) as cluster:
            for topic in (RAW, CLEAN, DELAYS):
                cluster.create_topic(topic, PARTITIONS)

    def feed(self) -> None:
        """All raw flights at once: visible in one instant. The name of the write makes it one that happens once."""
        lines = self._spark.read.text(str(self._folder / "flights.json")).coalesce(1)
        once = {"topic": RAW, "sinkId": "pipeline-feed", "batchId": "0", "newCheckpoint": "skip"}
        lines.write.format("sealog").options(**self._broker, **once).mode("append").save()

    def enrich(self, flights_per_batch: int) -> StreamingQuery:
        """Flights that took place, with the names of airline and airport and the weather at their start."""
        flights = self._topic(RAW, RAW_SCHEMA, maxOffsetsPerTrigger=str(flights_per_batch)).alias("f")
        airlines = self._csv("airlines").select("carrier", F.col("name").alias("airline"))
        airports = self._csv("airports").select(F.col("faa").alias("dest"), F.col("name").alias("airport"))
        weather = (
            self._csv("weather")
            .dropDuplicates(["origin", "time_hour"])
            .selectExpr(
                "origin",
                "to_timestamp(time_hour) AS time_hour",
                "double(wind_speed) AS wind_speed",
                "double(visib) AS visib",
            )
        )
        clean = (
            flights.where("dep_delay IS NOT NULL AND arr_delay IS NOT NULL")
            .join(F.broadcast(airlines), "carrier", "left")
            .join(F.broadcast(airports), "dest", "left")
            .join(F.broadcast(weather), ["origin", "time_hour"], "left")
            .selectExpr(
                "id",
                "time_hour AS time",
                *("carrier", "airline", "origin", "dest", "airport"),
                "int(dep_delay) AS dep_delay",
                "int(arr_delay) AS arr_delay",
                *("wind_speed", "visib"),
            )
        )
        return self._to_topic(clean, CLEAN, "enrich")

    def delays(self) -> StreamingQuery:
        """Sums per week, carrier and airport of departure, when event time has passed the week.

        A batch of the query before is seen whole or not at all, so time never goes back by more than one flight's
        hour, however many tasks wrote it: a watermark of a day is ample.
        """
        sums = (
            self._topic(CLEAN, CLEAN_SCHEMA)
            .withWatermark("time", "1 day")
            .groupBy(F.window("time", f"{WINDOW_DAYS} days"), "carrier", "origin")
            .agg(
                F.count("id").alias("flights"),
                F.sum("dep_delay").alias("dep_delay"),
                F.sum("arr_delay").alias("arr_delay"),
            )
            .selectExpr("window.start AS week", "carrier", "origin", "flights", "dep_delay", "arr_delay")
        )
        return self._to_topic(sums, DELAYS, "delays", key="concat(carrier, '-', origin)")

    def archive(self) -> StreamingQuery:
        """The weekly delays as a Parquet table."""
        return (
            self._topic(DELAYS, DELAYS_SCHEMA)
            .writeStream.format("parquet")
            .option("path", str(self._folder / "delays.parquet"))
            .option("checkpointLocation", str(self._folder / "checkpoints" / "archive"))
            .queryName("archive")
            .trigger(processingTime=EVERY)
            .start()
        )

    def _topic(self, topic: str, schema: str, **more: str) -> DataFrame:
        return (
            self._spark.readStream.format("sealog")
            .options(**self._broker, **more)
            .options(subscribe=topic, startingOffsets="earliest", valueFormat="json", valueSchema=schema)
            .option("columns", "value")
            .load()
            .select("value.*")
        )

    def _to_topic(self, frame: DataFrame, topic: str, name: str, key: str = "string(null)") -> StreamingQuery:
        return (
            frame.selectExpr(f"{key} AS key", "to_json(struct(*)) AS value")
            .writeStream.format("sealog")
            .options(**self._broker)
            .option("topic", topic)
            .option("checkpointLocation", str(self._folder / "checkpoints" / name))
            .queryName(name)
            .trigger(processingTime=EVERY)
            .start()
        )

    def _csv(self, name: str) -> DataFrame:
        return self._spark.read.csv(str(self._folder / f"{name}.csv"), header=True)

    def read(self, topic: str, schema: str) -> DataFrame:
        """The whole topic as a table."""
        return (
            self._spark.read.format("sealog")
            .options(**self._broker)
            .options(subscribe=topic, valueFormat="json", valueSchema=schema, columns="value")
            .load()
            .select("value.*")
        )


def rows_done(progress: Mapping[str, object] | None) -> int:
    """How many records a query has taken from its topic, by the offsets of its last batch."""
    if not progress:
        return 0
    source = progress["sources"][0]  # type: ignore[index]
    offsets = json.loads(source["endOffset"] or "{}")
    return sum(sum(partitions.values()) for partitions in offsets.values())
