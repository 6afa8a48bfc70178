"""What the log itself says of records that a judge complained of: producer id, epoch, sequence, leader epoch.

Whether a record that is there twice came under one producer id and epoch tells whose fault it is: then the broker took
a repeat for something new. Under another epoch the client has sent again what it had given another number.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.history import FinalRead, Partition
from wire import codec
from wire.apis import ApiKey
from wire.batch import BATCH_HEADER_SIZE, BatchHeader, parse_header
from wire.building import build_request
from wire.errors import ErrorCode
from wire.records import iterate_records

FETCH_VERSION = 11
TIMEOUT_S = 10.0
AROUND = 20
"""So many offsets before and after the places in question are told, too."""


def places_in_question(reads: Iterable[FinalRead]) -> dict[Partition, tuple[int, int]]:
    """(first, last) offset of the records that are in a partition more than once."""
    found: dict[Partition, tuple[int, int]] = {}
    for read in reads:
        first_seen: dict[str, int] = {}
        key = read.topic, read.partition
        for offset, value in read.records:
            if value in first_seen:
                low, high = found.get(key, (first_seen[value], offset))
                found[key] = min(low, first_seen[value]), max(high, offset)
            first_seen.setdefault(value, offset)
    return found


def tell(addresses: Sequence[tuple[str, int]], reads: Iterable[FinalRead]) -> str:
    """One line per batch around each place in question, as whichever node leads has it."""
    lines = []
    for (topic, partition), (first, last) in places_in_question(reads).items():
        lines.append(f"{topic}-{partition}, offsets {first - AROUND} to {last + AROUND}:")
        lines += read_batches(addresses, topic, partition, max(0, first - AROUND), last + AROUND)
    return "\n".join(lines)


def read_batches(
    addresses: Sequence[tuple[str, int]], topic: str, partition: int, first: int, last: int
) -> Iterator[str]:
    position = first
    while position <= last:
        records = _fetch(addresses, topic, partition, position)
        if not records:
            return
        for header, data in _batches(records):
            position = header.last_offset + 1
            if header.base_offset > last:
                return
            values = b", ".join(record.value or b"" for record in iterate_records(data)).decode()
            yield (
                f"  {header.base_offset}..{header.last_offset}: producer {header.producer_id} "
                f"epoch {header.producer_epoch} sequences {header.base_sequence}..{header.last_sequence} "
                f"leader epoch {header.leader_epoch}: {values}"
            )


def _fetch(addresses: Sequence[tuple[str, int]], topic: str, partition: int, offset: int) -> bytes:
    """Empty where no node gives any."""
    entity = build_request(ApiKey.FETCH, FETCH_VERSION, None, **_fields(topic, partition, offset))
    frame = codec.encode_request(ApiKey.FETCH, FETCH_VERSION, 1, "evidence", entity)
    for address in addresses:
        try:
            with (
                socket.create_connection(address, TIMEOUT_S) as connection,
                connection.makefile("rb") as file,
            ):
                connection.sendall(frame)
                answer = file.read(int.from_bytes(file.read(4), "big"))
        except OSError:
            continue
        part = codec.decode_response(ApiKey.FETCH, FETCH_VERSION, answer)[1].responses[0].partitions[0]
        if part.error_code is ErrorCode.none:
            return bytes(part.records or b"")
    return b""


def _fields(topic: str, partition: int, offset: int) -> dict[str, Any]:
    place = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 26,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": ({"topic": topic, "partitions": (place,)},),
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def _batches(records: bytes) -> Iterator[tuple[BatchHeader, bytes]]:
    while len(records) >= BATCH_HEADER_SIZE:
        header = parse_header(records)
        yield header, records[: header.size_bytes]
        records = records[header.size_bytes :]
