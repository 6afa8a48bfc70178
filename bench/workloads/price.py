"""2: the price of a transaction: begin..commit against the same records plain, in one run."""

from __future__ import annotations

from bench.load import JavaLoad
from bench.report import Result, Table, Target
from bench.setting import SEALOG, Setting, ratio
from bench.workloads.turns import COMMIT, PLAIN, TXN, measure

DELAY_MS = 5.0
TINY = {"widths": (1,), "turns": 3, "warmup": 1, "rounds": 1}
QUICK = {"widths": (1, 10), "turns": 60, "warmup": 30, "rounds": 2}
FULL = {"widths": (1, 10, 50), "turns": 300, "warmup": 150, "rounds": 5}


def run(setting: Setting, *, widths: tuple[int, ...], turns: int, warmup: int, rounds: int) -> Result:
    result = Result(
        "price",
        "2. The price of a transaction",
        "The same records sent and flushed by an idempotent producer (plain) and in a transaction; milliseconds, p50. "
        "The commit alone: the commit call after all records of the transaction have been acknowledged.",
    )
    for delay_ms, limit in ((DELAY_MS, 1.25), (0.0, 2.0)):
        title = f"every flush delayed by {delay_ms:g} ms" if delay_ms else "bare disk"
        table = Table(
            title,
            ["system", "partitions", "plain", "transaction", "p99", "commit alone", "transaction / plain"],
        )
        with JavaLoad() as load, setting.running(flush_delay_ms=delay_ms) as systems:
            for width in widths:
                setting.say(f"price: {width} partitions, {title}")
                found = measure(
                    load,
                    systems,
                    width,
                    turns=turns,
                    warmup=warmup,
                    rounds=rounds,
                    modes=(PLAIN, TXN, COMMIT),
                )
                for name in systems:
                    plain, txn, commit = (found[name, mode] for mode in (PLAIN, TXN, COMMIT))
                    price = ratio(txn.p50, plain.p50)
                    table.rows.append([name, width, plain.p50, txn.p50, txn.p99, commit.p50, price])
                    if name == SEALOG:
                        result.targets.append(
                            Target(f"{title}, {width} partitions: transaction / plain", price, limit, False)
                        )
                    result.raw[f"{title}, {width}, {name}"] = {"plain": plain.rounds, "txn": txn.rounds}
        result.tables.append(table)
    return result
