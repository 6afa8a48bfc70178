"""1: begin..commit over 1, 10 and 50 partitions, on the bare disk and with every flush delayed by 5 ms."""

from __future__ import annotations

from bench.load import JavaLoad
from bench.report import Result, Table, Target
from bench.setting import KAFKA, KAFKA_FLUSH, SEALOG, Samples, Setting, ratio
from bench.workloads.turns import PLAIN, TXN, measure

DELAY_MS = 5.0
TINY = {"widths": (1, 2), "turns": 3, "warmup": 1, "rounds": 1}
QUICK = {"widths": (1, 10, 50), "turns": 60, "warmup": 30, "rounds": 2}
FULL = {"widths": (1, 10, 50), "turns": 300, "warmup": 150, "rounds": 5}


def run(setting: Setting, *, widths: tuple[int, ...], turns: int, warmup: int, rounds: int) -> Result:
    result = Result(
        "latency",
        "1. Latency of a transaction",
        "One producer, begin, one 1 KB record to each partition, commit; milliseconds. The spread is that of the "
        "rounds' medians.",
    )
    for delay_ms in (0.0, DELAY_MS):
        title = f"every flush delayed by {delay_ms:g} ms" if delay_ms else "bare disk"
        table = Table(title, ["system", "partitions", "p50", "p99", "spread", "plain p50", "x sealog (p50)"])
        txn: dict[tuple[str, int], Samples] = {}
        with JavaLoad() as load, setting.running(flush_delay_ms=delay_ms) as systems:
            for width in widths:
                setting.say(f"latency: {width} partitions, {title}")
                found = measure(load, systems, width, turns=turns, warmup=warmup, rounds=rounds)
                for name in systems:
                    txn[name, width] = one = found[name, TXN]
                    table.rows.append(
                        [
                            name,
                            width,
                            one.p50,
                            one.p99,
                            one.spread,
                            found[name, PLAIN].p50,
                            ratio(one.p50, txn[SEALOG, width].p50),
                        ]
                    )
        result.tables.append(table)
        result.raw[title] = [
            {"system": name, "partitions": width, "ms": one.rounds} for (name, width), one in txn.items()
        ]
        result.targets += _delayed(txn, widths) if delay_ms else _bare(txn, widths)
    return result


def _delayed(txn: dict[tuple[str, int], Samples], widths: tuple[int, ...]) -> list[Target]:
    few, many = txn[SEALOG, widths[0]].p50, txn[SEALOG, widths[-1]].p50
    return [
        Target(f"delayed: p50 at {widths[-1]} partitions / at {widths[0]}", ratio(many, few), 1.15, False),
        Target(f"delayed: p50 at {widths[-1]} partitions / the delay", many / DELAY_MS, 1.5, False),
    ]


def _bare(txn: dict[tuple[str, int], Samples], widths: tuple[int, ...]) -> list[Target]:
    return [
        Target(
            f"{width} partitions: p50 of {system} / sealog",
            ratio(txn[system, width].p50, txn[SEALOG, width].p50),
            limit,
            True,
        )
        for width in (widths[0], widths[-1])
        for system, limit in ((KAFKA_FLUSH, 10.0), (KAFKA, 4.0))
        if (system, width) in txn
    ]
