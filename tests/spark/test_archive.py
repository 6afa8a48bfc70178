"""The archive: every committed record once, whatever is killed; verified before the log drops it; read as one log."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_sealog.archive import Archiver
from pyspark_sealog.archive_table import ArchiveTable
from pyspark_sealog.cluster import EARLIEST, TopicPartition
from pyspark_sealog.data_source import DefaultSource
from pyspark_sealog.ranges import OffsetRange
from tests.spark.segment_worlds import Rows, broker_sees, busy_world, files_say, folder_of, rows_of
from tests.spark.spark_world import Topics, ended, sealed
from tests.support.broker_process import CHECKOUT, BrokerProcess

KILLED_AT = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
from pyspark_sealog import archive

left = int(sys.argv.pop())

def steps(function):
    def one(*args, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        found = function(*args, **more)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return one

os.fsync = steps(os.fsync)
Path.rename = steps(Path.rename)
pq.ParquetWriter.write_batch = steps(pq.ParquetWriter.write_batch)
pq.ParquetWriter.close = steps(pq.ParquetWriter.close)
archive.main()
"""


def table_says(table: Path) -> Rows:
    found: Rows = {}
    archive = ArchiveTable(table)
    for part in archive.partitions():
        for file in archive.files(part):
            archive.verify(file)
            for records in archive.read(file.path, file.range):
                keys, values = records.keys.to_pylist(), records.values.to_pylist()
                for offset, key, value in zip(records.offsets, keys, values, strict=True):
                    place = part.topic, part.partition, int(offset)
                    assert place not in found, "a record twice"
                    found[place] = key, value
    return found


def run_job(*args: str, code: str = "from pyspark_sealog.archive import main; main()") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=CHECKOUT, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_killed_at_any_step_it_goes_on_and_archives_each_record_once(tmp_path: Path) -> None:
    world = busy_world()
    folder, table = folder_of(world, tmp_path / "data", "t"), tmp_path / "table"
    options = ["--segments", str(folder), "--table", str(table)]
    kills = 0
    for step in (4, 7, 9, 14, 23):
        code, said = run_job(*options, str(step), code=KILLED_AT)
        assert code == -signal.SIGKILL, said
        kills += 1
        table_says(table)  # whatever has a name is whole
    assert kills == 5
    code, said = run_job(*options)
    assert code == 0, said
    seen = broker_sees(world, "t")
    assert table_says(table) == seen == files_say(folder)
    assert "t-0: archived to" in said
    assert said.count("lag 0") == 4
    before = sorted(table.rglob("*"))
    code, said = run_job(*options)
    assert (code, sorted(table.rglob("*"))) == (0, before), "each segment once"
    assert not [path for path in before if path.name.endswith(".tmp")]
    code, said = run_job("--table", str(table), "--verify")
    assert (code, f"{len(seen)} records in" in said) == (0, True), said


def test_damage_other_topics_and_second_jobs_are_refused(tmp_path: Path) -> None:
    world = busy_world()
    folder, table = folder_of(world, tmp_path / "data", "t"), ArchiveTable(tmp_path / "table")
    Archiver(table, (str(folder),)).run()
    file = table.files(TopicPartition("t", 1))[0]
    whole = file.path.read_bytes()
    for change, words in (
        (lambda: file.path.write_bytes(whole[:-20]), str(file.path)),
        (
            lambda: file.path.write_bytes(table.files(TopicPartition("t", 2))[-1].path.read_bytes()),
            "offsets out of order, or of another range",
        ),
    ):
        change()
        with pytest.raises(Exception, match=words):
            Archiver(table, ()).verify()
    file.path.write_bytes(whole)
    with table.locked(), pytest.raises(Exception, match="another job writes"), table.locked():
        pass
    last = table.files(TopicPartition("t", 1))[-1]
    longer = last.path.with_name(f"{last.range.start - 1:020d}-{last.range.end + 5:020d}.parquet")
    longer.write_bytes(whole)
    with pytest.raises(Exception, match="hold the same offsets"):
        table.files(TopicPartition("t", 1))
    longer.unlink()
    # Another topic of the same name: its offsets begin anew, the table's are not its.
    table.write(
        OffsetRange(TopicPartition("t", 1), last.range.end, last.range.end + 5), uuid.uuid4(), iter(())
    )
    with pytest.raises(Exception, match="another topic of that name"):
        Archiver(table, (str(folder),)).run()
    # What was deleted before it was archived is not passed over in silence.
    (next(iter(sorted(folder.glob("*.seg"))))).unlink()
    with pytest.raises(Exception, match="are in no file any more"):
        Archiver(ArchiveTable(tmp_path / "second"), (str(folder),)).run()
    Archiver(ArchiveTable(tmp_path / "second"), (str(folder),), fail_on_data_loss=False).run()


@pytest.fixture
def own_broker(tmp_path: Path):  # type: ignore[no-untyped-def]
    with BrokerProcess(tmp_path / "data") as server:
        yield server


def test_history_from_the_table_and_the_tail_from_the_broker_are_one_log(
    spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    table = ArchiveTable(tmp_path / "table")
    with Topics(own_broker.address) as topics:
        topic = topics.create(2)
        options = {
            "kafka.bootstrap.servers": own_broker.address,
            "subscribe": topic,
            "archive": str(table.folder),
        }
        parts = [TopicPartition(topic, n) for n in (0, 1)]

        def write(start: int) -> None:
            for part in parts:
                topics.numbers(topic, range(start, start + 100), part.partition)

        def read(**more: str) -> list[int]:
            source = DefaultSource(options | more)
            reader = source.reader(source.schema())
            found = rows_of([b for one in reader.partitions() for b in reader.read(one)])  # type: ignore[attr-defined]
            assert len(found) == len(set(found))
            return sorted(int(value or 0) for _, value in found.values())

        def twice(start: int, stop: int) -> list[int]:
            return sorted([*range(start, stop)] * 2)

        write(0)
        assert read() == twice(0, 100), "there is no table yet"
        folder = sealed(own_broker, topic)
        archiver = Archiver(table, (str(folder),), cluster=topics)
        write(100)
        assert [one.lag for one in archiver.run()] == [100, 100]
        assert topics.list_offsets(dict.fromkeys(parts, EARLIEST)) == dict.fromkeys(parts, 0)
        archiver.delete_archived()
        assert topics.list_offsets(dict.fromkeys(parts, EARLIEST)) == dict.fromkeys(parts, 100)
        assert read() == twice(0, 200)
        assert read(endingOffsets=json.dumps({topic: {"0": 150, "1": 50}})) == sorted(
            [*range(150), *range(50)]
        )
        late = str(1_700_000_000_000 + 42)
        assert read(startingTimestamp=late) == twice(42, 200)

        # A stream over both, in batches that know nothing of the border; what it planned is archived meanwhile.
        source = DefaultSource(options)
        reader = source.streamReader(source.schema())
        start = {topic: {"0": 0, "1": 0}}
        planned = reader.partitions(start, {topic: {"0": 200, "1": 200}})
        write(200)
        sealed(own_broker, topic)
        archiver.run()
        archiver.delete_archived()
        seen = rows_of([batch for one in planned for batch in reader.read(one)])  # type: ignore[attr-defined]
        assert sorted(int(value or 0) for _, value in seen.values()) == twice(0, 200)
        reader.stop()
        write(300)
        query = ended(
            lambda: (
                spark.readStream.format("sealog")
                .options(**options)
                .options(
                    startingOffsets="earliest",
                    maxOffsetsPerTrigger="330",
                    columns="value",
                    valueFormat="string",
                )
                .load()
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "out"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
        )
        assert query.lastProgress is not None
        out = spark.read.parquet(str(tmp_path / "out"))
        assert sorted(int(row.value) for row in out.collect()) == twice(0, 400)
        plain = spark.read.parquet(str(table.folder))
        assert plain.where(f"topic = '{topic}' AND partition = 1").count() == 300
        with pytest.raises(Exception, match="only read_committed"):
            read(**{"kafka.isolation.level": "read_uncommitted"})

        # A table that was damaged since: nothing of it is dropped from the log.
        sealed(own_broker, topic)
        archiver.run()
        file = table.files(parts[0])[-1]
        file.path.write_bytes(file.path.read_bytes()[:-9])
        with pytest.raises(Exception, match=file.path.name):
            Archiver(table, (str(folder),), cluster=topics).delete_archived()
        assert topics.list_offsets({parts[0]: EARLIEST}) == {parts[0]: 300}
        assert table.cut(OffsetRange(parts[0], 0, 500))[-1] == (None, OffsetRange(parts[0], 400, 500))
