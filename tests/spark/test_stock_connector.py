"""Spark's own Kafka connector, unchanged, against sealog: batch and streaming, both ways, both isolation levels."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_sealog.cluster import TopicPartition
from pyspark_sealog.producer import Outgoing, Producer
from tests.spark.spark_world import Record, Topics
from tests.support.toolchains import require_program
from wire.batch import BATCH_HEADER_SIZE, TRANSACTIONAL_BIT
from wire.records import build_batch

Sealog = Callable[..., dict[str, str]]


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    require_program("mvn", "the stock connector's jars cannot be fetched")


def write_in_a_transaction(topics: Topics, topic: str, numbers: range) -> Producer:
    """Records of a transaction that is still open."""
    producer = Producer(topics, topics.name("txn"))
    producer.init()
    batch = build_batch(
        [Record(b"%d" % n, b"%d" % n, (), 1_700_000_000_000) for n in numbers],
        attributes=TRANSACTIONAL_BIT,
        producer_id=producer.member.producer_id,
        producer_epoch=producer.member.epoch,
        base_sequence=0,
    )
    producer.send([Outgoing(TopicPartition(topic, 0), batch[:BATCH_HEADER_SIZE], batch[BATCH_HEADER_SIZE:])])
    producer.flush()
    return producer


@pytest.fixture
def mixed(topics: Topics) -> Iterator[str]:
    """0..9 committed, 10..19 aborted, 20..29 plain, 30..39 aborted at the end of partition 0."""
    topic = topics.create(2)
    write_in_a_transaction(topics, topic, range(10)).end(commit=True)
    write_in_a_transaction(topics, topic, range(10, 20)).end(commit=False)
    topics.numbers(topic, range(20, 30))
    write_in_a_transaction(topics, topic, range(30, 40)).end(commit=False)
    return topic


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [("read_committed", [*range(10), *range(20, 30)]), ("read_uncommitted", [*range(40)])],
)
def test_reading_in_batches_and_as_a_stream(
    isolation: str, expected: list[int], mixed: str, spark: SparkSession, sealog: Sealog, tmp_path: Path
) -> None:
    options = sealog(
        subscribe=mixed, startingOffsets="earliest", maxOffsetsPerTrigger=30, includeHeaders=True
    ) | {"kafka.isolation.level": isolation}
    assert numbers(spark.read.format("kafka").options(**options).load()) == expected
    query = (
        spark.readStream.format("kafka")
        .options(**options)
        .load()
        .select("value")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == expected


def test_a_read_stops_at_an_open_transaction(topics: Topics, spark: SparkSession, sealog: Sealog) -> None:
    topic = topics.create()
    topics.numbers(topic, range(5))
    open_ = write_in_a_transaction(topics, topic, range(5, 10))
    options = sealog(subscribe=topic) | {"kafka.isolation.level": "read_committed"}
    assert numbers(spark.read.format("kafka").options(**options).load()) == [*range(5)]
    open_.end(commit=True)
    assert numbers(spark.read.format("kafka").options(**options).load()) == [*range(10)]


def test_writing_in_batches_and_as_a_stream(
    topics: Topics, spark: SparkSession, sealog: Sealog, tmp_path: Path
) -> None:
    source, target = topics.create(2), topics.create(2)
    frame = spark.range(100).select(
        F.col("id").cast("string").alias("key"), F.col("id").cast("string").alias("value")
    )
    frame.write.format("kafka").options(**sealog(topic=source)).save()
    query = (
        spark.readStream.format("kafka")
        .options(**sealog(subscribe=source, startingOffsets="earliest"))
        .load()
        .select("key", "value")
        .writeStream.format("kafka")
        .options(**sealog(topic=target))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    ours = spark.read.format("sealog").options(**sealog(subscribe=target)).load()
    assert numbers(ours) == [*range(100)]
    same_places = ours.select("key", "partition").join(
        spark.read.format("kafka").options(**sealog(subscribe=source)).load().select("key", "partition"),
        ["key", "partition"],
    )
    assert same_places.count() == 100, "both sinks choose the same partition for a key"
