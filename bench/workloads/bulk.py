"""5: bulk by Kafka's own ProducerPerformance, and by a Java consumer, cached and cold."""

from __future__ import annotations

from dataclasses import dataclass

from bench import perf_tools
from bench.load import JavaLoad
from bench.report import Result, Table, Target, percentile
from bench.setting import KAFKA, SEALOG, Setting, alternate, ratio
from bench.systems.usage import drop_cached

PRODUCER = {"acks": "all", "batch.size": "65536", "linger.ms": "5"}


@dataclass(frozen=True, slots=True)
class Case:
    """One way to send; `megabytes` of values in all, of which a quarter warms up."""

    record_bytes: int
    partitions: int
    transaction_ms: int = 0
    compression: str = "none"

    def __str__(self) -> str:
        size = "1 KB" if self.record_bytes == 1024 else f"{self.record_bytes} bytes"
        parts = [size, f"{self.partitions} partition{'s' * (self.partitions > 1)}"]
        parts += [f"transactions of {self.transaction_ms} ms"] if self.transaction_ms else []
        parts += [self.compression] if self.compression != "none" else []
        return ", ".join(parts)


_PLAIN = (Case(1024, 1), Case(1024, 12), Case(100, 1), Case(100, 12))
_TXN = (Case(1024, 12, 10), Case(1024, 12, 100), Case(1024, 1, 10), Case(1024, 1, 100))
_PACKED = (Case(1024, 12, 0, "lz4"), Case(1024, 12, 0, "zstd"))
TINY = {"cases": (Case(1024, 1), Case(100, 2, 10, "lz4")), "megabytes": 1, "rounds": 1, "reads": 1}
QUICK = {"cases": (*_PLAIN, Case(1024, 12, 10), *_PACKED), "megabytes": 200, "rounds": 1, "reads": 5}
FULL = {"cases": (*_PLAIN, *_TXN, *_PACKED), "megabytes": 1_000, "rounds": 3, "reads": 5}


def run(setting: Setting, *, cases: tuple[Case, ...], megabytes: int, rounds: int, reads: int) -> Result:
    result = Result(
        "bulk",
        "5. Bulk",
        f"{megabytes:,} MB of values per run, acks=all, batches of 64 KB, linger 5 ms; MB/s, medians of the rounds, of "
        f"{reads} when consuming. "
        "Cold: the files were put out of the page cache before.",
    )
    sent = Table("produce, MB/s", ["records", *setting.systems, "sealog / Kafka"])
    read = Table(
        "consume, MB/s",
        ["records", *(f"{name}, {how}" for name in setting.systems for how in ("cached", "cold"))],
    )
    produced: dict[Case, dict[str, float]] = {}
    with JavaLoad() as load, setting.running() as systems:
        for number, case in enumerate(cases):
            setting.say(f"bulk: {case}")
            records = megabytes * 1_000_000 // case.record_bytes
            warmup = records // 4
            topics = iter(range(1 << 30))
            last: dict[str, str] = {}

            def one(name: str) -> float:
                topic = last[name] = f"bulk-{number}-{next(topics)}"  # noqa: B023 - called within the turn
                load.ask("topic", systems[name], topic=topic, partitions=case.partitions)  # noqa: B023
                return perf_tools.produce(
                    systems[name],
                    topic,
                    records=records,  # noqa: B023
                    record_bytes=case.record_bytes,  # noqa: B023
                    warmup_records=warmup,  # noqa: B023
                    config=PRODUCER | {"compression.type": case.compression},  # noqa: B023
                    transaction_ms=case.transaction_ms,  # noqa: B023
                )

            rates = alternate(list(systems), rounds, one)
            result.raw[f"produce, {case}"] = rates
            produced[case] = {name: percentile(taken, 50) for name, taken in rates.items()}
            sent.rows.append(
                [
                    str(case),
                    *produced[case].values(),
                    ratio(produced[case][SEALOG], produced[case][KAFKA]) if KAFKA in systems else None,
                ]
            )
            if case.transaction_ms or case.compression != "none":
                continue

            def consume(name: str, *, cold: bool) -> float:
                if cold:
                    drop_cached(systems[name].data)
                answer = load.ask(
                    "consume",
                    systems[name],
                    topic=last[name],  # noqa: B023
                    read=list(range(case.partitions)),  # noqa: B023
                    records=records,  # noqa: B023
                )
                return float(answer["bytes"]) / 1e6 / float(answer["seconds"])

            # Two more: the first ones make the JVM's code.
            cached = alternate(list(systems), reads + 2, lambda name: consume(name, cold=False))
            cold = alternate(list(systems), reads, lambda name: consume(name, cold=True))
            warm_rate = {name: percentile(taken[2:], 50) for name, taken in cached.items()}
            cold_rate = {name: percentile(taken, 50) for name, taken in cold.items()}
            result.raw[f"consume, {case}"] = {"cached": cached, "cold": cold}
            read.rows.append(
                [str(case), *(rate[name] for name in systems for rate in (warm_rate, cold_rate))]
            )
            if KAFKA in systems:
                for how, by_name in (("cached", warm_rate), ("cold", cold_rate)):
                    reached = ratio(by_name[SEALOG], by_name[KAFKA])
                    result.targets.append(
                        Target(f"consume, {case}, {how}: sealog / Kafka", reached, 1.0, True)
                    )
    result.tables += [sent, read]
    result.targets = _produced(produced) + result.targets
    return result


def _produced(produced: dict[Case, dict[str, float]]) -> list[Target]:
    targets = []
    for case, rates in produced.items():
        if KAFKA in rates and not case.transaction_ms:
            reached = ratio(rates[SEALOG], rates[KAFKA])
            targets.append(Target(f"produce, {case}: sealog / Kafka's default", reached, 1.0, True))
        plain = produced.get(Case(case.record_bytes, case.partitions, 0, case.compression))
        if case.transaction_ms == 10 and plain is not None:
            cost = 100 * (1 - ratio(rates[SEALOG], plain[SEALOG]))
            targets.append(Target(f"what transactions cost, {case}, %", cost, 5.0, False))
    return targets
