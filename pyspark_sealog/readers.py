"""The batch and the streaming reader, as Spark's driver sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_sealog.archived_log import cut_for_tasks, open_log
from pyspark_sealog.cluster import EARLIEST, LATEST, Cluster
from pyspark_sealog.options import SourceOptions
from pyspark_sealog.planning import checked_ranges, find_partitions, resolve
from pyspark_sealog.ranges import Offsets, from_json, limited, to_json
from pyspark_sealog.reading import RangePartition, read_range

JsonOffsets = dict[str, dict[str, int]]


class BatchReader(DataSourceReader):
    """Reads between two sets of offsets, fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with open_log(options) as cluster:
            parts = find_partitions(cluster, options)
            start = resolve(cluster, options, parts, options.starting, "starting")
            end = resolve(cluster, options, parts, options.ending, "ending")
            ranges = cut_for_tasks(options, checked_ranges(cluster, options, start, end))
        return [RangePartition(one) for one in ranges] or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are {"topic": {"0": 12}}: of each partition the next one to read, as the Kafka connector writes them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: Offsets | None = None
        """Of a query that shall end: where it ends."""
        self._took_at = time.monotonic()
        self._connected: Cluster | None = None
        """Kept between the calls of one query: Spark asks for the latest offsets many times in a second."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connected": None}

    def _cluster(self) -> Cluster:
        if self._connected is None:
            self._connected = open_log(self._options)
        return self._connected

    def stop(self) -> None:
        if self._connected is not None:
            self._connected.close()

    def initialOffset(self) -> JsonOffsets:
        options, cluster = self._options, self._cluster()
        parts = find_partitions(cluster, options)
        return to_json(resolve(cluster, options, parts, options.starting, "starting"))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> JsonOffsets:
        begin = from_json(start)
        cluster = self._cluster()
        end = self._end(cluster)
        new = [part for part in end if part not in begin]
        begin |= cluster.list_offsets(dict.fromkeys(new, EARLIEST))
        if not isinstance(limit, ReadAllAvailable):
            if self._target is None and self._should_wait(begin, end):
                return start
            if isinstance(limit, ReadMaxRows):
                end = limited(begin, end, limit.max_rows)
        self._took_at = time.monotonic()
        return to_json(end)

    def _end(self, cluster: Cluster) -> Offsets:
        if self._target is not None:
            return self._target
        parts = find_partitions(cluster, self._options)
        return cluster.list_offsets(dict.fromkeys(parts, LATEST))

    def _should_wait(self, begin: Offsets, end: Offsets) -> bool:
        """Whether fewer records wait than minOffsetsPerTrigger wants, and not yet for too long."""
        waiting = sum(max(end[part] - begin.get(part, 0), 0) for part in end)
        late = time.monotonic() - self._took_at > self._options.max_delay_s
        return waiting < self._options.min_offsets and not late

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end(self._cluster())

    def reportLatestOffset(self) -> JsonOffsets | None:
        """For the query's progress: where the topics end, whatever the query has taken of them."""
        cluster = self._cluster()
        parts = find_partitions(cluster, self._options)
        return to_json(cluster.list_offsets(dict.fromkeys(parts, LATEST)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = checked_ranges(self._cluster(), self._options, from_json(start), from_json(end))
        return [RangePartition(one) for one in cut_for_tasks(self._options, ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition)
