"""`format("sealog").option("segments", PATH)`: a batch query over sealed segment files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_sealog.columns import ColumnMaker
from pyspark_sealog.decode import decode
from pyspark_sealog.errors import OptionError
from pyspark_sealog.options import ColumnOptions, column_options, common_options
from pyspark_sealog.ranges import split
from pyspark_sealog.reading import ROWS_PER_BATCH
from pyspark_sealog.segment_files import SegmentRange, Topic, committed_batches, find_topics
from pyspark_sealog.settings import boolean, whole
from pyspark_sealog.task_process import leave_imports_alone

SEGMENT_OPTIONS = (
    "segments",
    "subscribe",
    "subscribePattern",
    "failOnDataLoss",
    "minPartitions",
    "includeHeaders",
    "columns",
    "keyFormat",
    "keySchema",
    "valueFormat",
    "valueSchema",
)


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """What is read of which files."""

    paths: tuple[str, ...]
    topics: tuple[str, ...]
    pattern: str | None
    fail_on_data_loss: bool
    min_partitions: int
    columns: ColumnOptions


def segment_options(options: Mapping[str, str]) -> SegmentOptions:
    """Raises OptionError."""
    kafka = [name for name in options if name.lower().startswith("kafka.")]
    if kafka:
        raise OptionError(f"option segments reads files, so {kafka[0]} says nothing there")
    ours = common_options(options, SEGMENT_OPTIONS)
    paths = tuple(path.strip() for path in ours["segments"].split(",") if path.strip())
    if not paths:
        raise OptionError("option segments names no file or folder")
    pattern = ours.get("subscribepattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"option subscribePattern: {pattern!r}: {error}") from None
    return SegmentOptions(
        paths,
        tuple(name.strip() for name in ours.get("subscribe", "").split(",") if name.strip()),
        pattern,
        boolean(ours, "failOnDataLoss", True),
        whole(ours, "minPartitions", 0, least=1),
        column_options(ours),
    )


class SegmentPartition(InputPartition):
    """What one task reads: all that is wanted of one file, or a part of it."""

    def __init__(self, ranges: Sequence[SegmentRange]) -> None:
        super().__init__(list(ranges))
        self.ranges = ranges


class SegmentReader(DataSourceReader):
    """One task per file, or more where minPartitions asks for them."""

    def __init__(self, options: SegmentOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        found = find_topics(options.paths, fail_on_data_loss=options.fail_on_data_loss)
        pieces = [one for topic in self._chosen(found) for part in topic.parts.values() for one in part]
        by_file: dict[str, list[SegmentRange]] = {}
        for one in pieces:
            by_file.setdefault(one.path, []).append(one)
        if len(by_file) >= options.min_partitions:
            return [SegmentPartition(ranges) for ranges in by_file.values()] or [SegmentPartition([])]
        whole_at = {(one.range.part, one.range.start): one.path for one in pieces}
        cut = split([one.range for one in pieces], options.min_partitions, 0)
        out, path = [], ""
        for piece in cut:
            path = whole_at.get((piece.part, piece.start), path)  # parts of one follow each other
            out.append(SegmentPartition([SegmentRange(path, piece)]))
        return out

    def _chosen(self, topics: list[Topic]) -> list[Topic]:
        options = self._options
        names = {topic.name for topic in topics}
        missing = [name for name in options.topics if name not in names]
        if missing:
            raise OptionError(
                f"option subscribe: there is no settled segment of {', '.join(missing)}, "
                f"only of {', '.join(sorted(names)) or 'none'}"
            )
        return [
            topic
            for topic in topics
            if (not options.topics or topic.name in options.topics)
            and (options.pattern is None or re.fullmatch(options.pattern, topic.name))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        leave_imports_alone()
        assert isinstance(partition, SegmentPartition)
        make = ColumnMaker(self._options.columns, self._schema)
        for one in partition.ranges:
            for batches in committed_batches(one):
                for records in decode(
                    batches, one.range.start, one.range.end, with_headers=make.needs_headers
                ):
                    whole_batch = make(one.range.part, records)
                    for start in range(0, whole_batch.num_rows, ROWS_PER_BATCH):
                        yield whole_batch.slice(start, ROWS_PER_BATCH)
