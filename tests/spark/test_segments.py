"""Sealed segments as files: what the source gives without a broker is what the broker gave a read_committed reader."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.sim_admin import delete_records
from support.sim_node import SimNode

from pyspark_sealog.data_source import DefaultSource
from storage.log_starts import decode_log_starts
from tests.spark.segment_worlds import broker_sees, busy_world, files_say, folder_of, keyed, rows_of


@pytest.fixture(scope="module")
def world() -> SimNode:
    return busy_world()


@pytest.fixture
def data(world: SimNode, tmp_path: Path) -> Path:
    return folder_of(world, tmp_path / "data", "t").parents[1]


def test_files_say_what_consumers_see(world: SimNode, data: Path, tmp_path: Path) -> None:
    """Aborted transactions over rolls and splits, deleted records, compaction; in place and copied."""
    seen = {topic: broker_sees(world, topic, n) for topic, n in (("t", 4), ("c", 1))}
    assert len(seen["t"]) > 50
    assert min(offset for _, partition, offset in seen["t"] if partition == 0) >= 3
    assert len(seen["c"]) == 6 + 2, "it was compacted"
    assert files_say(data) == seen["t"] | seen["c"]
    assert files_say(data, subscribe="t") == files_say(data, subscribePattern="t|u") == seen["t"]
    for partitions in (3, 7, 40):
        assert files_say(data, subscribe="t", minPartitions=str(partitions)) == seen["t"]
    copied = tmp_path / "a copy"
    shutil.copytree(next((data / "topics").glob("t.*")), copied)
    assert files_say(copied) == seen["t"]
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in copied.iterdir():
        shutil.copy(file, flat / file.name)
    named = [path for path in sorted(flat.glob("*.seg")) if path.with_suffix(".settled").exists()]
    assert files_say(",".join(map(str, named))) == seen["t"]


def test_spark_reads_them(world: SimNode, data: Path, spark: SparkSession) -> None:
    frame = spark.read.format("sealog").option("segments", str(data)).option("includeHeaders", "true").load()
    files = {path for path in data.rglob("*.seg") if path.with_suffix(".settled").exists()}
    assert 1 < frame.rdd.getNumPartitions() <= len(files), "one task for each file"
    found = frame.toPandas()
    places = zip(found["topic"], found["partition"], found["offset"], strict=True)
    values = zip(map(_bytes, found["key"]), map(_bytes, found["value"]), strict=True)
    assert dict(zip(places, values, strict=True)) == broker_sees(world, "t") | broker_sees(world, "c", 1)
    assert found["headers"].notna().sum() == 8
    source = DefaultSource({"segments": str(data)})
    with pytest.raises(Exception, match="for batch queries alone"):
        source.streamReader(source.schema())
    with pytest.raises(Exception, match=r"reads files, so kafka\.bootstrap\.servers says nothing"):
        spark.read.format("sealog").options(
            **{"segments": str(data), "kafka.bootstrap.servers": "h:1"}
        ).load()


def _bytes(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload, no-any-return]


def test_what_cannot_be_read_is_said_clearly(data: Path, tmp_path: Path) -> None:
    folder = next((data / "topics").glob("t.*"))
    settled = sorted(path for path in folder.glob("*.seg") if path.with_suffix(".settled").exists())
    active = next(path for path in sorted(folder.glob("*.seg")) if path not in settled)
    for path, words in (
        (tmp_path / "nowhere", r"there is no .*nowhere"),
        (tmp_path, "no settled segment of x"),
        (active, "it is not sealed"),
    ):
        with pytest.raises(ValueError if path == tmp_path else Exception, match=words):
            files_say(path, subscribe="x")
    middle = settled[len(settled) // 2]
    middle.with_suffix(".settled").rename(tmp_path / "away")
    with pytest.raises(Exception, match="outcomes are not written down"):
        files_say(middle)
    seen = files_say(folder)
    assert seen, "what comes before it can be read"
    middle.rename(tmp_path / "away.seg")
    with pytest.raises(Exception, match=r"offsets \d+ to \d+ are in none of the files"):
        files_say(folder)
    assert len(files_say(folder, failOnDataLoss="false")) > len(seen)
    (tmp_path / "away.seg").rename(middle)
    (tmp_path / "away").rename(middle.with_suffix(".settled"))
    damaged = bytearray(middle.read_bytes())
    damaged[4096 + 100] ^= 1
    middle.write_bytes(damaged)
    with pytest.raises(Exception, match=f"{middle.name}.*damaged"):
        files_say(folder)
    middle.write_bytes(b"nothing of ours" * 1_000)
    with pytest.raises(Exception, match="no segment file"):
        files_say(folder)


def test_the_log_starts_are_written_beside_the_segments_and_outlive_every_end() -> None:
    world = busy_world()
    (path,) = (
        f"topics/{folder}/log-starts"
        for folder in world.disk.list("topics")
        if "log-starts" in world.disk.list(f"topics/{folder}")
    )

    def said() -> dict[int, int]:
        return decode_log_starts(world.disk.content(path), path).offsets

    assert said() == {0: 3, 2: 2}
    delete_records(world.client(), "t", {1: 5})
    world.cut_power()  # before it was written
    world.scheduler.advance(1_000)
    assert said() == {0: 3, 1: 5, 2: 2}
    world.disk.remove(path)
    world.restart()
    world.scheduler.advance(1_000)
    assert said() == {0: 3, 1: 5, 2: 2}
    keyed(world, "t", 0, (b"k", b"v"))
    assert rows_of([]) == {}
