"""The columns that a sink takes, checked and brought into one shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, ShortType, StringType, StructType

from pyspark_sealog.cluster import Cluster, TopicPartition
from pyspark_sealog.columns import HEADERS
from pyspark_sealog.decode import HEADERS_TYPE
from pyspark_sealog.errors import OptionError, SealogError
from pyspark_sealog.partitioner import partition_of_keys
from pyspark_sealog.sink_options import SinkOptions

_TEXT: Final = (BinaryType, StringType)
_TYPES: Final = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "partition": (IntegerType, ShortType),
    "headers": (ArrayType,),
}
# Columns of the source that make no sense in a sink but come along when one topic is copied to another.
_IGNORED: Final = {"offset": LongType, "timestamp": object, "timestampType": IntegerType}


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises OptionError for columns that the sink cannot take."""
    for field in schema:
        if field.name in _IGNORED:
            continue
        if field.name not in _TYPES:
            raise OptionError(
                f"the sink knows no column {field.name!r}: it takes {', '.join(_TYPES)}. "
                "to_json(struct(...)).alias('value') makes one value of several columns."
            )
        if not isinstance(field.dataType, _TYPES[field.name]):
            raise OptionError(f"column {field.name!r} cannot be of type {field.dataType.simpleString()}")
        if field.name == "headers" and field.dataType.simpleString() != HEADERS.simpleString():
            raise OptionError(f"column 'headers' must be of type {HEADERS.simpleString()}")
    if "value" not in schema.names:
        raise OptionError("the sink needs a column value")
    if options.topic is None and "topic" not in schema.names:
        raise OptionError("option topic, or a column topic, must say where the rows go")


class Rows:
    """Rows of one partition, in order."""

    __slots__ = ("headers", "keys", "part", "values")

    def __init__(
        self, part: TopicPartition, keys: pa.Array | None, values: pa.Array, headers: pa.Array | None
    ) -> None:
        self.part = part
        self.keys = keys
        self.values = values
        self.headers = headers


class Distributor:
    """Sends each row to its topic and partition: the row's own, the one of its key, or one after the other."""

    def __init__(self, cluster: Cluster, options: SinkOptions, seed: int) -> None:
        self._cluster = cluster
        self._topic = options.topic
        self._turn = seed
        self._counts: dict[str, int] = {}

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Rows]:
        names = batch.schema.names
        keys = _binary(batch.column("key")) if "key" in names else None
        values = _binary(batch.column("value"))
        headers = batch.column("headers").cast(HEADERS_TYPE) if "headers" in names else None
        partitions = batch.column("partition") if "partition" in names else None
        for topic, places in self._topics(batch):
            where = self._partitions(topic, _take(keys, places), _take(partitions, places), len(places))
            order = np.argsort(where, kind="stable")
            found, starts = np.unique(where[order], return_index=True)
            for partition, chosen in zip(found, np.split(places[order], starts[1:]), strict=True):
                part = TopicPartition(topic, int(partition))
                picked = pa.array(chosen)
                yield Rows(
                    part,
                    None if keys is None else keys.take(picked),
                    values.take(picked),
                    None if headers is None else headers.take(picked),
                )

    def _topics(self, batch: pa.RecordBatch) -> Iterator[tuple[str, np.ndarray]]:
        if self._topic is not None:
            yield self._topic, np.arange(batch.num_rows)
            return
        names = batch.column("topic").dictionary_encode()
        if names.null_count:
            raise SealogError("a row has no topic: its column topic is null")
        codes = names.indices.to_numpy(zero_copy_only=False)
        for code, topic in enumerate(names.dictionary.to_pylist()):
            yield topic, np.flatnonzero(codes == code)

    def _partitions(self, topic: str, keys: pa.Array | None, given: pa.Array | None, rows: int) -> np.ndarray:
        count = self._count(topic)
        chosen = np.full(rows, -1, dtype=np.int32)
        if given is not None:
            chosen = pc.fill_null(given.cast(pa.int32()), -1).to_numpy(zero_copy_only=False).copy()
            if (chosen < -1).any() or (chosen >= count).any():
                raise SealogError(f"a row wants partition {chosen.max()} of {topic!r}, which has {count}")
        if keys is not None:
            by_key = np.flatnonzero((chosen == -1) & pc.is_valid(keys).to_numpy(zero_copy_only=False))
            if len(by_key):
                chosen[by_key] = partition_of_keys(keys.take(pa.array(by_key)), count)
        left = np.flatnonzero(chosen == -1)
        chosen[left] = (self._turn + np.arange(len(left))) % count
        self._turn += len(left)
        return chosen

    def _count(self, topic: str) -> int:
        if topic not in self._counts:
            counts = self._cluster.partitions([topic], create=True)
            if topic not in counts:
                raise SealogError(f"there is no topic {topic!r} at {self._cluster.settings.servers_text}")
            self._counts[topic] = counts[topic]
        return self._counts[topic]


def _take(column: pa.Array | None, places: np.ndarray) -> pa.Array | None:
    if column is None or len(places) == len(column):
        return column
    return column.take(pa.array(places))


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())
