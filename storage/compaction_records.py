"""The records of a batch as compaction reads them: by the record reader of aiokafka, a stock client's, in native code.

It is some ten times as fast as `wire.records`, which is for the broker's own process: that one bounds what it holds and
brings no client with it. Only the process that compacts imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch

from wire.batch import BATCH_HEADER_SIZE, COMPRESSION_MASK, COMPRESSION_NONE, pack_batch, parse_header
from wire.compression import decompress
from wire.errors import ErrorCode, KafkaError
from wire.records import DEFAULT_MAX_BYTES, Record


def decode(batch: bytes) -> Iterator[Record]:
    """The records of one batch, in order of offsets.

    Raises KafkaError(CORRUPT_MESSAGE) at the record that is malformed, for a batch that unpacks to more than
    `DEFAULT_MAX_BYTES`, and for offsets that the batch's header does not cover or that do not rise.
    """
    header = parse_header(batch)
    if header.compression != COMPRESSION_NONE:
        # The library unpacks without a bound, so it gets the batch unpacked.
        batch = pack_batch(
            decompress(header.compression, memoryview(batch)[BATCH_HEADER_SIZE:], DEFAULT_MAX_BYTES),
            record_count=header.record_count,
            base_offset=header.base_offset,
            attributes=header.attributes & ~COMPRESSION_MASK,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
        )
    previous = header.base_offset - 1
    try:
        for one in DefaultRecordBatch(batch):
            if not previous < one.offset <= header.last_offset:
                raise _corrupt(f"offset {one.offset} is not within {previous + 1}..{header.last_offset}")
            previous = one.offset
            yield Record(one.key, one.value, tuple(one.headers), one.timestamp, one.offset)
    except (CorruptRecordException, ValueError, OverflowError) as error:
        raise _corrupt(str(error)) from error


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, message)
