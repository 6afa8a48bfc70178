"""What Spark finds under the name "sealog"."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from pyspark_sealog.columns import schema_of
from pyspark_sealog.errors import OptionError
from pyspark_sealog.options import SourceOptions, source_options
from pyspark_sealog.readers import BatchReader, StreamReader
from pyspark_sealog.sink_options import sink_options
from pyspark_sealog.writers import BatchWriter, StreamWriter


class DefaultSource(DataSource):
    """Topics of a sealog broker, read and written. docs/spark.md lists the options."""

    @classmethod
    def name(cls) -> str:
        return "sealog"

    def schema(self) -> StructType:
        return schema_of(source_options(self.options, streaming=None))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._source(schema, streaming=False), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self._source(schema, streaming=True), schema)

    def _source(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        options = source_options(self.options, streaming=streaming)
        if schema != schema_of(options):
            raise OptionError(
                "the source has a fixed schema: option columns chooses columns, keyFormat and valueFormat their types"
            )
        return options

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise OptionError("a log can only be appended to: use mode('append')")
        return BatchWriter(sink_options(self.options, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamWriter(sink_options(self.options, streaming=True), schema)
