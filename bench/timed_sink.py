"""`format("sealog_timed")`: the sink, unchanged, which also writes down how long its commits take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_sealog.data_source import DefaultSource
from pyspark_sealog.sink_options import SinkOptions, sink_options
from pyspark_sealog.writers import BatchWriter


class TimedSink(DefaultSource):
    """Option `times`: the file to which a line is added for each commit, its milliseconds."""

    @classmethod
    def name(cls) -> str:
        return "sealog_timed"

    def writer(self, schema: StructType, overwrite: bool) -> TimedWriter:
        options = dict(self.options)
        times = Path(options.pop("times"))
        return TimedWriter(times, sink_options(options, streaming=False), schema)


class TimedWriter(BatchWriter):
    def __init__(self, times: Path, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._times = times

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        began = time.perf_counter()
        super().commit(messages)
        took_ms = (time.perf_counter() - began) * 1000
        with self._times.open("a", encoding="ascii") as file:
            file.write(f"{took_ms}\n")
