"""Clients that misbehave, each a process of its own beside the one that measures."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from multiprocessing.synchronize import Event

from tests.clients.raw_kafka import ConnectionClosed, RawKafka, encode_request

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


def large_requests(address: str, stop: Event) -> None:
    """100 MB each, of nothing."""
    piece = bytes(1 << 20)
    while not stop.is_set():
        with contextlib.suppress(OSError, ConnectionClosed), RawKafka(address) as raw:
            raw.send_bytes(struct.pack(">i", 100 << 20))
            for _ in range(100):
                raw.send_bytes(piece)


NUISANCES: dict[str, Nuisance] = {
    "nobody": nothing,
    "2,000 idle connections": idle_connections,
    "a slow reader": slow_reader,
    "ids without end, transactions never ended": many_ids,
    "requests of 100 MB": large_requests,
}


def misbehave(nuisance: Nuisance, address: str, stop: Event) -> None:
    os.nice(NICENESS)
    nuisance(address, stop)
