"""Sealed segments as files: which of those in a folder hold which offsets, and their records. No broker is asked.

Guarantee: what is read is what a read_committed consumer got of these offsets when the files were as they are: aborted
transactions left out, and what DeleteRecords hid. Of several files that hold the same offsets (compaction writes them
anew, and several into one) each offset is taken from one. The log's end that is not sealed or not settled yet is left
out; offsets missing in the middle are an error.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark_sealog.cluster import TopicPartition
from pyspark_sealog.decode import Batch
from pyspark_sealog.errors import DataLossError, SealogError
from pyspark_sealog.ranges import OffsetRange
from storage.format import SEGMENT_SUFFIX, CorruptLog
from storage.log_starts import LogStarts
from storage.sealed import NotSealed, NotSettled, SealedSegment, log_starts_in, open_sealed
from wire.batch import BATCH_HEADER_SIZE, parse_header

_log = logging.getLogger(__name__)

_BATCHES_BYTES = 8 * 1024 * 1024
"""So much is handed on at once for decoding."""


class SegmentRange(NamedTuple):
    """Offsets of one partition, to be taken from this file."""

    path: str
    range: OffsetRange


class _Piece(NamedTuple):
    """What one file says of one partition."""

    start: int
    end: int
    generation: int
    settled: bool
    path: str


class Topic(NamedTuple):
    """A topic's files. `parts`: by partition what is there to be read, in order, without a hole."""

    name: str
    topic_id: uuid.UUID
    parts: dict[int, list[SegmentRange]]
    starts: dict[int, int]
    """Where the log of each partition begins."""


def find_topics(paths: Sequence[str], *, fail_on_data_loss: bool) -> list[Topic]:
    """`paths`: segment files, folders of them, or folders of such folders (a broker's data folder).

    Raises SealogError where there is nothing, a file that was named is not sealed and settled, or one is damaged;
    DataLossError where offsets are missing.
    """
    topics: dict[uuid.UUID, dict[int, list[_Piece]]] = {}
    names: dict[uuid.UUID, str] = {}
    starts: dict[uuid.UUID, dict[int, int]] = {}
    for text in paths:
        path = Path(text)
        if not path.exists():
            raise SealogError(f"option segments: there is no {text}")
        named = path.is_file()
        files = [path] if named else sorted(path.rglob(f"*{SEGMENT_SUFFIX}"))
        for folder in sorted({file.parent for file in files}):
            begins = _log_starts(folder)
            if begins is not None:
                known = starts.setdefault(begins.topic_id, {})
                for partition, offset in begins.offsets.items():
                    known[partition] = max(offset, known.get(partition, 0))
        for file in files:
            _add(file, named, topics, names)
    if not topics and not any(
        Path(text).is_dir() and any(Path(text).rglob(f"*{SEGMENT_SUFFIX}")) for text in paths
    ):
        raise SealogError(f"option segments: there are no segment files in {', '.join(paths)}")
    found = []
    for topic_id, pieces in topics.items():
        if topic_id not in names:
            continue  # nothing of it is settled yet
        name = names[topic_id]
        begins_at = starts.get(topic_id, {})
        parts = {
            partition: _in_order(
                TopicPartition(name, partition), of_one, begins_at.get(partition, 0), fail_on_data_loss
            )
            for partition, of_one in sorted(pieces.items())
        }
        found.append(Topic(name, topic_id, parts, begins_at))
    twice = {one.name for one in found if sum(other.name == one.name for other in found) > 1}
    if twice:
        raise SealogError(f"option segments: files of several topics named {', '.join(sorted(twice))}")
    return sorted(found, key=lambda one: one.name)


def _log_starts(folder: Path) -> LogStarts | None:
    try:
        return log_starts_in(str(folder))
    except CorruptLog as error:
        raise SealogError(f"option segments: in {folder}: {error}") from error


def _add(
    file: Path, named: bool, topics: dict[uuid.UUID, dict[int, list[_Piece]]], names: dict[uuid.UUID, str]
) -> None:
    try:
        with open_sealed(str(file)) as segment:
            settled = segment.settled
            if settled is None and named:
                raise NotSettled(f"{file.name}: its outcomes are not written down beside it (yet)")
            header = segment.header
            if settled is not None:
                names[header.topic_id] = settled.owner.topic
            for partition, index in segment.partitions.items():
                if index.end_offset > index.start_offset:
                    topics.setdefault(header.topic_id, {}).setdefault(partition, []).append(
                        _Piece(
                            index.start_offset,
                            index.end_offset,
                            header.generation,
                            settled is not None,
                            str(file),
                        )
                    )
    except NotSealed as error:
        if named:
            raise SealogError(f"option segments: in {file.parent}: {error}") from error
    except (NotSettled, CorruptLog) as error:
        raise SealogError(f"option segments: in {file.parent}: {error}") from error
    except FileNotFoundError:
        if named:
            raise
        # The broker removed it meanwhile: compaction wrote it anew, or it is behind the log start.


def _in_order(
    part: TopicPartition, pieces: list[_Piece], log_start: int, fail_on_data_loss: bool
) -> list[SegmentRange]:
    """Every offset from one file: of those that hold it the one that begins first, of the latest generation."""
    found: list[SegmentRange] = []
    unsettled = [piece for piece in pieces if not piece.settled]
    position: int | None = None
    for piece in sorted(pieces, key=lambda one: (one.start, -one.end, -one.generation)):
        if not piece.settled:
            continue
        start = max(piece.start, log_start, position or 0)
        if piece.end <= start:
            continue
        at = max(log_start, position) if position is not None else start
        if start > at:
            if any(one.start <= at < one.end for one in unsettled):
                break  # from here on the outcomes are not known yet
            missing = f"{part}: offsets {at} to {start - 1} are in none of the files"
            if fail_on_data_loss:
                raise DataLossError(
                    f"option segments: {missing}. With failOnDataLoss=false the rest is read all the same."
                )
            _log.warning("data loss (failOnDataLoss=false): %s", missing)
        found.append(SegmentRange(piece.path, OffsetRange(part, start, piece.end)))
        position = piece.end
    return found


def committed_batches(one: SegmentRange) -> Iterator[list[Batch]]:
    """What is committed in these offsets, as batches of some MiB together. Raises SealogError."""
    try:
        with open_sealed(one.path) as segment:
            yield from _committed(segment, one.range)
    except (NotSealed, NotSettled, CorruptLog) as error:
        raise SealogError(f"{Path(one.path).parent}: {error}") from error


def _committed(segment: SealedSegment, wanted: OffsetRange) -> Iterator[list[Batch]]:
    group: list[Batch] = []
    size_bytes = 0
    for stored in segment.committed(wanted.part.partition, wanted.start):
        if stored.base_offset >= wanted.end:
            break
        data = bytes(stored.data)
        group.append(Batch(parse_header(data), data, BATCH_HEADER_SIZE, len(data)))
        size_bytes += len(data)
        if size_bytes >= _BATCHES_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group
