"""Many topics of few partitions: what a broker with all of them uses, and how long it takes to start."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.report import Cell, Result, Table
from bench.systems.sealog import SealogProcess
from bench.systems.usage import disk_mib, idle_cpu_percent, usage

SHORT = "2,000 topics, 10,000 partitions: memory, start, files, idle CPU."
TINY = {"topics": 4, "partitions": 8, "idle_s": 0.1}
QUICK = {"topics": 500, "partitions": 2_500, "idle_s": 5.0}
FULL = {"topics": 2_000, "partitions": 10_000, "idle_s": 30.0}

AT_ONCE = 200
"""Topics per request."""


def run(folder: Path, *, topics: int, partitions: int, idle_s: float) -> Result:
    """A broker without topics beside one with `topics`, of `partitions` in all, each written to once."""
    result = Result(
        "many-topics",
        f"{topics:,} topics, {partitions:,} partitions",
        "One broker, its topics of as many partitions each; one 1 KB record is written to every partition. "
        "A start is counted from the process's beginning to its first answer; an idle broker has clients connected "
        "to it no more.",
    )
    table = Table("", ["", "no topics", f"{topics:,} topics"])
    columns: list[dict[str, Cell]] = [
        _measure(folder / "none", 0, 0, idle_s),
        _measure(folder / "many", topics, partitions, idle_s),
    ]
    table.rows = [[name, *(column[name] for column in columns)] for name in columns[1]]
    result.tables.append(table)
    return result


def _measure(data: Path, topics: int, partitions: int, idle_s: float) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    names = [f"topic-{number:04}" for number in range(topics)]
    settings = {"segment_bytes": 1 << 30}
    with SealogProcess(data, settings=settings) as broker:
        began = time.monotonic()
        _create(broker.address, names, partitions)
        found["creating them, s"] = time.monotonic() - began
        began = time.monotonic()
        _write(broker.address, names, partitions)
        found["one record to each partition, s"] = time.monotonic() - began
        found["files on the disk, MiB"], found["their lengths, MiB"] = disk_mib(data)
        began = time.monotonic()
        broker.sigterm()
        found["clean stop, s"] = time.monotonic() - began
        found["start after a clean stop, s"] = _start(broker)
        broker.sigkill()
        found["start after SIGKILL, s"] = _start(broker)
        assert broker.process is not None
        pid = broker.process.pid
        time.sleep(2)  # what a start leaves to later turns
        found["idle CPU, % of a core"] = idle_cpu_percent(pid, idle_s)
        used = usage(pid)
        found["resident memory, MiB"] = used.resident_mib
        found["peak memory, MiB"] = used.peak_mib
        found["open files"] = used.files
        found["threads"] = used.threads
    return found


def _start(broker: SealogProcess) -> float:
    began = time.monotonic()
    broker.start()
    return time.monotonic() - began


def _create(address: str, names: list[str], partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for first in range(0, len(names), AT_ONCE):
        wanted = [NewTopic(name, partitions // len(names), 1) for name in names[first : first + AT_ONCE]]
        for done in admin.create_topics(wanted, request_timeout=120).values():
            done.result()


def _write(address: str, names: list[str], partitions: int) -> None:
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 50})
    for name in names:
        for partition in range(partitions // len(names)):
            producer.produce(name, b"x" * 1024, partition=partition)
        producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("records were left after five minutes")
