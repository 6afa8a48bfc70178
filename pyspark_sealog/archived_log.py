"""A topic whose history lies in an archive table and whose tail at the broker, as one log by offset."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_sealog.archive_table import ArchiveTable
from pyspark_sealog.cluster import EARLIEST, Cluster, TopicPartition
from pyspark_sealog.options import SourceOptions
from pyspark_sealog.ranges import OffsetRange


class ArchivedLog(Cluster):
    """A cluster whose partitions begin where the table does."""

    def __init__(self, options: SourceOptions, table: ArchiveTable) -> None:
        super().__init__(options.client)
        self._table = table

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = super().list_offsets(wanted)
        for part, asked in wanted.items():
            older = None
            if asked == EARLIEST:
                files = self._table.files(part)
                older = files[0].range.start if files else None
            elif asked >= 0:
                older = self._table.offset_by_time(part, asked)
            if older is not None and (found[part] < 0 or older < found[part]):
                found[part] = older
        return found


def open_log(options: SourceOptions) -> Cluster:
    if options.archive is None:
        return Cluster(options.client)
    return ArchivedLog(options, ArchiveTable(options.archive))


def cut_for_tasks(options: SourceOptions, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """A task of its own for each file of the table."""
    if options.archive is None:
        return ranges
    table = ArchiveTable(options.archive)
    return [piece for one in ranges for _, piece in table.cut(one)]
