"""What others feel of a client that misbehaves: p50 and p99 of a produce with acks=all, without it and beside it.

    python -m tests.bounds [--seconds N] [--only NAME]

Figures, not a test: it prints them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

from tests.bounds.nuisances import NUISANCES, Nuisance, misbehave, nothing
from tests.clients.raw_batches import batch
from tests.clients.raw_kafka import RawKafka
from tests.support.broker_process import BrokerProcess


def measure(nuisance: Nuisance, seconds: float) -> tuple[int, float, float]:
    """How many, p50 and p99 in ms."""
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data") as broker,
        RawKafka(broker.address) as raw,
    ):
        raw.create_topic("t", 1)
        raw.create_topic("mine", 1)
        raw.create_topic("many", 100)
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
        if not other.is_alive():
            raise RuntimeError("the client that misbehaves has ended by itself")
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
