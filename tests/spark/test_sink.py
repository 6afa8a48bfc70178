"""The sink's failure matrix, each fault really made: exactly once, and each batch whole or not at all at every moment.

Faults that need executors or drivers of their own are in test_sink_processes.py.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.faults import FaultySource
from tests.spark.sink_world import PARTITIONS, Watcher, numbers_seen, run, stream
from tests.spark.spark_world import Topics, wait_until
from tests.support.broker_process import BrokerProcess

Sealog = Callable[..., dict[str, str]]

pytestmark = pytest.mark.timeout(1_500)


@pytest.fixture(scope="module", autouse=True)
def _faults(spark: SparkSession) -> None:
    spark.dataSource.register(FaultySource)


@pytest.fixture
def ends(topics: Topics) -> tuple[str, str]:
    """One batch of input in a topic, and an empty topic."""
    source, target = topics.create(1, "in"), topics.create(PARTITIONS, "out")
    topics.numbers(source, range(100))
    return source, target


def test_a_batch_is_written_once_and_its_replay_changes_nothing(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, ends: tuple[str, str], tmp_path: Path
) -> None:
    source, target = ends
    topics.numbers(source, range(100, 200))
    with Watcher(broker.address, target) as watcher:
        run(stream(spark, broker.address, source), broker.address, target, tmp_path)
    assert watcher.looks > 2
    assert numbers_seen(topics, target) == [*range(200)]
    # What a crash between the sink's commit and Spark's own leaves: the last batch has no commit file.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]"))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run(stream(spark, broker.address, source, tasks=3), broker.address, target, tmp_path)
    assert numbers_seen(topics, target) == [*range(200)]


@pytest.mark.parametrize("fault", ["raise", "kill-worker"])
def test_a_task_that_fails_in_the_middle_leaves_no_trace(
    fault: str,
    spark: SparkSession,
    broker: BrokerProcess,
    topics: Topics,
    ends: tuple[str, str],
    tmp_path: Path,
) -> None:
    source, target = ends
    with Watcher(broker.address, target):
        run(stream(spark, broker.address, source), broker.address, target, tmp_path, fault)
    assert (tmp_path / "fault").exists()
    assert numbers_seen(topics, target) == [*range(100)]


def test_retries_exhausted_then_a_restart(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, ends: tuple[str, str], tmp_path: Path
) -> None:
    source, target = ends
    with Watcher(broker.address, target):
        with pytest.raises(Exception, match="the task fails every time"):
            run(stream(spark, broker.address, source), broker.address, target, tmp_path, "always-raise")
        assert numbers_seen(topics, target) == []
        run(stream(spark, broker.address, source, tasks=1), broker.address, target, tmp_path)
    assert numbers_seen(topics, target) == [*range(100)]


def test_the_answer_to_a_commit_is_lost_and_spark_aborts_what_is_committed(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, ends: tuple[str, str], tmp_path: Path
) -> None:
    source, target = ends
    topics.numbers(source, range(100, 200))
    with Watcher(broker.address, target):
        with pytest.raises(Exception, match="the commit's answer is lost"):
            run(stream(spark, broker.address, source), broker.address, target, tmp_path, "raise-after-commit")
        assert numbers_seen(topics, target) == [*range(100)]
        run(stream(spark, broker.address, source, tasks=3), broker.address, target, tmp_path)
    assert numbers_seen(topics, target) == [*range(200)]


def start_again_when_killed(broker: BrokerProcess) -> None:
    process = broker.process
    assert process is not None
    wait_until("the broker is killed", lambda: process.poll() is not None, 300.0)
    broker.end()
    broker.start()


def test_the_broker_is_killed_inside_commits(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Once before the commit can have arrived, and once a little later, when it may be anywhere."""
    with BrokerProcess(tmp_path / "data") as broker, Topics(broker.address) as topics:
        source, target = topics.create(1, "in"), topics.create(PARTITIONS, "out")
        topics.numbers(source, range(100))
        # The query runs in this thread: Spark finds a session's own sources in the thread that the session belongs to.
        with Watcher(broker.address, target), ThreadPoolExecutor() as pool:
            for turn, delay_ms in enumerate((0.0, 4.0)):
                assert broker.process is not None
                folder = tmp_path_factory.mktemp("turn")
                (folder / "checkpoint").symlink_to(tmp_path / "checkpoint")
                (tmp_path / "checkpoint").mkdir(exist_ok=True)
                fault = f"kill-broker-in-commit:{broker.process.pid},{delay_ms}"
                frame = stream(spark, broker.address, source)
                restarted = pool.submit(start_again_when_killed, broker)
                run(frame, broker.address, target, folder, fault)
                restarted.result()
                topics.forget()
                assert numbers_seen(topics, target) == [*range(100 * (turn + 1))]
                topics.numbers(source, range(100 * (turn + 1), 100 * (turn + 2)))


def test_a_new_checkpoint_under_an_old_sink_id_is_not_a_silent_loss(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, ends: tuple[str, str], tmp_path: Path
) -> None:
    source, target = ends
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    frame = stream(spark, broker.address, source)
    run(frame, broker.address, target, folders[0], sinkId=target)
    with pytest.raises(Exception, match="from another query"):
        run(frame, broker.address, target, folders[1], sinkId=target)
    run(frame, broker.address, target, folders[1], sinkId=target, newCheckpoint="skip")
    assert numbers_seen(topics, target) == [*range(100)]


def save(frame: Any, options: dict[str, str], folder: Path, fault: str = "") -> None:
    options |= {"fault": fault, "fault_file": str(folder / "fault")}
    frame.write.format("sealog_faulty").options(**options).mode("append").save()


def test_a_data_frame_is_visible_in_one_instant_or_never(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, sealog: Sealog, tmp_path: Path
) -> None:
    target = topics.create(PARTITIONS)
    frame = spark.range(0, 100, 1, 3).select(F.col("id").cast("string").alias("value"))
    with Watcher(broker.address, target):
        with pytest.raises(Exception, match="the job fails at its end"):
            save(frame, sealog(topic=target), tmp_path, "raise-before-commit")
        assert numbers_seen(topics, target) == []
        (tmp_path / "fault").unlink()
        save(frame, sealog(topic=target), tmp_path, "raise")
        assert numbers_seen(topics, target) == [*range(100)]
        later = frame.select((F.col("value") + 100).cast("int").cast("string").alias("value"))
        for _ in range(2):  # a job that is run again under the same name writes once
            save(later, sealog(topic=target, sinkId=target, batchId=7, newCheckpoint="skip"), tmp_path)
    assert numbers_seen(topics, target) == [*range(200)]


def test_rows_go_to_their_topics_and_partitions_with_keys_and_headers(
    spark: SparkSession, topics: Topics, sealog: Sealog
) -> None:
    names = [topics.create(PARTITIONS) for _ in range(2)]
    rows = [
        (
            names[n % 2],
            n % PARTITIONS if n % 5 == 0 else None,
            None if n % 7 == 0 else f"k{n}",
            f"{n}",
            [("h", bytearray(b"x"))],
        )
        for n in range(60)
    ]
    schema = "topic string, partition int, key string, value string, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame(rows, schema)
    options = sealog(**{"kafka.compression.type": "zstd", "kafka.batch.size": 200})
    frame.write.format("sealog").options(**options).mode("append").save()
    back = (
        spark.read.format("sealog").options(**sealog(subscribe=",".join(names), includeHeaders=True)).load()
    )
    found = {int(row.value): row for row in back.collect()}
    assert sorted(found) == [*range(60)]
    for n, (topic, partition, key, _, _) in enumerate(rows):
        row = found[n]
        assert row.topic == topic
        assert partition is None or row.partition == partition
        assert (row.key and bytes(row.key).decode()) == key
        assert [(one.key, bytes(one.value)) for one in row.headers] == [("h", b"x")]


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("id", {"topic": "t"}, "the sink knows no column 'id'"),
        ("id AS value", {"topic": "t"}, "'value' cannot be of type bigint"),
        ("string(id) AS key", {"topic": "t"}, "needs a column value"),
        ("string(id) AS value", {}, "must say where the rows go"),
        ("string(id) AS value", {"topic": "t", "sinkId": "s"}, "needs batchId"),
        ("string(id) AS value", {"topic": "t", "kafka.acks": "1"}, "always waits for acks=all"),
        ("string(id) AS value, 9 AS partition", {"topic": "spark-out"}, "wants partition 9"),
    ],
)
def test_a_wrong_frame_or_option_is_named(
    columns: str, options: dict[str, str], words: str, spark: SparkSession, sealog: Sealog
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=words):
        frame.write.format("sealog").options(**sealog(**options)).mode("append").save()
