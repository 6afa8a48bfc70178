"""A stream of known batches through the faulty sink, and a reader that looks at every moment.

Batch k is the numbers 100k..100k+99; whatever happens, a reader sees all hundred of them or none.
"""

import threading
from collections import Counter
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.spark_world import Topics, ended

BATCH = 100
PARTITIONS = 3


class Watcher:
    """Reads the whole topic again and again; `stop` gives what it saw at last, and fails if it ever saw a part."""

    def __init__(self, address: str, topic: str) -> None:
        self._address, self._topic = address, topic
        self._ended = threading.Event()
        self._errors: list[str] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert not self._errors, self._errors[:3]

    def _watch(self) -> None:
        topics = Topics(self._address)
        while not self._ended.is_set():
            try:
                self.look(topics)
            except (OSError, IndexError):
                topics.forget()  # the broker is away
            self._ended.wait(0.02)
        topics.close()

    def look(self, topics: Topics) -> None:
        seen = Counter(
            int(one.value or 0) for partition in topics.snapshot(self._topic, PARTITIONS) for one in partition
        )
        self.looks += 1
        sizes = Counter(number // BATCH for number in seen)
        if any(size != BATCH for size in sizes.values()) or any(count > 1 for count in seen.values()):
            self._errors.append(f"batches seen in part or twice: {dict(sizes)}, {seen.most_common(2)}")


def numbers_seen(topics: Topics, topic: str) -> list[int]:
    return sorted(
        int(one.value or 0) for partition in topics.snapshot(topic, PARTITIONS) for one in partition
    )


def stream(
    spark: SparkSession, address: str, source: str, tasks: int = 2, per_batch: int = BATCH
) -> DataFrame:
    return (
        spark.readStream.format("sealog")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .option("minPartitions", tasks)
        .load()
        .select("key", F.col("value"))
    )


def start(frame: DataFrame, address: str, target: str, folder: Path, fault: str = "", **options: Any) -> Any:
    """The query, under way: it ends when all that is there now is through."""
    return (
        frame.writeStream.format("sealog_faulty")
        .option("kafka.bootstrap.servers", address)
        .option("topic", target)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("fault", fault)
        .option("fault_file", str(folder / "fault"))
        .options(**options)
        .trigger(availableNow=True)
        .start()
    )


def run(*args: Any, **options: Any) -> None:
    """Start the query and wait for its end. Raises what made it fail."""
    ended(lambda: start(*args, **options))
