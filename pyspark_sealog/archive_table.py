"""The archive: a Parquet table of what was committed, by topic, partition and range of offsets.

    TABLE/topic=orders/partition=0/00000000000000000000-00000000000000001500.parquet

Guarantees: a file has its name only when it is whole, on the device, and was read back and found equal to what it was
made of; so whatever is killed at any point leaves no half file and no range twice. The names alone say what is there.
Offsets that hold no committed record (an aborted transaction's) belong to a file's range all the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_sealog.cluster import TopicPartition
from pyspark_sealog.decode import HEADERS_TYPE, Records
from pyspark_sealog.errors import SealogError
from pyspark_sealog.ranges import OffsetRange

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")
_TEMPORARY: Final = ".tmp"
_ABOUT: Final = "sealog."


class ArchiveFile(NamedTuple):
    path: Path
    range: OffsetRange


class Checksum:
    """Of the content of records, however they are cut into pieces: one hash per column, and their number."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns = [blake2b(digest_size=16) for _ in range(6)]

    def add(self, records: Records) -> None:
        self.rows += len(records)
        offsets, timestamps, types, keys, values, headers = self._columns
        offsets.update(records.offsets.astype("<i8").tobytes())
        timestamps.update(records.timestamps.astype("<i8").tobytes())
        types.update(records.timestamp_types.astype("<i4").tobytes())
        _add_binary(keys, records.keys)
        _add_binary(values, records.values)
        if records.headers is None:
            raise ValueError("the records were decoded without headers")
        headers.update(_lengths(pc.list_value_length(records.headers)))
        items = records.headers.flatten()
        _add_binary(headers, items.field("key").cast(pa.binary()))
        _add_binary(headers, items.field("value"))

    def digest(self) -> str:
        return "-".join(column.hexdigest() for column in self._columns)


def _lengths(column: pa.Array) -> bytes:
    lengths: bytes = pc.fill_null(column, -1).to_numpy(zero_copy_only=False).astype("<i4").tobytes()
    return lengths


def _add_binary(hash_: Any, column: pa.Array) -> None:
    hash_.update(_lengths(pc.binary_length(column)))
    filled = pc.fill_null(column, b"") if column.null_count else column
    _, offsets, data = filled.buffers()
    if data is None or not len(filled):
        return
    bounds = np.frombuffer(offsets, dtype=np.int32)
    first, last = bounds[filled.offset], bounds[filled.offset + len(filled)]
    hash_.update(memoryview(data)[first:last])


class ArchiveTable:
    """A folder that every task and the job can reach under one path."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def _folder_of(self, part: TopicPartition) -> Path:
        return self.folder / f"topic={part.topic}" / f"partition={part.partition}"

    # -- looking

    def partitions(self) -> list[TopicPartition]:
        """What the table has something of."""
        return sorted(
            TopicPartition(path.parent.name.removeprefix("topic="), int(path.name.removeprefix("partition=")))
            for path in self.folder.glob("topic=*/partition=*")
            if path.name.removeprefix("partition=").isdigit()
        )

    def files(self, part: TopicPartition) -> list[ArchiveFile]:
        """In the order of offsets. Raises SealogError where two hold the same offset: other hands were at work."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._folder_of(part))):
                match = _NAME.fullmatch(name)
                if match is not None:
                    bounds = OffsetRange(part, int(match[1]), int(match[2]))
                    found.append(ArchiveFile(self._folder_of(part) / name, bounds))
        for before, after in itertools.pairwise(found):
            if after.range.start < before.range.end:
                raise SealogError(f"archive: {before.path} and {after.path.name} hold the same offsets")
        return found

    def cut(self, wanted: OffsetRange) -> list[tuple[Path | None, OffsetRange]]:
        """The range in pieces, in order: with the file that has them, or None where no file has."""
        out: list[tuple[Path | None, OffsetRange]] = []
        position = wanted.start
        for file in self.files(wanted.part):
            first, end = max(file.range.start, position), min(file.range.end, wanted.end)
            if first >= end:
                continue
            if first > position:
                out.append((None, OffsetRange(wanted.part, position, first)))
            out.append((file.path, OffsetRange(wanted.part, first, end)))
            position = end
        if position < wanted.end:
            out.append((None, OffsetRange(wanted.part, position, wanted.end)))
        return out

    def offset_by_time(self, part: TopicPartition, time_ms: int) -> int | None:
        """Of the first record that is not older."""
        for file in self.files(part):
            with pq.ParquetFile(file.path) as parquet:
                for group in range(parquet.num_row_groups):
                    latest = parquet.metadata.row_group(group).column(1).statistics
                    if latest is not None and latest.has_min_max and _ms(latest.max) < time_ms:
                        continue
                    columns = parquet.read_row_group(group, columns=["offset", "timestamp"])
                    late = np.flatnonzero(columns["timestamp"].cast(pa.int64()).to_numpy() >= time_ms)
                    if len(late):
                        return int(columns["offset"][int(late[0])].as_py())
        return None

    # -- reading

    @staticmethod
    def read(path: Path, wanted: OffsetRange) -> Iterator[Records]:
        """The records of these offsets. Raises SealogError where the file is damaged or gone."""
        try:
            with pq.ParquetFile(path) as parquet:
                groups = []
                for group in range(parquet.num_row_groups):
                    bounds = parquet.metadata.row_group(group).column(0).statistics
                    if bounds.max >= wanted.start and bounds.min < wanted.end:
                        groups.append(group)
                for batch in parquet.iter_batches(16_384, row_groups=groups) if groups else ():
                    records = _records(batch)
                    chosen = slice(*np.searchsorted(records.offsets, (wanted.start, wanted.end)))
                    if chosen.start < chosen.stop:
                        yield _sliced(records, chosen)
        except (OSError, pa.ArrowException) as error:
            raise SealogError(f"archive: {path}: {error}") from error

    @staticmethod
    def about(path: Path) -> dict[str, str]:
        """What a file says of itself: topic, topicId, partition, first, end, rows, checksum. Raises SealogError."""
        try:
            found = pq.read_metadata(path).metadata or {}
        except (OSError, pa.ArrowException) as error:
            raise SealogError(f"archive: {path}: {error}") from error
        return {
            key.decode().removeprefix(_ABOUT): value.decode()
            for key, value in found.items()
            if key.startswith(_ABOUT.encode())
        }

    def verify(self, file: ArchiveFile) -> Checksum:
        """Read a file as a whole. Raises SealogError where it is not what it says of itself, or its name does not."""
        found, last = Checksum(), file.range.start - 1
        try:
            with pq.ParquetFile(file.path) as parquet:
                for batch in parquet.iter_batches(16_384):
                    records = _records(batch)
                    if len(records):
                        offsets = np.concatenate([[last], records.offsets])
                        last = int(offsets[-1])
                        if (np.diff(offsets) <= 0).any() or last >= file.range.end:
                            raise SealogError(
                                f"archive: {file.path}: offsets out of order, or of another range"
                            )
                    found.add(records)
        except (OSError, pa.ArrowException) as error:
            raise SealogError(f"archive: {file.path}: {error}") from error
        part, about = file.range.part, self.about(file.path)
        expected = (part.topic, part.partition, file.range.start, file.range.end, found.rows, found.digest())
        names = ("topic", "partition", "first", "end", "rows", "checksum")
        for name, value in zip(names, expected, strict=True):
            if about.get(name) != str(value):
                raise SealogError(f"archive: {file.path}: {name} is {value}, it says {about.get(name)}")
        return found

    # -- writing, by one job at a time

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one job writes; what a killed one left unfinished is removed. Raises SealogError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "_lock", "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SealogError(f"archive: another job writes to {self.folder}") from None
            for path in self.folder.glob(f"topic=*/partition=*/.*{_TEMPORARY}"):
                path.unlink()
            yield

    def write(self, wanted: OffsetRange, topic_id: uuid.UUID, groups: Iterator[Records]) -> ArchiveFile:
        """One file of these offsets; verified, and durable. Raises SealogError, OSError."""
        folder = self._folder_of(wanted.part)
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            _flush(path.parent)
        name = f"{wanted.start:020d}-{wanted.end:020d}.parquet"
        temporary = folder / f".{name}{_TEMPORARY}"
        written = Checksum()
        with pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
            for records in groups:
                written.add(records)
                writer.write_batch(_batch(records))
            about = {
                "topic": wanted.part.topic,
                "topicId": str(topic_id),
                "partition": str(wanted.part.partition),
                "first": str(wanted.start),
                "end": str(wanted.end),
                "rows": str(written.rows),
                "checksum": written.digest(),
            }
            writer.add_key_value_metadata({_ABOUT + key: value for key, value in about.items()})
        _flush(temporary)
        self.verify(ArchiveFile(temporary, wanted))
        final = folder / name
        temporary.rename(final)
        _flush(folder)
        return ArchiveFile(final, wanted)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _ms(value: Any) -> float:
    return float(value.timestamp() * 1000) if hasattr(value, "timestamp") else float(value)


def _batch(records: Records) -> pa.RecordBatch:
    columns: Sequence[Any] = [
        pa.array(records.offsets),
        pa.array(records.timestamps).cast(SCHEMA.field("timestamp").type),
        pa.array(records.timestamp_types),
        records.keys,
        records.values,
        records.headers,
    ]
    return pa.RecordBatch.from_arrays(list(columns), schema=SCHEMA)


def _records(batch: pa.RecordBatch) -> Records:
    return Records(
        batch.column("offset").to_numpy(),
        batch.column("timestamp").cast(pa.int64()).to_numpy(),
        batch.column("timestampType").to_numpy(),
        batch.column("key"),
        batch.column("value"),
        batch.column("headers").cast(HEADERS_TYPE),
    )


def _sliced(records: Records, chosen: slice) -> Records:
    assert records.headers is not None
    count = chosen.stop - chosen.start
    return Records(
        records.offsets[chosen],
        records.timestamps[chosen],
        records.timestamp_types[chosen],
        records.keys.slice(chosen.start, count),
        records.values.slice(chosen.start, count),
        records.headers.slice(chosen.start, count),
    )
