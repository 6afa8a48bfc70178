"""Writers and readers against a real broker, without Spark around them: what a JVM would only make slower."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pyspark_sealog.columns import schema_of
from pyspark_sealog.member_ids import MemberIds
from pyspark_sealog.options import source_options
from pyspark_sealog.readers import BatchReader
from pyspark_sealog.sink_options import SinkOptions, sink_options
from pyspark_sealog.writers import Attempt, TaskWriter, commit
from tests.spark.sink_world import PARTITIONS, numbers_seen
from tests.spark.spark_world import Topics
from tests.support.broker_process import BrokerProcess


def options_for(broker: BrokerProcess, topic: str, **more: str) -> SinkOptions:
    return sink_options({"kafka.bootstrap.servers": broker.address, "topic": topic} | more, streaming=True)


def rows(*numbers: int) -> pa.RecordBatch:
    texts = [b"%d" % n for n in numbers]
    return pa.record_batch({"key": pa.array(texts), "value": pa.array(texts)})


def test_a_batch_without_rows_does_away_with_what_an_earlier_run_left(
    broker: BrokerProcess, topics: Topics
) -> None:
    target = topics.create(PARTITIONS)
    options = options_for(broker, target)
    old, new = Attempt(target, 0, "q/old", 1), Attempt(target, 0, "q/new", 2)
    left = TaskWriter(options, old).write(iter([rows(1, 2, 3)]))
    assert left.rows == 3
    commit([TaskWriter(options, new).write(iter([]))], options)
    commit([left], options)  # the earlier run's commit, late: it hears the outcome
    later = TaskWriter(options, Attempt(target, 1, "q/new", 3)).write(iter([rows(4)]))
    commit([later], options)
    assert numbers_seen(topics, target) == [4]


def test_ids_are_used_again_and_never_while_their_vote_may_be_open() -> None:
    ids = MemberIds()
    first = ids.take("s", 0)
    ids.voted("s", 0, first)
    second = ids.take("s", 0)
    assert second != first, "the same batch: the first vote is open"
    ids.voted("s", 0, second)
    assert ids.take("other", 5) not in (first, second)
    assert {ids.take("s", 1), ids.take("s", 1)} == {first, second}
    for n in range(1_000):
        ids.voted("s", n, str(n))
    assert len(ids._used) <= 256


def test_tasks_live_through_a_broker_that_is_killed_while_they_write_and_read(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Topics(broker.address) as topics:
        target = topics.create(PARTITIONS)

        def input_() -> Iterator[pa.RecordBatch]:
            for start in range(0, 3_000, 300):
                if start in (600, 2_100):
                    broker.sigkill()
                    broker.start()
                yield rows(*range(start, start + 300))

        options = options_for(broker, target, **{"kafka.batch.size": "2000"})
        commit([TaskWriter(options, Attempt("s", 0, "q/r", 1)).write(input_())], options)
        topics.forget()
        assert numbers_seen(topics, target) == [*range(3_000)]

        reading = source_options(
            {
                "kafka.bootstrap.servers": broker.address,
                "subscribe": target,
                "kafka.max.partition.fetch.bytes": "1500",
            },
            streaming=False,
        )
        reader = BatchReader(reading, schema_of(reading.columns))
        got: list[int] = []
        for part in reader.partitions():
            for number, batch in enumerate(reader.read(part)):
                got += [int(one) for one in batch.column("value").to_pylist()]
                if number == 1:
                    broker.sigkill()
                    broker.start()
        assert sorted(got) == [*range(3_000)]


def test_one_writer_many_topics_with_answers_under_way(broker: BrokerProcess, topics: Topics) -> None:
    """Look-ups for a new topic come between a request and its answer."""
    names = [topics.create(PARTITIONS) for _ in range(3)]
    options = sink_options({"kafka.bootstrap.servers": broker.address}, streaming=True)
    batches = [
        pa.record_batch(
            {"value": pa.array([b"%d" % n for n in range(at, at + 50)]), "topic": pa.array([name] * 50)}
        )
        for at, name in zip(itertools.count(0, 50), names * 2, strict=False)
    ]
    attempt = Attempt(names[0], 0, "q/r", 1)
    commit([TaskWriter(options, attempt).write(iter(batches))], options)
    assert [len(numbers_seen(topics, name)) for name in names] == [100, 100, 100]


@pytest.mark.parametrize("field", ["key string", "headers array<string>"])
def test_columns_that_do_not_fit_are_named(field: str) -> None:
    from pyspark_sealog.ddl import parse_schema
    from pyspark_sealog.rows import check_schema

    schema: StructType = parse_schema(field)
    options = sink_options({"kafka.bootstrap.servers": "h:1", "topic": "t"}, streaming=True)
    with pytest.raises(ValueError, match=r"needs a column value|must be of type"):
        check_schema(schema, options)
