"""What a topic demands of a batch's timestamps, before it is appended.

With CreateTime a batch too far from the broker's clock is refused; with LogAppendTime the broker's clock is written
into the batch's header, and the CRC set anew. Source: Kafka's LogValidator; KIP-32, KIP-937.
"""

from __future__ import annotations

from typing_extensions import Buffer

from broker.topic import NO_LIMIT_MS, Rules
from wire.batch import NO_TIMESTAMP, BatchHeader, with_append_time
from wire.errors import ErrorCode, KafkaError
from wire.records import iterate_records


def admit(rules: Rules, header: BatchHeader, records: Buffer, now_ms: int) -> tuple[BatchHeader, Buffer, int]:
    """(header, batch, log append time in ms or -1) to go on with.

    Raises:
        KafkaError: INVALID_TIMESTAMP.
    """
    if rules.append_time:
        header, stamped = with_append_time(records, header, now_ms)
        return header, stamped, now_ms
    ahead_ms = header.max_timestamp - now_ms
    if ahead_ms > rules.timestamp_after_max_ms:
        raise KafkaError(
            ErrorCode.invalid_timestamp,
            f"timestamp {header.max_timestamp} is {ahead_ms} ms ahead, "
            f"message.timestamp.after.max.ms is {rules.timestamp_after_max_ms}",
        )
    if rules.timestamp_before_max_ms != NO_LIMIT_MS:
        earliest = now_ms - rules.timestamp_before_max_ms
        for record in iterate_records(records):
            if record.timestamp < earliest and record.timestamp != NO_TIMESTAMP:
                raise KafkaError(
                    ErrorCode.invalid_timestamp,
                    f"timestamp {record.timestamp} is {now_ms - record.timestamp} ms behind, "
                    f"message.timestamp.before.max.ms is {rules.timestamp_before_max_ms}",
                )
    return header, records, NO_TIMESTAMP
