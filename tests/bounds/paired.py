"""What others feel of large requests, in pairs: alone, beside the nuisance against the broker, and beside the same
nuisance against a process that reads it and throws it away.

    python -m tests.bounds.paired [--pairs N] [--seconds N] [--only NAME]... [--floor-rest-ms MS]

The last is the floor that no broker gets under on this machine at that rate: the client that misbehaves and the
kernel's copies are the same, and the broker never sees a byte of it. All of one pair follow each other on the same
broker, so what else the machine does falls on all of them alike. The ratios are of one pair each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kio.schema.errors import ErrorCode

from tests.bounds.nuisances import LARGE, NUISANCES, Nuisance, misbehave, nothing
from tests.clients.raw_batches import batch
from tests.clients.raw_kafka import RawKafka
from tests.support.broker_process import BrokerProcess

READ_BYTES = 256 << 10
REFUSED = struct.pack(">iih", 1, 1, 1) + b"t" + struct.pack(">iih", 1, 0, ErrorCode.message_too_large)
REFUSED += struct.pack(">qqi", -1, -1, 0)


def discard(listening: socket.socket, rest_s: float) -> None:
    """Read frames and drop them, and answer each like a refused Produce; a rest after each read."""

    def serve(client: socket.socket) -> None:
        buffer = bytearray(READ_BYTES)
        left = 0
        while True:
            if not left:
                prefix = client.recv(4, socket.MSG_WAITALL)
                if len(prefix) < 4:
                    return
                (left,) = struct.unpack(">i", prefix)
            got = client.recv_into(buffer, min(READ_BYTES, left))
            if not got:
                return
            left -= got
            if not left:
                client.sendall(struct.pack(">i", len(REFUSED)) + REFUSED)
            if rest_s:
                time.sleep(rest_s)

    while True:
        client, _ = listening.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()


def window(raw: RawKafka, seconds: float) -> list[float]:
    """How long each write with acks=all took, in ms, sorted."""
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        raw.produce("mine", {0: batch([b"x" * 100])})
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.002)
    return sorted(took)


@contextmanager
def beside(nuisance: Nuisance, address: str) -> Iterator[None]:
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    other = spawn.Process(target=misbehave, args=(nuisance, address, stop), daemon=True)
    other.start()
    try:
        time.sleep(0.7)
        yield
        if not other.is_alive():
            raise RuntimeError("the client that misbehaves has ended by itself")
    finally:
        stop.set()
        other.join(3)
        other.kill()
        other.join()
        time.sleep(0.3)


def loopback_bytes() -> int:
    line = next(
        one for one in Path("/proc/net/dev").read_text().splitlines() if one.strip().startswith("lo:")
    )
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--only", action="append", choices=sorted(LARGE))
    parser.add_argument("--floor-rest-ms", type=float, default=2.0)
    options = parser.parse_args()
    names = options.only or ["batches of 100 MB"]
    listening = socket.create_server(("127.0.0.1", 0))
    spawn = multiprocessing.get_context("fork")
    floor = spawn.Process(target=discard, args=(listening, options.floor_rest_ms / 1000), daemon=True)
    floor.start()
    floor_address = f"127.0.0.1:{listening.getsockname()[1]}"
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data") as broker,
        RawKafka(broker.address) as raw,
    ):
        for topic, partitions in (("t", 1), ("mine", 1), ("many", 100)):
            raw.create_topic(topic, partitions)
        window(raw, 1)
        columns = [("alone", nothing, broker.address)]
        for name in names:
            columns += [
                (f"floor, {name}", NUISANCES[name], floor_address),
                (name, NUISANCES[name], broker.address),
            ]
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _, _ in columns}
        for _ in range(options.pairs):
            for name, nuisance, address in columns:
                with beside(nuisance, address):
                    before, began = loopback_bytes(), time.monotonic()
                    took = window(raw, options.seconds)
                    rate = (loopback_bytes() - before) / (time.monotonic() - began) / 1e6
                found[name].append((took[len(took) // 2], took[len(took) * 99 // 100], rate))
                print(
                    f"{name}: p50 {found[name][-1][0]:.2f}, p99 {found[name][-1][1]:.2f} ms, {rate:.0f} MB/s",
                    flush=True,
                )
        alone = [one[1] for one in found["alone"]]
        for name, values in found.items():
            p99 = sorted(one[1] for one in values)
            ratios = sorted(one[1] / lone for one, lone in zip(values, alone, strict=True))
            print(
                f"{name}: p50 {statistics.median(one[0] for one in values):.2f}, p99 {p99[0]:.2f} to {p99[-1]:.2f},"
                f" median {statistics.median(p99):.2f} ms; times alone {ratios[0]:.2f} to {ratios[-1]:.2f},"
                f" median {statistics.median(ratios):.2f}; {statistics.median(one[2] for one in values):.0f} MB/s"
            )
    floor.kill()


if __name__ == "__main__":
    main()
