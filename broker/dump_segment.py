"""What `sealog dump` shows of a segment file, sealed or active, or of a sidecar: plain objects, one per line of output.

Every object has a "kind": segment, partition, batch, record, entry, outcomes, problem. Offsets are records, positions
and sizes bytes, times ms since the epoch. Nothing here needs a broker, and nothing raises for what is in a file: what
is damaged comes as a problem with its position.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from broker import dump_numbered
from storage.cache import SegmentCache
from storage.disk import Disk
from storage.format import ENTRY_HEADER_BYTES, HEADER_BLOCK_BYTES, CorruptLog
from storage.scan import BareEntry, ScannedEntry, Scanner
from storage.sealed import skip_aborted
from storage.segment import Segment
from storage.settled import Settled, decode_settled, read_settled
from wire.errors import KafkaError
from wire.records import iterate_records

Item = dict[str, Any]

COMPRESSIONS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

Outcomes = Callable[[ScannedEntry, int], str]
"""What became of the transaction of an entry in that segment, by its id."""


@dataclass(slots=True)
class Wanted:
    """What to show. `left` counts the batches that may still be shown; None: all."""

    partition: int | None = None
    from_offset: int = 0
    left: int | None = None
    records: bool = False

    def takes(self, entry: ScannedEntry) -> bool:
        return self.partition in (None, entry.partition) and entry.header.last_offset >= self.from_offset


def problem(path: str, position: int, reason: str, *, damaged: bool = True) -> Item:
    return {"kind": "problem", "path": path, "position": position, "reason": reason, "damaged": damaged}


def dump_segment(disk: Disk, path: str, wanted: Wanted, outcomes: Outcomes) -> Iterator[Item]:
    """The header, what the footer says, and the entries. Raises OSError."""
    try:
        segment = Segment.open_path(disk, path, SegmentCache())
    except CorruptLog as error:
        yield problem(path, error.position, error.reason)
        return
    try:
        settled = None
        try:
            settled = read_settled(disk, path, segment.salt)
        except CorruptLog as error:
            yield problem(error.path, error.position, error.reason)
        yield _header(segment, settled)
        if segment.state == "SEALED":
            if wanted.partition is not None and not _may_hold(segment, wanted):
                return
            yield from _footer(segment, settled, wanted)
        yield from _entries(segment, settled, wanted, outcomes)
    finally:
        segment.close()


def _may_hold(segment: Segment, wanted: Wanted) -> bool:
    index = segment.indexes.get(wanted.partition if wanted.partition is not None else -1)
    return index is not None and index.end_offset > wanted.from_offset


def _header(segment: Segment, settled: Settled | None) -> Item:
    header = segment.header
    return {
        "kind": "segment",
        "path": segment.path,
        "topic": settled.owner.topic if settled is not None else None,
        "topic_id": header.topic_id.hex,
        "segment": header.segment_id,
        "generation": header.generation,
        "first": header.first,
        "last": header.last,
        "term": header.term,
        "created_ms": header.created_ms,
        "parents": list(header.parents),
        "state": "SEALED" if segment.state == "SEALED" else "ACTIVE",
        "settled": settled is not None,
        "size_bytes": segment.file_size,
        "footer_position": segment.end if segment.state == "SEALED" else None,
        "log": dump_numbered.numbers(segment),
    }


def _footer(segment: Segment, settled: Settled | None, wanted: Wanted) -> Iterator[Item]:
    try:
        producers = dict(segment.load_producers())
    except CorruptLog as error:
        yield problem(error.path, error.position, error.reason)
        producers = {}
    for number, index in sorted(segment.indexes.items()):
        if wanted.partition not in (None, number):
            continue
        outcomes = settled.partitions.get(number) if settled is not None else None
        yield {
            "kind": "partition",
            "partition": number,
            "start_offset": index.start_offset,
            "end_offset": index.end_offset,
            "max_timestamp_ms": index.max_timestamp,
            "size_bytes": index.size_bytes,
            "runs": index.runs,
            "terms": [list(epoch) for epoch in index.epochs],
            "producers": len(producers.get(number, ())),
            "settled_from": outcomes.first if outcomes is not None else None,
            "aborted": [list(one) for one in outcomes.aborted] if outcomes is not None else None,
        }


def _entries(segment: Segment, settled: Settled | None, wanted: Wanted, outcomes: Outcomes) -> Iterator[Item]:
    sealed = segment.state == "SEALED"
    scanner = Scanner(
        segment.file(), segment.header, HEADER_BLOCK_BYTES, segment.end if sealed else segment.file_size
    )
    for index, entry in dump_numbered.indexed(segment, scanner):
        if isinstance(entry, BareEntry):
            if wanted.partition is None and not wanted.from_offset:
                yield dump_numbered.bare(entry, index)
            continue
        if not wanted.takes(entry):
            continue
        if wanted.left is not None:
            if wanted.left <= 0:
                return
            wanted.left -= 1
        yield _batch(entry, _outcome(entry, segment.segment_id, settled, outcomes), index)
        if wanted.records:
            yield from _records(segment, entry, wanted)
    if sealed:
        if scanner.position != segment.end:
            yield problem(
                segment.path, scanner.position, scanner.reason or "the entries end before the footer"
            )
        return
    rest = scanner.rest()
    if rest.proof:
        yield problem(
            segment.path,
            scanner.position,
            f"{rest.reason}; the entry at byte {rest.proof} was written after this was durable",
        )
    elif rest.ended:
        yield problem(segment.path, scanner.position, "complete, but its footer is not", damaged=False)
    elif rest.dropped:
        # Of a broker that is running: what it writes just now.
        reason = f"{rest.dropped} bytes are no entries: {rest.reason}"
        yield problem(segment.path, scanner.position, reason, damaged=False)


def _outcome(entry: ScannedEntry, segment_id: int, settled: Settled | None, outcomes: Outcomes) -> str | None:
    header = entry.header
    if not header.is_transactional:
        return None
    if settled is None:
        return outcomes(entry, segment_id)
    found = settled.partitions.get(entry.partition)
    if found is None or header.base_offset < found.first:
        return "unknown"
    aborted = skip_aborted(settled, entry.partition)(header.producer_id, header.base_offset)
    return "aborted" if aborted else "committed"


def _batch(entry: ScannedEntry, outcome: str | None, index: int | None) -> Item:
    header = entry.header
    return {
        "kind": "batch",
        "position": entry.position,
        "partition": entry.partition,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "size_bytes": entry.size,
        "term": entry.term,
        "compression": COMPRESSIONS.get(header.compression, str(header.compression)),
        "attributes": header.attributes,
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "txn_seq": entry.txn_seq,
        "durable_position": entry.durable,
        "outcome": outcome,
        "index": index,
    }


def _records(segment: Segment, entry: ScannedEntry, wanted: Wanted) -> Iterator[Item]:
    if not entry.header.record_count:
        return
    data = segment.file().pread(entry.size, entry.position + ENTRY_HEADER_BYTES)
    try:
        for record in iterate_records(data):
            if record.offset >= wanted.from_offset:
                yield {
                    "kind": "record",
                    "partition": entry.partition,
                    "offset": record.offset,
                    "timestamp_ms": record.timestamp,
                    "key": as_text(record.key),
                    "value": as_text(record.value),
                    "headers": [[name, as_text(value)] for name, value in record.headers],
                }
    except KafkaError as error:
        yield problem(segment.path, entry.position, f"its records cannot be decoded: {error.message}")


def as_text(data: bytes | None) -> Any:
    """Text where the bytes are UTF-8, else {"base64": ...}: what JSON can hold, without loss."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def dump_settled(path: str, data: bytes) -> Iterator[Item]:
    """A sidecar by itself."""
    try:
        settled = decode_settled(data, path, None)
    except CorruptLog as error:
        yield problem(path, error.position, error.reason)
        return
    owner = settled.owner
    yield {
        "kind": "outcomes",
        "path": path,
        "topic": owner.topic,
        "topic_id": owner.topic_id.hex,
        "segment": owner.segment_id,
        "generation": owner.generation,
        "partitions": {
            str(number): {
                "first": found.first,
                "end": found.end,
                "aborted": [list(one) for one in found.aborted],
            }
            for number, found in settled.partitions.items()
        },
    }
