"""7: how the cost of a transaction grows with what there is already: past transactions, topics, partitions, open
transactions, connections."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient, NewTopic

from bench.load import JavaLoad
from bench.raw import RawConnection, open_transaction
from bench.report import Plot, Result, Table, Target, percentile
from bench.setting import SEALOG, Setting, ratio
from bench.systems.server_process import ServerProcess
from bench.workloads.turns import TXN

STEPS = {
    "past transactions": (0, 1_000, 10_000, 100_000),
    "topics": (0, 100, 500, 2_000),
    "partitions": (0, 100, 1_000, 10_000),
    "open transactions": (0, 100, 1_000, 10_000),
    "connections": (0, 100, 500, 2_000),
}
TINY = {"steps": dict.fromkeys(STEPS, (0, 5)), "turns": 3, "warmup": 1, "systems": (SEALOG,)}
QUICK = {
    "steps": {name: (steps[0], steps[1], steps[2]) for name, steps in STEPS.items()},
    "turns": 100,
    "warmup": 50,
    "systems": (SEALOG,),
}
FULL = {"steps": STEPS, "turns": 400, "warmup": 100, "systems": None}

FLAT = 1.5
"""A transaction at the last step may cost so many times more than at the first one."""


def run(
    setting: Setting,
    *,
    steps: dict[str, tuple[int, ...]],
    turns: int,
    warmup: int,
    systems: Sequence[str] | None,
) -> Result:
    result = Result(
        "growth",
        "7. How cost grows",
        "One producer, one record to one partition of a topic of its own per transaction: p50 and p99 in milliseconds "
        "beside ever more of something else, each on a fresh system.",
    )
    _allow_files()
    for dimension, counts in steps.items():
        table = Table(dimension, ["system", *(f"{count:,}" for count in counts), "p99 at the last"])
        plot = Plot(f"transaction beside {dimension}", dimension, "p50, ms", {}, log_x=True)
        for name in systems or setting.systems:
            setting.say(f"growth: {dimension}, {name}")
            p50, p99 = _one(setting, name, dimension, counts, turns, warmup)
            table.rows.append([name, *p50, p99[-1]])
            plot.series[name] = list(zip(map(float, counts), p50, strict=True))
            if name == SEALOG:
                grown = ratio(p50[-1], p50[0])
                result.targets.append(
                    Target(f"p50 at {counts[-1]:,} {dimension} / at {counts[0]:,}", grown, FLAT, False)
                )
        result.tables.append(table)
        result.plots.append(plot)
    return result


def _one(
    setting: Setting, name: str, dimension: str, counts: tuple[int, ...], turns: int, warmup: int
) -> tuple[list[float], list[float]]:
    p50, p99 = [], []
    with setting.system(name) as system, JavaLoad() as load, ExitStack() as held:
        load.ask("topic", system, topic="growth", partitions=1)
        before = 0
        for count in counts:
            if count > before:
                _GROW[dimension](load, system, held, before, count)
            before = count
            answer = load.ask(
                "turns", system, topic="growth", partitions=1, turns=turns, warmup=warmup, modes=[TXN]
            )
            times = [micros / 1000 for micros in answer[TXN]]
            p50.append(percentile(times, 50))
            p99.append(percentile(times, 99))
    return p50, p99


Grow = Callable[[JavaLoad, ServerProcess, ExitStack, int, int], None]


def _past(load: JavaLoad, system: ServerProcess, held: ExitStack, before: int, count: int) -> None:
    topic = f"past-{count}"
    load.ask("topic", system, topic=topic, partitions=16)
    ended = before
    while ended < count:
        answer = load.ask(
            "concurrent",
            system,
            topic=topic,
            partitions=16,
            width=1,
            producers=16,
            seconds=min(20.0, max(0.1, (count - ended) / 2_000)),
            warmup_s=0,
            record_bytes=100,
        )
        ended += len(answer["txn"])


def _topics(load: JavaLoad, system: ServerProcess, held: ExitStack, before: int, count: int) -> None:
    _create(system, [NewTopic(f"topic-{number}", 1, 1) for number in range(before, count)])


def _partitions(load: JavaLoad, system: ServerProcess, held: ExitStack, before: int, count: int) -> None:
    whole, rest = divmod(count - before, 100)
    wanted = [NewTopic(f"wide-{count}-{number}", 100, 1) for number in range(whole)]
    _create(system, [*wanted, *([NewTopic(f"wide-{count}", rest, 1)] if rest else [])])


def _create(system: ServerProcess, topics: list[NewTopic]) -> None:
    admin = AdminClient({"bootstrap.servers": system.address})
    for start in range(0, len(topics), 50):
        for done in admin.create_topics(topics[start : start + 50], request_timeout=120).values():
            done.result()


def _open(load: JavaLoad, system: ServerProcess, held: ExitStack, before: int, count: int) -> None:
    if before == 0:
        load.ask("topic", system, topic="open", partitions=16)
    connection = RawConnection(system.address)
    held.callback(connection.close)
    for number in range(before, count):
        open_transaction(connection, f"open-{number}", "open", number % 16)


def _connect(load: JavaLoad, system: ServerProcess, held: ExitStack, before: int, count: int) -> None:
    for _ in range(before, count):
        held.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", system.port))))


def _allow_files() -> None:
    """As many open sockets as the system lets us have, for us and the processes that we start."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


_GROW: dict[str, Grow] = {
    "past transactions": _past,
    "topics": _topics,
    "partitions": _partitions,
    "open transactions": _open,
    "connections": _connect,
}
