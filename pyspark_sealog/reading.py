"""A reader task: fetches one range of one partition and gives Arrow batches.

Guarantee: every record of the range that the isolation level shows, once, in order of offsets; or an error. A broker
that restarts in the middle is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_sealog.archive_table import ArchiveTable
from pyspark_sealog.cluster import EARLIEST, Cluster
from pyspark_sealog.columns import ColumnMaker
from pyspark_sealog.decode import Batch, Records, cut, decode
from pyspark_sealog.errors import DataLossError, SealogError
from pyspark_sealog.options import SourceOptions
from pyspark_sealog.ranges import OffsetRange
from pyspark_sealog.task_process import leave_imports_alone
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError

ROWS_PER_BATCH: int = 16_384
"""Rows in one Arrow batch at the most: about where Spark takes them quickest."""


class RangePartition(InputPartition):
    """What one task reads; None where a query has nothing to read."""

    def __init__(self, range_: OffsetRange | None) -> None:
        super().__init__(range_)
        self.range = range_


def read_range(
    options: SourceOptions, schema: StructType, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Raises SealogError or KafkaError."""
    leave_imports_alone()
    assert isinstance(partition, RangePartition)
    if partition.range is None:
        return
    make = ColumnMaker(options.columns, schema)
    for records in _records(options, partition.range, with_headers=make.needs_headers):
        whole = make(partition.range.part, records)
        for start in range(0, whole.num_rows, ROWS_PER_BATCH):
            yield whole.slice(start, ROWS_PER_BATCH)


def _records(options: SourceOptions, wanted: OffsetRange, *, with_headers: bool) -> Iterator[Records]:
    """From the archive what it has, the rest from the broker."""
    if options.archive is None:
        yield from _fetched(options, wanted, None, with_headers=with_headers)
        return
    table = ArchiveTable(options.archive)
    for path, piece in table.cut(wanted):
        if path is not None:
            yield from table.read(path, piece)
            continue
        try:
            yield from _fetched(options, piece, table, with_headers=with_headers)
        except _ArchivedMeanwhile as moved:
            left = OffsetRange(piece.part, moved.offset, piece.end)
            yield from _records(options, left, with_headers=with_headers)


def _fetched(
    options: SourceOptions, wanted: OffsetRange, table: ArchiveTable | None, *, with_headers: bool
) -> Iterator[Records]:
    with Cluster(options.client) as cluster:
        for batches, first in _Fetcher(cluster, wanted, options.fail_on_data_loss, table):
            yield from decode(batches, first, wanted.end, with_headers=with_headers)


class _ArchivedMeanwhile(Exception):
    """The log has dropped what it was asked for, since the archive has it by now."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


@dataclass(slots=True)
class _Fetcher:
    """Fetches whole batches, one answer ahead of what is being decoded."""

    cluster: Cluster
    range: OffsetRange
    fail_on_data_loss: bool
    archive: ArchiveTable | None

    def __iter__(self) -> Iterator[tuple[list[Batch], int]]:
        """Batches, and the first offset of them that is wanted."""
        position = self.range.start
        progress_at = time.monotonic()
        timeout_s = self.cluster.settings.api_timeout_s
        asked: int | None = None
        while position < self.range.end:
            try:
                records = self._next(position, asked)
            except KafkaError as error:
                if error.code is not ErrorCode.offset_out_of_range:
                    raise
                position, asked = self._behind_the_gap(position), None
                continue
            asked = None
            batches = cut(records, check_crcs=self.cluster.settings.check_crcs)
            batches = [batch for batch in batches if batch.header.last_offset >= position]
            if not batches:
                if time.monotonic() - progress_at > timeout_s:
                    raise SealogError(
                        f"{self.range.part}: nothing came for offset {position} within {timeout_s:g} s"
                    )
                continue
            first, position = position, batches[-1].header.last_offset + 1
            if position < self.range.end:
                asked = self._ask_ahead(position)
            yield batches, first
            progress_at = time.monotonic()

    def _next(self, position: int, asked: int | None) -> memoryview:
        """The answer that is under way, or else a new one."""
        number = asked

        def call() -> memoryview:
            nonlocal number
            ours, number = number, None
            return self._receive(self._send(position) if ours is None else ours)

        return self.cluster.retrying(f"reading {self.range.part}", call)

    def _ask_ahead(self, position: int) -> int | None:
        try:
            return self._send(position)
        except (OSError, KafkaError):
            self.cluster.forget()
            return None

    def _send(self, position: int) -> int:
        settings, part = self.cluster.settings, self.range.part
        partition = {
            "partition": part.partition,
            "fetch_offset": position,
            "partition_max_bytes": settings.fetch_bytes,
        }
        return self.cluster.connection(self.cluster.leader(part)).send(
            ApiKey.FETCH,
            replica_id=-1,
            max_wait=settings.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=settings.fetch_bytes,
            isolation_level=settings.isolation_level,
            topics=[{"topic": part.topic, "partitions": [partition]}],
        )

    def _receive(self, number: int) -> memoryview:
        connection = self.cluster.connection(self.cluster.leader(self.range.part))
        answer = connection.receive_fetched(number)
        if answer.error is not ErrorCode.none:
            raise KafkaError(answer.error, f"reading {self.range.part}")
        return answer.records

    def _behind_the_gap(self, position: int) -> int:
        part = self.range.part
        if self.archive is not None:
            path, _ = self.archive.cut(OffsetRange(part, position, self.range.end))[0]
            if path is not None:
                raise _ArchivedMeanwhile(position)
        earliest = self.cluster.list_offsets({part: EARLIEST})[part]
        if self.fail_on_data_loss or not position < earliest:
            raise DataLossError(
                f"{part}: offset {position} is not there any more, the first one is {earliest}. "
                "With failOnDataLoss=false the query goes on with what is there."
            )
        return min(earliest, self.range.end)
