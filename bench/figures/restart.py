"""Restart with much data and many ended transactions: from the process's beginning to a client's first commit.

Writing the full size takes half an hour. With `--keep FOLDER` it is written there once, goes on where it was
interrupted, and is measured again by each later run.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from bench import perf_tools
from bench.load import JavaLoad
from bench.report import Cell, Result, Table, percentile
from bench.systems.sealog import SealogProcess
from bench.systems.usage import disk_mib, usage

SHORT = "Start to the first commit after 10 GB and 1,000,000 ended transactions."
KEEPS = True
"""What a run has written can be kept for the next one."""
TINY = {"megabytes": 1, "transactions": 20, "starts": 1}
QUICK = {"megabytes": 300, "transactions": 20_000, "starts": 5}
FULL = {"megabytes": 10_000, "transactions": 1_000_000, "starts": 9}

TOPIC = "restart"
PARTITIONS = 12
PRODUCERS = 64
PIECE_MB = 1_000
ROUND_S = 20.0


def run(folder: Path, *, megabytes: int, transactions: int, starts: int) -> Result:
    """A broker without data beside one with all of it, by the same client."""
    result = Result(
        "restart",
        "Restart at full size",
        f"A start is counted from the process's beginning to the first commit of a client that tries all the time; "
        f"seconds, p50 of {starts}. Load: {megabytes:,} MB of 1 KB records in {PARTITIONS} partitions, then "
        f"{transactions:,} transactions by {PRODUCERS} Java producers, of one record of 100 bytes each.",
    )
    columns: dict[str, dict[str, Cell]] = {}
    with JavaLoad() as load:
        full = folder / "full"
        _fill(full, load, megabytes, transactions)
        columns["without data"] = _measure(folder / f"empty-{os.getpid()}", load, starts)
        columns["with it"] = _measure(full, load, starts)
    table = Table("", ["", *columns])
    table.rows = [[row, *(column[row] for column in columns.values())] for row in columns["with it"]]
    result.tables.append(table)
    return result


def _fill(data: Path, load: JavaLoad, megabytes: int, transactions: int) -> None:
    """Go on from what the file beside the data says is there."""
    note = data.with_name(f"{data.name}.written.json")
    written = json.loads(note.read_text()) if note.exists() else {"megabytes": 0, "transactions": 0}
    if written["megabytes"] >= megabytes and written["transactions"] >= transactions:
        return

    def add(what: str, count: int) -> None:
        written[what] += count
        note.write_text(json.dumps(written))

    with SealogProcess(data) as broker:
        if not note.exists():
            load.ask("topic", broker, topic=TOPIC, partitions=PARTITIONS)
            add("megabytes", 0)
        while (left := megabytes - written["megabytes"]) > 0:
            piece = min(left, PIECE_MB)
            perf_tools.produce(
                broker,
                TOPIC,
                records=piece * 1_000_000 // 1024,
                record_bytes=1024,
                warmup_records=0,
                config={"acks": "all", "batch.size": "65536", "linger.ms": "5"},
            )
            add("megabytes", piece)
        while (left := transactions - written["transactions"]) > 0:
            answer = load.ask(
                "concurrent",
                broker,
                topic=TOPIC,
                partitions=PARTITIONS,
                width=1,
                producers=min(PRODUCERS, left),
                seconds=min(ROUND_S, max(0.2, left / 1_000)),
                warmup_s=0,
                record_bytes=100,
            )
            add("transactions", len(answer["txn"]))
        broker.sigterm()


def _measure(data: Path, load: JavaLoad, starts: int) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    is_new = not data.exists()
    with SealogProcess(data) as broker:
        if is_new:
            load.ask("topic", broker, topic=TOPIC, partitions=PARTITIONS)
        _first_commit(broker, load)  # whatever is made once, is made
        found["files on the disk, MiB"] = disk_mib(data)[0]
        ways = (("a clean stop", broker.sigterm), ("SIGKILL", broker.sigkill))
        for how, stop in ways:
            times, processor = [], []
            for _ in range(starts):
                stop()
                os.sync()
                began = time.time()
                broker.launch()
                times.append(_first_commit(broker, load) - began)
                assert broker.process is not None
                processor.append(usage(broker.process.pid).cpu_s)
            found[f"after {how}, s"] = percentile(times, 50)
            found[f"after {how}, quickest and slowest, s"] = f"{min(times):.2f} .. {max(times):.2f}"
            found[f"after {how}, the broker's processor time, s"] = percentile(processor, 50)
        assert broker.process is not None
        found["resident memory, MiB"] = usage(broker.process.pid).resident_mib
    return found


def _first_commit(broker: SealogProcess, load: JavaLoad) -> float:
    """When it was answered, in seconds of the day."""
    return float(load.ask("first", broker, topic=TOPIC, transaction=True)["at_ms"]) / 1000
