"""Reading the partitions of a range: look-ups by offset, by timestamp, and of transactional batches.

Guarantee: nothing at or above a high watermark is ever returned; whatever the disk does, the caller sees a
KafkaError.
"""

from __future__ import annotations

from collections.abc import Iterator

from storage import reader, timestamps
from storage.format import CorruptLog
from storage.layout import LogConfig
from storage.partition import PartitionLog
from storage.reader import ReadResult, Skip, StoredBatchMeta
from wire.errors import ErrorCode, KafkaError


class RangeReader:
    """The partitions `first`..`last` and how they are read. Offsets are records, sizes bytes."""

    def __init__(self, first: int, last: int, config: LogConfig, partitions: list[PartitionLog]) -> None:
        self.first = first
        self.last = last
        self.config = config
        self._partitions = partitions

    def partition(self, partition: int) -> PartitionLog:
        """Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) outside the range."""
        if not self.first <= partition <= self.last:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"partition {partition} is outside {self.first}..{self.last}",
            )
        return self._partitions[partition - self.first]

    def end_offsets(self) -> dict[int, int]:
        """Of every partition, the next offset to be assigned."""
        return {log.partition: log.end_offset for log in self._partitions}

    def check_readable(self) -> None:
        """Raises KafkaError(KAFKA_STORAGE_ERROR) once the files are closed or gone."""

    def read(
        self,
        partition: int,
        offset: int,
        *,
        limit_offset: int,
        max_bytes: int,
        at_least_one: bool = True,
        skip: Skip | None = None,
    ) -> ReadResult:
        """Whole batches from the one that contains `offset` on, all with last offset < `limit_offset`, at
        most `max_bytes` (but one batch at least, if wanted and there is one). `limit_offset` is at most the
        high watermark. `skip(producer id, base offset)` is asked for transactional batches only; after
        skipping about `skip_scan_bytes` the read ends with `last_skipped` set. The batches are views, not
        copies.

        Raises KafkaError: OFFSET_OUT_OF_RANGE below the log start or above the end, KAFKA_STORAGE_ERROR
        (damage, named by file and position; an unreadable file), UNKNOWN_TOPIC_OR_PARTITION.
        """
        log = self.partition(partition)
        self.check_readable()
        try:
            return reader.read(
                log,
                offset,
                limit_offset=limit_offset,
                max_bytes=max_bytes,
                at_least_one=at_least_one,
                skip=skip,
                skip_scan_bytes=self.config.skip_scan_bytes,
            )
        except (OSError, CorruptLog) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def expect(self, partition: int, offset: int, *, limit_offset: int, size_bytes: int) -> None:
        """Tell the device that `read` will be asked for this much from `offset` on. Raises as `read`, but never for
        an offset."""
        log = self.partition(partition)
        self.check_readable()
        try:
            reader.expect(log, offset, limit_offset=limit_offset, size_bytes=size_bytes)
        except (OSError, CorruptLog) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def transactional_batches(self, partition: int, from_offset: int) -> Iterator[StoredBatchMeta]:
        """The transactional batches from the one that contains `from_offset` up to the high watermark, in
        order.

        Raises as `read`, but OFFSET_OUT_OF_RANGE: below the log start it begins there.
        """
        self.check_readable()
        try:
            yield from reader.transactional_batches(self.partition(partition), from_offset)
        except (OSError, CorruptLog) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def batch_at(self, partition: int, offset: int) -> StoredBatchMeta | None:
        """The batch that contains `offset`; None where there is none below the high watermark. Raises as
        `read`."""
        self.check_readable()
        try:
            return reader.batch_at(self.partition(partition), offset)
        except (OSError, CorruptLog) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def offset_for_timestamp(
        self, partition: int, timestamp_ms: int, limit_offset: int, skip: Skip | None = None
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the first visible record below `limit_offset` that is not older
        (ListOffsets).

        Decodes the batch it finds. Raises as `read`, and CORRUPT_MESSAGE for records that cannot be decoded.
        """
        self.check_readable()
        try:
            return timestamps.offset_for_timestamp(
                self.partition(partition), timestamp_ms, limit_offset, skip
            )
        except (OSError, CorruptLog) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def max_timestamp(
        self, partition: int, limit_offset: int, skip: Skip | None = None
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the visible record below `limit_offset` with the largest timestamp, the
        first of equal ones (ListOffsets, KIP-734). None where there is none. Raises as
        `offset_for_timestamp`.
        """
        self.check_readable()
        try:
            return timestamps.max_timestamp(self.partition(partition), limit_offset, skip)
        except (OSError, CorruptLog) as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
