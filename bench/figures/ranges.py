"""Commits over a topic that is split in 1, 4 and 16 ranges: one flush delay, however many files."""

from __future__ import annotations

from pathlib import Path

from bench.load import JavaLoad
from bench.report import Result, Table
from bench.setting import SEALOG, Samples, Setting
from bench.workloads.turns import PLAIN, TXN
from broker.client import LayoutClient

SHORT = "Commits over a topic that is split in 1, 4 and 16 ranges, with and without a slow disk."
TINY = {"ranges": (1, 2), "turns": 3, "warmup": 1, "rounds": 1}
QUICK = {"ranges": (1, 4, 16), "turns": 60, "warmup": 30, "rounds": 2}
FULL = {"ranges": (1, 4, 16), "turns": 300, "warmup": 100, "rounds": 5}

PARTITIONS = 16
DELAY_MS = 5.0


def run(folder: Path, *, ranges: tuple[int, ...], turns: int, warmup: int, rounds: int) -> Result:
    """Topics that differ only in their ranges, side by side on one broker, measured in turn."""
    result = Result(
        "ranges",
        "Commits over many ranges",
        f"A topic of {PARTITIONS} partitions, one 1 KB record to each per transaction (Java client, one producer); "
        "milliseconds. Each range is a file with a flush of its own.",
    )
    table = Table("", ["every flush delayed by", "ranges", "txn p50", "txn p99", "spread", "plain p50"])
    setting = Setting(folder, (SEALOG,))
    for delay_ms in (0.0, DELAY_MS):
        with setting.running(flush_delay_ms=delay_ms) as systems, JavaLoad() as load:
            (broker,) = systems.values()
            for count in ranges:
                load.ask("topic", broker, topic=f"ranges-{count}", partitions=PARTITIONS)
                if count > 1:
                    with LayoutClient(broker.address) as layout:
                        starts = [part * PARTITIONS // count for part in range(1, count)]
                        layout.split(f"ranges-{count}", starts)
            found: dict[int, list[dict[str, list[int]]]] = {count: [] for count in ranges}
            for _ in range(rounds):
                for count in ranges:
                    answer = load.ask(
                        "turns",
                        broker,
                        topic=f"ranges-{count}",
                        partitions=PARTITIONS,
                        turns=turns,
                        warmup=warmup,
                        modes=[PLAIN, TXN],
                    )
                    found[count].append(answer)
            for count, answers in found.items():
                txn, plain = (
                    Samples([[micros / 1000 for micros in answer[mode]] for answer in answers])
                    for mode in (TXN, PLAIN)
                )
                delay = f"{delay_ms:g} ms" if delay_ms else "-"
                table.rows.append([delay, count, txn.p50, txn.p99, txn.spread, plain.p50])
    result.tables.append(table)
    return result
