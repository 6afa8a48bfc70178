"""Turns of one producer on all systems, by the Java client: what several workloads are made of."""

from __future__ import annotations

from collections.abc import Mapping

from bench.load import JavaLoad
from bench.setting import Samples, alternate
from bench.systems.server_process import ServerProcess

TXN, PLAIN, COMMIT = "txn", "plain", "commit"


def measure(
    load: JavaLoad,
    systems: Mapping[str, ServerProcess | str],
    partitions: int,
    *,
    turns: int,
    warmup: int,
    rounds: int,
    modes: tuple[str, ...] = (PLAIN, TXN),
) -> dict[tuple[str, str], Samples]:
    """By (system, mode): milliseconds per turn of one 1 KB record to each of so many partitions."""
    topic = f"turns-{partitions}"
    for system in systems.values():
        load.ask("topic", system, topic=topic, partitions=partitions)

    def one(name: str) -> dict[str, list[int]]:
        return load.ask(
            "turns",
            systems[name],
            topic=topic,
            partitions=partitions,
            turns=turns,
            warmup=warmup,
            modes=list(modes),
        )

    found = alternate(list(systems), rounds, one)
    return {
        (name, mode): Samples([[micros / 1000 for micros in answer[mode]] for answer in answers])
        for name, answers in found.items()
        for mode in modes
    }
