"""Reading a sealed segment file in any process, in place or copied elsewhere: no broker, no event loop, no lock.

A sealed segment never changes, and neither does what is known of it: the footer has its index and the producers as they
were, its sidecar (`storage.settled`) the topic's name and the outcomes. Guarantees: what comes out had both its CRCs
checked; `committed` gives what a read_committed consumer would see, or says that it is not known yet.

Whoever lists a broker's folder finds segments that go away: one that is open can be read to its end all the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from types import TracebackType
from typing import Any, NamedTuple

from storage import reader, timestamps
from storage.cache import SegmentCache
from storage.disk import Disk
from storage.format import HEADER_BLOCK_BYTES, CorruptLog, HeaderBlock
from storage.index import PartitionIndex
from storage.log_starts import LogStarts, read_log_starts
from storage.partition import PartitionLog
from storage.producers import ProducerBudget, ProducerStates
from storage.reader import EXTENT_BYTES, Skip, StoredBatch
from storage.real_disk import RealDisk
from storage.scan import ScannedEntry, Scanner
from storage.segment import Segment
from storage.settled import Settled, read_settled
from wire.batch import check_crc, parse_header
from wire.errors import KafkaError


class NotSealed(Exception):
    """The file has no footer: it is being written to, or the broker was stopped before it had one."""


class NotSettled(Exception):
    """Which transactions of the segment were committed is not written down beside it (yet)."""


class TimePoint(NamedTuple):
    """The run of batches that begins at `offset` has a later record than all before it: `timestamp_ms`."""

    timestamp_ms: int
    offset: int


class SealedSegment:
    """One sealed segment. Offsets are records, positions and sizes bytes, times ms. Close it, or use it in a `with`."""

    def __init__(self, disk: Disk, path: str) -> None:
        """`path` as the disk knows it; see `open_sealed`.

        Raises CorruptLog (UnknownFormat), naming file and position; NotSealed; OSError.
        """
        self._disk = disk
        self._segment = Segment.open_path(disk, path, SegmentCache())
        self._settled: Settled | CorruptLog | None = None
        if self._segment.state != "SEALED":
            self._segment.close()
            raise NotSealed(f"{path}: it has no footer, so it is not sealed")
        # Now, and not when it is asked for: the broker may remove both meanwhile.
        self._read_settled()

    def _read_settled(self) -> None:
        try:
            self._settled = read_settled(self._disk, self.path, self._segment.salt)
        except CorruptLog as error:
            self._settled = error

    def __enter__(self) -> SealedSegment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._segment.close()

    # What it is.

    @property
    def path(self) -> str:
        return self._segment.path

    @property
    def header(self) -> HeaderBlock:
        """Topic id, segment id, its partitions, term, when it was made, parents, generation."""
        return self._segment.header

    @property
    def size_bytes(self) -> int:
        return self._segment.file_size

    @property
    def entries_end(self) -> int:
        """The position after the last entry: the footer's."""
        return self._segment.end

    @property
    def partitions(self) -> Mapping[int, PartitionIndex]:
        """Those that had offsets when it was sealed: start and end offset, latest timestamp, leader epochs, size.

        One without `runs` has no entry here."""
        return self._segment.indexes

    @property
    def settled(self) -> Settled | None:
        """The outcomes; None as long as they are not written down. Raises CorruptLog, OSError."""
        if self._settled is None:
            self._read_settled()  # it may be there by now
        if isinstance(self._settled, CorruptLog):
            raise self._settled
        return self._settled

    @property
    def topic(self) -> str | None:
        """The topic's name; None as long as the segment is not settled. Its id is in the header."""
        settled = self.settled
        return settled.owner.topic if settled is not None else None

    def producers(self) -> dict[int, list[list[Any]]]:
        """Per partition, the idempotent producers as they were when it was sealed: [id, epoch, last use, batches] each.

        Raises CorruptLog, OSError."""
        return dict(self._segment.load_producers())

    # Reading. Everything here raises CorruptLog, naming file and position, and OSError.

    def entries(self) -> Iterator[ScannedEntry]:
        """All entries in the order of the file, with their batches' headers."""
        scanner = Scanner(self._segment.file(), self._segment.header, HEADER_BLOCK_BYTES, self._segment.end)
        yield from scanner
        if scanner.position != self._segment.end:
            raise CorruptLog(
                self.path, scanner.position, scanner.reason or "the entries end before the footer"
            )

    def batches(self, partition: int, from_offset: int = 0) -> Iterator[StoredBatch]:
        """A partition's batches, whole, from the one that contains `from_offset` on; committed, aborted, all of them.

        Raises KeyError for a partition that is not in `partitions`."""
        log = self._log(partition)
        start = min(max(from_offset, log.log_start_offset), log.end_offset)
        try:
            for batch in reader.walk(log, start, log.end_offset, EXTENT_BYTES):
                start = batch.base_offset
                check_crc(batch.data, parse_header(batch.data))
                yield batch
        except KafkaError as error:
            raise self._corrupt(error, partition, start) from error

    def committed(self, partition: int, from_offset: int = 0) -> Iterator[StoredBatch]:
        """As `batches`, without those of aborted transactions, and from the first offset whose outcome is known.

        Raises NotSettled as well."""
        settled = self.settled
        if settled is None:
            raise NotSettled(
                f"{self.path}: which of its transactions were committed is not written down beside it yet"
            )
        first = settled.partitions[partition].first if partition in settled.partitions else 0
        skip = skip_aborted(settled, partition)
        for batch in self.batches(partition, max(from_offset, first)):
            if batch.is_transactional and skip(batch.producer_id, batch.base_offset):
                continue
            yield batch

    def time_index(self, partition: int) -> list[TimePoint]:
        """Where the latest timestamp grows, as exact as the index is: runs of batches, of 16 KiB or one batch each."""
        index = self.partitions[partition]
        self._segment.load(index)
        points: list[TimePoint] = []
        for timestamp, base in zip(index.timestamps, index.bases, strict=True):
            if not points or timestamp > points[-1].timestamp_ms:
                points.append(TimePoint(timestamp, base))
        return points

    def offset_for_timestamp(
        self, partition: int, timestamp_ms: int, *, committed: bool = True
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that is not older; None when there is none. Decodes batches.

        Raises NotSettled as well, where only what is committed counts."""
        log = self._log(partition)
        skip: Skip | None = None
        if committed:
            settled = self.settled
            if settled is None:
                raise NotSettled(f"{self.path}: its outcomes are not written down beside it yet")
            skip = skip_aborted(settled, partition)
            if partition in settled.partitions:
                log.log_start_offset = settled.partitions[partition].first
        try:
            return timestamps.offset_for_timestamp(log, timestamp_ms, log.end_offset, skip)
        except KafkaError as error:
            raise self._corrupt(error, partition, log.log_start_offset) from error

    def _corrupt(self, error: KafkaError, partition: int, offset: int) -> CorruptLog:
        """With the position of the damage, or of the run of entries that it is in."""
        if isinstance(error.__cause__, CorruptLog):
            return error.__cause__
        index = self.partitions[partition]
        run = max(0, bisect_right(index.bases, offset) - 1)
        reason = f"partition {partition} from offset {offset} on is damaged ({error.message})"
        return CorruptLog(self.path, index.positions[run] if index.positions else 0, reason)

    def _log(self, partition: int) -> PartitionLog:
        """The partition as a log that begins and ends with this segment."""
        index = self.partitions[partition]
        log = PartitionLog(partition, index.start_offset, ProducerStates(ProducerBudget(0, 0)))
        log.add_index(index)
        log.end_offset = log.high_watermark = index.end_offset
        return log


def skip_aborted(settled: Settled, partition: int) -> Skip:
    """(producer id, base offset) of a transactional batch -> whether it was aborted."""
    by_producer: dict[int, tuple[list[int], list[int]]] = {}
    found = settled.partitions.get(partition)
    for producer_id, first, last in sorted(found.aborted) if found is not None else ():
        firsts, lasts = by_producer.setdefault(producer_id, ([], []))
        firsts.append(first)
        lasts.append(last)

    def skip(producer_id: int, base_offset: int) -> bool:
        firsts, lasts = by_producer.get(producer_id, ([], []))
        at = bisect_right(firsts, base_offset) - 1
        return at >= 0 and lasts[at] >= base_offset

    return skip


def open_sealed(path: str) -> SealedSegment:
    """A sealed segment file of the file system, and its sidecar if that lies beside it under the same name.

    Raises as `SealedSegment`."""
    where = PurePath(path)
    return SealedSegment(RealDisk(str(where.parent), _no_loop, make=False), where.name)


def log_starts_in(folder: str) -> LogStarts | None:
    """Where the partitions of the topic begin whose segments lie in this folder of the file system; None: nothing of it
    was ever deleted. Raises CorruptLog (UnknownFormat), OSError."""
    return read_log_starts(RealDisk(folder, _no_loop, make=False), "")


def _no_loop(callback: Callable[..., Any], *_: Any) -> None:
    raise AssertionError(f"a reader has no loop to call {callback} on")
