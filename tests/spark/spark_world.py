"""What the Spark tests use beside Spark: a small session, topics made and filled by hand, and reading them back."""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker.client import LayoutClient
from pyspark_sealog.cluster import Cluster, TopicPartition
from pyspark_sealog.decode import Batch, cut, decode
from pyspark_sealog.settings import client_settings
from tests.support.broker_process import BrokerProcess
from wire.apis import ApiKey
from wire.errors import ErrorCode
from wire.records import Record, build_batch

_run = f"{os.getpid():x}{int(time.time()) & 0xFFFFFF:x}"
_numbers = itertools.count(1)


def make_session(master: str, folder: Path, **conf: str) -> SparkSession:
    """A session that fits beside others on a small machine. Dots in the names of `conf` are written as __."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master(master)
        .appName("sealog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.warehouse.dir", str(folder))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.pollingDelay", "5ms")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    )
    for name, value in conf.items():
        builder = builder.config(name.replace("__", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def ended(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """The query, at its end. Raises what made it fail."""
    while True:
        query = start()
        try:
            query.awaitTermination()
            return query
        except StreamingQueryException as error:
            # Spark gives a new Python process ten seconds; a loaded machine may need more. A restart is always right.
            if "failed to connect back" not in str(error):
                raise


def wait_until(what: str, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def sealed(server: BrokerProcess, topic: str, partitions: int = 1) -> Path:
    """Seal what there is, and wait until it is settled."""
    with LayoutClient(server.address) as client:
        for partition in range(partitions):
            client.seal(topic, partition)
    (folder,) = (server.data / "topics").glob(f"{topic}.*")
    wait_until(
        "all but the last segment are settled",
        lambda: len(list(folder.glob("*.settled"))) == len(list(folder.glob("*.seg"))) - 1 > 0,
    )
    return folder


class Topics(Cluster):
    """Topics of the broker under test, without Spark in between."""

    def __init__(self, address: str, **options: str) -> None:
        super().__init__(client_settings({"kafka.bootstrap.servers": address} | options))

    def name(self, word: str) -> str:
        return f"{word}-{_run}-{next(_numbers)}"

    def create(self, partitions: int = 1, word: str = "topic") -> str:
        name = self.name(word)
        self.create_topic(name, partitions)
        return name

    def append(
        self, topic: str, records: Iterable[Record], partition: int = 0, *, compression: int = 0
    ) -> int:
        """One batch, outside a transaction; its first offset."""
        return self.append_batch(topic, build_batch(records, compression=compression), partition)

    def append_batch(self, topic: str, batch: bytes, partition: int = 0) -> int:
        part = TopicPartition(topic, partition)
        connection = self.connection(self.retrying("leader", lambda: self.leader(part)))
        answer = connection.call(
            ApiKey.PRODUCE,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        )
        one = answer.responses[0].partition_responses[0]
        assert one.error_code is ErrorCode.none, one
        offset: int = one.base_offset
        return offset

    def numbers(self, topic: str, numbers: Sequence[int], partition: int = 0) -> None:
        """Records with the number as key and value."""
        for start in range(0, len(numbers), 5_000):
            some = numbers[start : start + 5_000]
            self.append(
                topic, [Record(b"%d" % n, b"%d" % n, (), 1_700_000_000_000 + n) for n in some], partition
            )

    def snapshot(self, topic: str, partitions: int) -> list[list[Record]]:
        """All that a reader sees of the topic at one moment: one Fetch over all partitions, read_committed."""
        wanted = [
            {"partition": n, "fetch_offset": 0, "partition_max_bytes": 1 << 26} for n in range(partitions)
        ]
        answer = self.connection(self.retrying("leader", lambda: self.leader(TopicPartition(topic, 0)))).call(
            ApiKey.FETCH,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=1 << 27,
            isolation_level=1,
            topics=[{"topic": topic, "partitions": wanted}],
        )
        seen: list[list[Record]] = [[] for _ in range(partitions)]
        for one in answer.responses[0].partitions:
            assert one.error_code is ErrorCode.none, one
            records = one.records or b""
            for batch in cut(records, check_crcs=True):
                if not batch.header.is_control:
                    seen[one.partition_index] += _records(batch)
        return seen


def _records(batch: Batch) -> list[Record]:
    out: list[Record] = []
    for group in decode([batch], 0, 1 << 62):
        keys, values = group.keys.to_pylist(), group.values.to_pylist()
        out += [
            Record(key, value, (), int(time_ms), int(offset))
            for key, value, time_ms, offset in zip(keys, values, group.timestamps, group.offsets, strict=True)
        ]
    return out
