"""`python -m pyspark_sealog.archive`: moves sealed, settled segments to a Parquet table, each offset once.

The job reads segment files, so it runs where the broker's data folder can be read, and asks the broker for no record.
It may be killed at any point and run again: it goes on behind what the table has. With --delete-archived the log may
then drop what the table holds: every file was read back, and its count, offsets and checksum compared, before
DeleteRecords names its offsets.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import click

from pyspark_sealog.archive_table import ArchiveTable
from pyspark_sealog.cluster import EARLIEST, LATEST, Cluster, TopicPartition
from pyspark_sealog.decode import Records, decode
from pyspark_sealog.errors import DataLossError, SealogError
from pyspark_sealog.ranges import OffsetRange
from pyspark_sealog.segment_files import SegmentRange, Topic, committed_batches, find_topics
from pyspark_sealog.settings import client_settings
from wire.errors import KafkaError


class Progress(NamedTuple):
    """How far one partition is, as next offsets; `log_end` is None where no broker was asked."""

    part: TopicPartition
    archived: int
    settled: int
    log_end: int | None

    @property
    def lag(self) -> int:
        """Offsets that are not in the table: all of the log where it is known, or else of what could be archived."""
        return (self.settled if self.log_end is None else self.log_end) - self.archived


class Archiver:
    """One run after another over the same files and table."""

    def __init__(
        self,
        table: ArchiveTable,
        segments: tuple[str, ...],
        topics: tuple[str, ...] = (),
        cluster: Cluster | None = None,
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        self._table = table
        self._segments = segments
        self._topics = topics
        self._cluster = cluster
        self._fail_on_data_loss = fail_on_data_loss
        self._verified: set[OffsetRange] = set()
        """By this process: written, or read through."""

    def run(self) -> list[Progress]:
        """Archive what is settled by now. Raises SealogError, OSError."""
        progress = []
        for topic in self._find():
            for partition, pieces in topic.parts.items():
                part = TopicPartition(topic.name, partition)
                archived = self._archive(topic, part, pieces)
                progress.append(Progress(part, archived, pieces[-1].range.end if pieces else archived, None))
        if self._cluster is not None and progress:
            ends = self._cluster.list_offsets({one.part: LATEST for one in progress})
            progress = [one._replace(log_end=ends[one.part]) for one in progress]
        return progress

    def _find(self) -> list[Topic]:
        # What is missing between two files matters only where the table does not have it.
        found = find_topics(self._segments, fail_on_data_loss=False)
        return [topic for topic in found if not self._topics or topic.name in self._topics]

    def _archive(self, topic: Topic, part: TopicPartition, pieces: list[SegmentRange]) -> int:
        files = self._table.files(part)
        if files and self._table.about(files[-1].path).get("topicId") != str(topic.topic_id):
            raise SealogError(
                f"archive: the table's {part} is of another topic of that name, which was deleted since"
            )
        end = files[-1].range.end if files else None
        for piece in pieces:
            if end is not None and piece.range.end <= end:
                continue
            start = piece.range.start if end is None else max(piece.range.start, end)
            if (
                start > (topic.starts.get(part.partition, 0) if end is None else end)
                and self._fail_on_data_loss
            ):
                raise DataLossError(
                    f"archive: {part}: offsets {end or 0} to {start - 1} are in no file any more. "
                    "With --skip-lost the job goes on behind them."
                )
            wanted = OffsetRange(part, start, piece.range.end)
            file = self._table.write(wanted, topic.topic_id, _records(SegmentRange(piece.path, wanted)))
            self._verified.add(file.range)
            rows = self._table.about(file.path)["rows"]
            say(f"{part}: offsets {wanted.start} to {wanted.end - 1} archived and verified, {rows} records")
            end = wanted.end
        return end if end is not None else topic.starts.get(part.partition, 0)

    def delete_archived(self) -> None:
        """Let the log drop what the table holds. Raises SealogError, KafkaError; nothing unverified is dropped."""
        assert self._cluster is not None
        ids = {topic.name: topic.topic_id for topic in self._find()}
        parts = [part for part in self._table.partitions() if part.topic in ids]
        starts = self._cluster.list_offsets(dict.fromkeys(parts, EARLIEST))
        ends = self._cluster.list_offsets(dict.fromkeys(parts, LATEST))
        for part in parts:
            end = starts[part]
            for file in self._table.files(part):
                if file.range.end <= end:
                    continue
                if file.range.start > end or file.range.end > ends[part]:
                    break
                if self._table.about(file.path).get("topicId") != str(ids[part.topic]):
                    raise SealogError(f"archive: {file.path} is of another topic of that name")
                if file.range not in self._verified:
                    self._table.verify(file)
                    self._verified.add(file.range)
                end = file.range.end
            if end > starts[part]:
                self._cluster.delete_records(part, end)
                say(f"{part}: the log begins at {end} now")

    def verify(self) -> int:
        """Read the whole table; how many records it has. Raises SealogError for the first file that is damaged."""
        rows = 0
        for part in self._table.partitions():
            for file in self._table.files(part):
                rows += self._table.verify(file).rows
        return rows


def _records(one: SegmentRange) -> Iterator[Records]:
    """What is committed, with the number of records checked against the batches' own."""
    for batches in committed_batches(one):
        inside = all(
            batch.header.base_offset >= one.range.start and batch.header.last_offset < one.range.end
            for batch in batches
        )
        rows = 0
        for records in decode(batches, one.range.start, one.range.end, with_headers=True):
            rows += len(records)
            yield records
        counted = sum(batch.header.record_count for batch in batches)
        if inside and rows != counted:
            raise SealogError(f"{one.path}: {counted} records, of which {rows} were read")


def say(text: str) -> None:
    click.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}")


@click.command(help=__doc__)
@click.option("--table", required=True, help="Folder of the Parquet table; made if need be.")
@click.option(
    "--segments",
    multiple=True,
    help="The broker's data folder, a topic's folder in it, or copies of files; may be given several times.",
)
@click.option(
    "--topic", "topics", multiple=True, help="This topic alone; may be given several times.  [default: all]"
)
@click.option(
    "--bootstrap-server", help="HOST:PORT of the broker: to show how far behind the log the table is."
)
@click.option(
    "--delete-archived", is_flag=True, help="Then let the log drop what is verified to be in the table."
)
@click.option("--every", type=float, help="Look for more every so many seconds, until killed.")
@click.option("--skip-lost", is_flag=True, help="Go on where offsets were deleted before they were archived.")
@click.option(
    "--verify",
    is_flag=True,
    help="Read the whole table and compare it with what its files say; nothing else.",
)
def main(
    table: str,
    segments: tuple[str, ...],
    topics: tuple[str, ...],
    bootstrap_server: str | None,
    delete_archived: bool,
    every: float | None,
    skip_lost: bool,
    verify: bool,
) -> None:
    if delete_archived and not bootstrap_server:
        raise click.UsageError("--delete-archived needs --bootstrap-server")
    if not verify and not segments:
        raise click.UsageError("--segments must say where the segment files are")
    cluster = (
        Cluster(client_settings({"kafka.bootstrap.servers": bootstrap_server})) if bootstrap_server else None
    )
    archiver = Archiver(ArchiveTable(table), segments, topics, cluster, fail_on_data_loss=not skip_lost)
    try:
        if verify:
            say(f"{archiver.verify():,} records in {table}, all as they should be")
            return
        with ArchiveTable(table).locked():
            while True:
                for one in archiver.run():
                    log_end = "" if one.log_end is None else f", the log to {one.log_end}"
                    say(
                        f"{one.part}: archived to {one.archived}, settled to {one.settled}{log_end}, lag {one.lag}"
                    )
                if delete_archived:
                    archiver.delete_archived()
                if every is None:
                    return
                time.sleep(every)
    except (SealogError, KafkaError, OSError) as error:
        click.echo(f"{error}", err=True)
        sys.exit(1)
    finally:
        if cluster is not None:
            cluster.close()


if __name__ == "__main__":
    main()
