"""4: from the commit call to the record in the hands of a waiting read_committed consumer."""

from __future__ import annotations

from bench.load import JavaLoad
from bench.report import Result, Table, Target
from bench.setting import KAFKA, SEALOG, Samples, Setting, alternate, ratio

TINY = {"turns": 3, "warmup": 1, "rounds": 1}
QUICK = {"turns": 200, "warmup": 100, "rounds": 2}
FULL = {"turns": 1_000, "warmup": 300, "rounds": 5}


def run(setting: Setting, *, turns: int, warmup: int, rounds: int) -> Result:
    result = Result(
        "end-to-end",
        "4. From commit to consumer",
        "One producer and one consumer that waits, in one JVM; the next transaction begins when the record has "
        "arrived. Milliseconds from the commit call.",
    )
    with JavaLoad() as load, setting.running() as systems:
        setting.say("end to end")
        for system in systems.values():
            load.ask("topic", system, topic="end-to-end", partitions=1)

        def one(name: str) -> list[float]:
            topic = f"end-to-end-{next(numbers)}"
            load.ask("topic", systems[name], topic=topic, partitions=1)
            answer = load.ask("end_to_end", systems[name], topic=topic, turns=turns, warmup=warmup)
            return [micros / 1000 for micros in answer["end_to_end"]]

        numbers = iter(range(1 << 30))
        found = {name: Samples(taken) for name, taken in alternate(list(systems), rounds, one).items()}
    table = Table("", ["system", "p50", "p99", "spread"])
    table.rows = [[name, one_.p50, one_.p99, one_.spread] for name, one_ in found.items()]
    result.tables.append(table)
    if KAFKA in found:
        result.targets = [
            Target("p50, sealog / Kafka's default", ratio(found[SEALOG].p50, found[KAFKA].p50), 0.5, False),
            Target("p99, sealog / Kafka's default", ratio(found[SEALOG].p99, found[KAFKA].p99), 0.1, False),
        ]
    result.raw = {name: one_.rounds for name, one_ in found.items()}
    return result
