"""What others feel of a client that misbehaves: p50 and p99 of a produce with acks=all, without it and beside it.

    python -m tests.bounds [--seconds N] [--only NAME]

Figures, not a test: it prints them.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.clients.raw_batches import batch
from tests.clients.raw_kafka import ConnectionClosed, RawKafka, encode_request
from tests.support.broker_process import BrokerProcess

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


def measure(nuisance: Nuisance, seconds: float) -> tuple[int, float, float]:
    """How many, p50 and p99 in ms."""
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data") as broker,
        RawKafka(broker.address) as raw,
    ):
        raw.create_topic("t", 1)
        raw.create_topic("mine", 1)
        for _ in range(20):
            raw.produce("t", {0: batch([bytes(900_000)])})
        spawn = multiprocessing.get_context("spawn")
        stop = spawn.Event()
        other = spawn.Process(target=misbehave, args=(nuisance, broker.address, stop), daemon=True)
        other.start()
        time.sleep(1.0)
        took: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            raw.produce("mine", {0: batch([b"x" * 100])})
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(0.002)
        stop.set()
        other.join(10)
        other.kill()
    took.sort()
    return len(took), took[len(took) // 2], took[len(took) * 99 // 100]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", choices=sorted(NUISANCES), help="beside `nobody`")
    options = parser.parse_args()
    first = 0.0
    for name, nuisance in NUISANCES.items():
        if options.only not in (None, name) and nuisance is not nothing:
            continue
        count, p50, p99 = measure(nuisance, options.seconds)
        first = first or p99
        print(f"{name}: {count} writes, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {p99 / first:.1f} x", flush=True)


if __name__ == "__main__":
    main()
