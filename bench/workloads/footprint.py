"""6: start to the first acknowledged record, memory, idle CPU, and restart after many transactions and much data."""

from __future__ import annotations

import time
from typing import Any

from bench import perf_tools
from bench.load import JavaLoad
from bench.report import Cell, Result, Table, Target, percentile
from bench.setting import KAFKA, SEALOG, Setting, ratio
from bench.systems.server_process import ServerProcess
from bench.systems.usage import idle_cpu_percent, usage

TINY = {"starts": 1, "megabytes": 1, "transactions": 20, "idle_s": 0.2}
QUICK = {"starts": 3, "megabytes": 300, "transactions": 5_000, "idle_s": 10.0}
FULL = {"starts": 5, "megabytes": 10_000, "transactions": 1_000_000, "idle_s": 30.0}

TOPIC = "footprint"
PRODUCERS = 64
PER_ROUND_S = 20.0


def run(setting: Setting, *, starts: int, megabytes: int, transactions: int, idle_s: float) -> Result:
    result = Result(
        "footprint",
        "6. Start, memory, restart",
        f"One system at a time. A start is counted from the process's beginning to the first acknowledged record of a "
        f"client that tries all the time; medians of {starts}. Load: {megabytes:,} MB of 1 KB records, and at least "
        f"{transactions:,} ended transactions by {PRODUCERS} producers.",
    )
    found: dict[str, dict[str, Cell]] = {}
    with JavaLoad() as load:
        for name in setting.systems:
            setting.say(f"footprint: {name}")
            found[name] = _one(setting, load, name, starts, megabytes, transactions, idle_s)
    rows = list(found[SEALOG])
    table = Table("", ["", *found])
    table.rows = [[row, *(column[row] for column in found.values())] for row in rows]
    result.tables.append(table)

    def of(name: str, row: str) -> float:
        return float(found[name][row] or 0)

    if KAFKA in found:
        first = "start to first acknowledged record, s"
        result.targets.append(
            Target(
                "start to first record, sealog / Kafka",
                ratio(of(SEALOG, first), of(KAFKA, first)),
                0.2,
                False,
            )
        )
    result.targets += [
        Target("resident memory idle, MiB", of(SEALOG, "resident memory idle, MiB"), 60.0, False),
        Target(
            "resident memory after load, MiB", of(SEALOG, "resident memory after load, MiB"), 300.0, False
        ),
        Target(
            "restart after load to first commit, s",
            of(SEALOG, "restart after load to first commit, s"),
            1.0,
            False,
        ),
    ]
    return result


def _one(
    setting: Setting,
    load: JavaLoad,
    name: str,
    starts: int,
    megabytes: int,
    transactions: int,
    idle_s: float,
) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    with setting.system(name) as system:
        load.ask("topic", system, topic=TOPIC, partitions=12)
        load.ask("first", system, topic=TOPIC, transaction=True)  # whatever is made once, is made
        times = [_restart(system, load, transaction=False) for _ in range(starts)]
        found["start to first acknowledged record, s"] = percentile(times, 50)
        time.sleep(min(idle_s, 5))
        found["idle CPU, % of a core"] = idle_cpu_percent(_pid(system), idle_s)
        found["resident memory idle, MiB"] = usage(_pid(system)).resident_mib
        perf_tools.produce(
            system,
            TOPIC,
            records=megabytes * 1_000_000 // 1024,
            record_bytes=1024,
            warmup_records=0,
            config={"acks": "all", "batch.size": "65536", "linger.ms": "5"},
        )
        found["resident memory after load, MiB"] = usage(_pid(system)).resident_mib
        ended = 0
        while ended < transactions:
            answer: dict[str, Any] = load.ask(
                "concurrent",
                system,
                topic=TOPIC,
                partitions=12,
                width=1,
                producers=min(PRODUCERS, transactions),
                seconds=min(PER_ROUND_S, max(0.2, transactions / 1000)),
                warmup_s=0,
                record_bytes=100,
            )
            ended += len(answer["txn"])
        found["ended transactions"] = ended
        found["resident memory after transactions, MiB"] = usage(_pid(system)).resident_mib
        times = [_restart(system, load, transaction=True) for _ in range(starts)]
        found["restart after load to first commit, s"] = percentile(times, 50)
        times = [_restart(system, load, transaction=True, kill=True) for _ in range(starts)]
        found["the same after SIGKILL, s"] = percentile(times, 50)
    return found


def _pid(system: ServerProcess) -> int:
    assert system.process is not None
    return system.process.pid


def _restart(system: ServerProcess, load: JavaLoad, *, transaction: bool, kill: bool = False) -> float:
    """Seconds from the start of the process to a record (or commit) that is acknowledged."""
    if kill:
        system.sigkill()
    else:
        system.sigterm()
    began = time.time()
    system.launch()
    # The client is there first, and tries every few milliseconds.
    answer = load.ask("first", system, topic=TOPIC, transaction=transaction)
    return float(answer["at_ms"]) / 1000 - began
