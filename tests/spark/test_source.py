"""The source on a real Spark and a real broker: columns, options, ranges, errors."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_sealog import connection
from pyspark_sealog.cluster import TopicPartition
from pyspark_sealog.columns import schema_of
from pyspark_sealog.options import source_options
from pyspark_sealog.planning import checked_ranges, find_partitions, resolve
from tests.spark.spark_world import Record, Topics, ended
from wire.apis import ApiKey

Sealog = Callable[..., dict[str, str]]


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("sealog").options(**options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_every_column_is_what_was_written(spark: SparkSession, topics: Topics, sealog: Sealog) -> None:
    topic = topics.create(2)
    topics.append(
        topic, [Record(b"k", b"v", (("h", b"x"), ("h", None)), 1_700_000_000_123)], 1, compression=4
    )
    topics.append(topic, [Record(None, None, (), 1_700_000_000_124)], 1)
    frame = load(spark, sealog(subscribe=topic, includeHeaders=True))
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    one, two = frame.withColumn("ms", F.unix_millis("timestamp")).orderBy("offset").collect()
    assert (bytes(one.key), bytes(one.value), one.topic, one.partition, one.offset, one.timestampType) == (
        *(b"k", b"v", topic, 1, 0, 0),
    )
    assert [(h.key, h.value and bytes(h.value)) for h in one.headers] == [("h", b"x"), ("h", None)]
    assert (two.key, two.value, two.offset, two.headers) == (None, None, 1, None)
    assert (one.ms, two.ms) == (1_700_000_000_123, 1_700_000_000_124)


def test_ranges_tasks_and_chosen_columns(spark: SparkSession, topics: Topics, sealog: Sealog) -> None:
    topic = topics.create(2)
    topics.numbers(topic, range(1_000), 0)
    topics.numbers(topic, range(1_000, 1_100), 1)
    frame = load(
        spark,
        sealog(
            assign=json.dumps({topic: [0, 1]}),
            startingOffsets=json.dumps({topic: {"0": 990, "1": -2}}),
            endingOffsets=json.dumps({topic: {"0": -1, "1": 50}}),
            minPartitions=5,
            columns="value,partition",
            valueFormat="string",
        ),
    )
    assert frame.columns == ["value", "partition"]
    assert frame.rdd.getNumPartitions() >= 5
    assert numbers(frame) == [*range(990, 1_050)]
    by_time = sealog(subscribe=topic, valueFormat="string", startingTimestamp=1_700_000_000_995)
    by_time["endingOffsetsByTimestamp"] = json.dumps(
        {topic: {"0": 1_700_000_000_998, "1": 1_700_000_001_001}}
    )
    assert numbers(load(spark, by_time)) == [995, 996, 997, 1_000]


def test_json_needs_no_casts_and_bad_json_is_null(
    spark: SparkSession, topics: Topics, sealog: Sealog
) -> None:
    topic = topics.create()
    texts = [
        b'{"id": 1, "name": "a", "at": {"lat": 1.5}, "tags": ["x", "y"], "more": true}',
        b"not json",
        None,
        b'{"id": "wrong", "name": "b"}',
        b'[1]\n{"id": 7}',
        b'{"name":\n"c"}',
        b"",
    ]
    topics.append(topic, [Record(b'{"k": %d}' % n, text) for n, text in enumerate(texts)])
    options = sealog(subscribe=topic, keyFormat="json", keySchema="k int", valueFormat="json")
    options["valueSchema"] = "id bigint, name string, at struct<lat: double>, tags array<string>"
    rows = load(spark, options).orderBy("key.k").select("key.k", "value").collect()
    assert [row.k for row in rows] == [*range(7)]
    values = [row.value and row.value.asDict(recursive=True) for row in rows]
    assert values[0] == {"id": 1, "name": "a", "at": {"lat": 1.5}, "tags": ["x", "y"]}
    assert values[5] == {"id": None, "name": "c", "at": None, "tags": None}
    assert [values[n] for n in (1, 2, 3, 4, 6)] == [None] * 5


def progress(query: Any) -> list[Any]:
    return [one for one in query.recentProgress if one["numInputRows"]]


def run(frame: DataFrame, folder: Path) -> Any:
    writer = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    return ended(writer.start)


def test_a_stream_takes_what_the_limit_allows_goes_on_where_it_stopped_and_says_how_far_behind_it_is(
    spark: SparkSession, topics: Topics, sealog: Sealog, tmp_path: Path
) -> None:
    topic = topics.create(2)
    topics.numbers(topic, range(60), 0)
    topics.numbers(topic, range(60, 80), 1)
    options = sealog(
        subscribePattern=f"{topic}|{topic}-more",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=40,
        valueFormat="string",
    )
    frame = spark.readStream.format("sealog").options(**options).load()
    done = progress(run(frame, tmp_path))
    assert [one["numInputRows"] for one in done] == [40, 40]
    source = done[0]["sources"][0]
    assert json.loads(source["endOffset"]) == {topic: {"0": 30, "1": 10}}
    assert json.loads(source["latestOffset"]) == {topic: {"0": 60, "1": 20}}
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == [*range(80)]
    topics.numbers(topic, range(80, 90), 1)
    done = progress(run(frame, tmp_path))
    assert sum(one["numInputRows"] for one in done) == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign"),
        ({"subscribe": "a", "assign": "{}"}, "exactly one of"),
        ({"subscribe": "a", "startingOfsets": "x"}, "is startingOffsets meant"),
        ({"subscribe": "a", "startingOffsets": "soon"}, "'soon' is not earliest, latest"),
        ({"subscribe": "a", "startingOffsets": '{"a": [1]}'}, 'not like {"topic": {"0": 23}}'),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-3 for a-0"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "cannot be the earliest"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "cannot start at the latest"),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "5"}, "for streaming queries alone"),
        ({"subscribe": "a", "minPartitions": "no"}, "'no' is not a whole number"),
        ({"subscribe": "a", "failOnDataLoss": "maybe"}, "'maybe' is none of true, false"),
        ({"subscribe": "a", "columns": "headers"}, "includeHeaders=true brings it"),
        ({"subscribe": "a", "valueFormat": "json"}, "go together"),
        ({"subscribe": "a", "valueFormat": "json", "valueSchema": "a blob"}, "'blob' is none of"),
        ({"subscribePattern": "("}, "option subscribePattern"),
        ({"assign": '{"a": 1}'}, 'not like {"topic": [0, 1]}'),
        ({"subscribe": "a", "kafka.group.id": "g"}, "in the query's checkpoint"),
        ({"subscribe": "a", "kafka.isolation.level": "dirty"}, "none of read_uncommitted"),
        ({"subscribe": "a", "kafka.security.protocol": "SSL"}, "PLAINTEXT alone"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "here"}, "'here' is not HOST:PORT"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError) as raised:
        schema_of(source_options({"kafka.bootstrap.servers": "h:1"} | options, streaming=False).columns)
    assert words in str(raised.value)


def test_errors_reach_the_person_through_spark(spark: SparkSession, topics: Topics, sealog: Sealog) -> None:
    with pytest.raises(Exception, match="is subscribe meant"):
        load(spark, sealog(subscrib="t"))
    with pytest.raises(Exception, match="there is no topic no-such-topic"):
        load(spark, sealog(subscribe="no-such-topic")).count()
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "300"}
    with pytest.raises(Exception, match=r"at 127\.0\.0\.1:1: 127\.0\.0\.1:1: .*refused"):
        load(spark, options | {"subscribe": "t"}).count()


def plan(topics: Topics, start: dict[int, int], end: dict[int, int], topic: str, **more: str) -> list[int]:
    options = source_options(
        {"kafka.bootstrap.servers": topics.settings.servers_text, "subscribe": topic} | more, streaming=False
    )
    ranges = checked_ranges(
        topics,
        options,
        {TopicPartition(topic, n): offset for n, offset in start.items()},
        {TopicPartition(topic, n): offset for n, offset in end.items()},
    )
    return [bound for one in ranges for bound in (one.start, one.end)]


def test_lost_offsets_fail_a_query_unless_it_may_go_on(topics: Topics) -> None:
    topic = topics.create()
    topics.numbers(topic, range(100))
    part = {"partition_index": 0, "offset": 40}
    connection.VERSIONS.setdefault(ApiKey.DELETE_RECORDS, 2)
    topics.bootstrap().call(
        ApiKey.DELETE_RECORDS, topics=[{"name": topic, "partitions": [part]}], timeout=10_000
    )
    assert plan(topics, {0: 40}, {0: 100}, topic) == [40, 100]
    for start, end, words in (
        ({0: 10}, {0: 100}, "records 10 to 39 have been deleted"),
        ({0: 50}, {0: 200}, "ends at 100, before offset 200"),
        ({0: 50, 1: 3}, {0: 100}, f"{topic}-1 is no longer there"),
        ({0: 50}, {0: 100, 7: 9}, f"{topic}-7 does not exist any more"),
    ):
        with pytest.raises(Exception, match=words):
            plan(topics, start, end, topic)
    kept = {"failOnDataLoss": "false"}
    assert plan(topics, {0: 10}, {0: 100}, topic, **kept) == [40, 100]
    assert plan(topics, {0: 50}, {0: 200}, topic, **kept) == [50, 100]
    assert plan(topics, {0: 10}, {0: 30}, topic, **kept) == []


def test_starting_offsets_must_name_what_is_read(topics: Topics) -> None:
    topic = topics.create(2)
    options = source_options(
        {
            "kafka.bootstrap.servers": topics.settings.servers_text,
            "subscribe": topic,
            "startingOffsets": json.dumps({topic: {"0": 0, "5": 0}}),
        },
        streaming=False,
    )
    parts = find_partitions(topics, options)
    with pytest.raises(ValueError, match=f"lacks {topic}-1; {topic}-5 is not read"):
        resolve(topics, options, parts, options.starting, "starting")


def test_another_broker_than_sealog_is_told() -> None:
    """Something that answers ApiVersions as Apache Kafka does, without sealog's own."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            number = connection.recv(1_000)[8:12]
            body = number + struct.pack(">hihhh", 0, 1, 18, 0, 3)
            connection.sendall(struct.pack(">i", len(body)) + body)
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with (
            Topics(f"127.0.0.1:{listener.getsockname()[1]}") as topics,
            pytest.raises(Exception, match="is not sealog: use format"),
        ):
            topics.topics()
