"""3: many producers at once, back to back, transactions over 4 partitions each."""

from __future__ import annotations

from bench.load import JavaLoad
from bench.report import Result, Table, Target, percentile
from bench.setting import KAFKA, SEALOG, Setting, alternate, ratio

PARTITIONS = 64
WIDTH = 4
FACTORS = {1: 8.0, 16: 4.0, 64: 3.0}
"""What sealog's rate must be of Kafka's default, by number of producers."""
TINY = {"producers": (1, 2), "seconds": 0.3, "warmup_s": 0.1, "rounds": 1}
QUICK = {"producers": (1, 16, 64), "seconds": 4.0, "warmup_s": 3.0, "rounds": 1}
FULL = {"producers": (1, 16, 64), "seconds": 20.0, "warmup_s": 10.0, "rounds": 3}


def run(
    setting: Setting, *, producers: tuple[int, ...], seconds: float, warmup_s: float, rounds: int
) -> Result:
    result = Result(
        "concurrent",
        "3. Concurrent transactions",
        f"Each producer has a thread and {WIDTH} partitions of one topic; one 1 KB record to each of them per "
        "transaction, back to back. Rates are medians of the rounds; latencies in milliseconds.",
    )
    table = Table("", ["system", "producers", "transactions/s", "p50", "p99", "rate, sealog / it"])
    with JavaLoad() as load, setting.running() as systems:
        for system in systems.values():
            load.ask("topic", system, topic="concurrent", partitions=PARTITIONS)
        for count in producers:
            setting.say(f"concurrent: {count} producers")

            def one(name: str, count: int = count) -> dict[str, object]:
                return load.ask(
                    "concurrent",
                    systems[name],
                    topic="concurrent",
                    partitions=PARTITIONS,
                    width=WIDTH,
                    producers=count,
                    seconds=seconds,
                    warmup_s=warmup_s,
                )

            found = alternate(list(systems), rounds, one)
            rates = {n: percentile([float(str(a["per_second"])) for a in found[n]], 50) for n in systems}
            p50, p99 = {}, {}
            for name, answers in found.items():
                ms = [micros / 1000 for answer in answers for micros in answer["txn"]]  # type: ignore[attr-defined]
                p50[name], p99[name] = percentile(ms, 50), percentile(ms, 99)
                table.rows.append(
                    [name, count, rates[name], p50[name], p99[name], ratio(rates[SEALOG], rates[name])]
                )
            result.raw[str(count)] = {name: [a["per_second"] for a in found[name]] for name in systems}
            if KAFKA in systems:
                result.targets += [
                    Target(
                        f"{count} producers: rate, sealog / Kafka's default",
                        ratio(rates[SEALOG], rates[KAFKA]),
                        FACTORS.get(count, 1.0),
                        True,
                    ),
                    Target(
                        f"{count} producers: sealog's p99 / Kafka's p50",
                        ratio(p99[SEALOG], p50[KAFKA]),
                        1.0,
                        False,
                    ),
                ]
    result.tables.append(table)
    return result
