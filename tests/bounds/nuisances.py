"""Clients that misbehave, each a process of its own beside the one that measures."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from multiprocessing.synchronize import Event

from kio.schema.errors import ErrorCode

from tests.clients.raw_batches import batch
from tests.clients.raw_kafka import ConnectionClosed, RawKafka, api_key, encode_request

Nuisance = Callable[[str, Event], None]
"""Gets the broker's address, HOST:PORT, and goes on until it is told to stop."""
NICENESS = 10
"""Of the client that misbehaves: what is measured is what it does to the broker, not how many cores there are."""


def nothing(_: str, stop: Event) -> None:
    stop.wait()


def idle_connections(address: str, stop: Event) -> None:
    host, port = address.rsplit(":", 1)
    opened = [socket.create_connection((host, int(port))) for _ in range(2_000)]
    stop.wait()
    for one in opened:
        one.close()


def slow_reader(address: str, stop: Event) -> None:
    """Asks for 8 MiB each, hundreds of times, and reads nothing."""
    while not stop.is_set():
        with contextlib.suppress(OSError, ConnectionClosed), RawKafka(address, timeout_s=1) as raw:
            for _ in range(500):
                if stop.is_set():
                    return
                raw.send_frame(
                    encode_request(
                        "fetch",
                        11,
                        1,
                        "slow",
                        {
                            "replica_id": -1,
                            "max_wait": 0,
                            "min_bytes": 1,
                            "max_bytes": 8 << 20,
                            "isolation_level": 0,
                            "session_id": 0,
                            "session_epoch": -1,
                            "rack_id": "",
                            "topics": [
                                {
                                    "topic": "t",
                                    "partitions": [
                                        {
                                            "partition": 0,
                                            "current_leader_epoch": -1,
                                            "fetch_offset": 0,
                                            "log_start_offset": -1,
                                            "partition_max_bytes": 8 << 20,
                                        }
                                    ],
                                }
                            ],
                        },
                    )
                )
            stop.wait()


def many_ids(address: str, stop: Event) -> None:
    """One transactional id after the other, each with a transaction that is never ended."""
    number = 0
    with RawKafka(address) as raw:
        while not stop.is_set():
            number += 1
            name = f"id-{number}"
            held = raw.init_producer(name, timeout_ms=900_000)
            raw.call(
                "add_partitions_to_txn",
                3,
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=held.producer_id,
                v3_and_below_producer_epoch=held.producer_epoch,
                v3_and_below_topics=[{"name": "t", "partitions": [0]}],
            )


LARGE_BYTES = 100 << 20
PIECE = bytes(1 << 20)
BACKOFF_S = 0.05
"""Of Kafka's clients between two connections (reconnect.backoff.ms)."""
LARGE_BATCH = batch([bytes(1_000_000)])


def large_requests(address: str, stop: Event) -> None:
    """100 MB each, of nothing: the broker closes the connection, and the client tries again as clients do."""
    while not stop.is_set():
        with contextlib.suppress(OSError, ConnectionClosed), RawKafka(address) as raw:
            raw.send_bytes(struct.pack(">i", LARGE_BYTES))
            for _ in range(LARGE_BYTES // len(PIECE)):
                raw.send_bytes(PIECE)
        stop.wait(BACKOFF_S)


def large_batches(address: str, stop: Event) -> None:
    """Each a produce of one batch of nearly 100 MB, which is refused as too large."""
    with RawKafka(address, timeout_s=60) as raw:
        while not stop.is_set():
            head, size = produce_of_one_batch(LARGE_BYTES)
            raw.send_bytes(head + struct.pack(">qiib", 0, size - 12, -1, 2))
            for start in range(17, size, len(PIECE)):
                raw.send_bytes(PIECE[: min(len(PIECE), size - start)])
            error = struct.unpack_from(">h", raw.read_frame(), 4 + 4 + 3 + 4 + 4)[0]
            if error != ErrorCode.message_too_large:
                raise AssertionError(f"answered with {error}")


def large_produces(address: str, stop: Event) -> None:
    """Each a produce of 100 batches of a megabyte, which are taken."""
    with RawKafka(address, timeout_s=60) as raw:
        while not stop.is_set():
            raw.produce("many", dict.fromkeys(range(100), LARGE_BATCH))


def produce_of_one_batch(frame_bytes: int) -> tuple[bytes, int]:
    """The length and all else of a Produce (version 3) for partition 0 of `t` that stands before its records, and the
    size of these, where the frame is to have so many bytes."""
    head = (
        struct.pack(">hhih", api_key("produce"), 3, 1, 3) + b"raw" + struct.pack(">hhiih", -1, -1, 1000, 1, 1)
    )
    head += b"t" + struct.pack(">ii", 1, 0)
    size = frame_bytes - len(head) - 4
    return struct.pack(">i", frame_bytes) + head + struct.pack(">i", size), size


NUISANCES: dict[str, Nuisance] = {
    "nobody": nothing,
    "2,000 idle connections": idle_connections,
    "a slow reader": slow_reader,
    "ids without end, transactions never ended": many_ids,
    "requests of 100 MB": large_requests,
    "batches of 100 MB": large_batches,
    "produces of 100 batches": large_produces,
}


def misbehave(nuisance: Nuisance, address: str, stop: Event) -> None:
    os.nice(NICENESS)
    nuisance(address, stop)
