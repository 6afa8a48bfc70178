"""What Spark finds under the name "sealog".

Readers and writers are imported when they are asked for: Spark starts a Python process for each step of a query, and
what such a process imports is most of what it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
)
from pyspark.sql.types import StructType

from pyspark_sealog.errors import OptionError
from pyspark_sealog.sink_options import sink_options

if TYPE_CHECKING:
    from pyspark_sealog.options import ColumnOptions, SourceOptions
    from pyspark_sealog.readers import StreamReader


class DefaultSource(DataSource):
    """Topics of a sealog broker, read and written, or its segment files, read. docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "sealog"

    @property
    def _reads_files(self) -> bool:
        return any(name.lower() == "segments" for name in self.options)

    def schema(self) -> StructType:
        from pyspark_sealog.columns import schema_of

        return schema_of(self._columns())

    def _columns(self) -> ColumnOptions:
        from pyspark_sealog.options import source_options
        from pyspark_sealog.segment_reader import segment_options

        if self._reads_files:
            return segment_options(self.options).columns
        return source_options(self.options, streaming=None).columns

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_sealog.readers import BatchReader
        from pyspark_sealog.segment_reader import SegmentReader, segment_options

        self._check(schema)
        if self._reads_files:
            return SegmentReader(segment_options(self.options), schema)
        return BatchReader(self._source(streaming=False), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from pyspark_sealog.readers import StreamReader

        if self._reads_files:
            raise OptionError("option segments is for batch queries alone: files have no end to wait at")
        self._check(schema)
        return StreamReader(self._source(streaming=True), schema)

    def _source(self, *, streaming: bool) -> SourceOptions:
        from pyspark_sealog.options import source_options

        return source_options(self.options, streaming=streaming)

    def _check(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError(
                "the source has a fixed schema: option columns chooses columns, keyFormat and valueFormat their types"
            )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from pyspark_sealog.writers import BatchWriter

        if overwrite:
            raise OptionError("a log can only be appended to: use mode('append')")
        return BatchWriter(sink_options(self.options, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from pyspark_sealog.writers import StreamWriter

        return StreamWriter(sink_options(self.options, streaming=True), schema)
