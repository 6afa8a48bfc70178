"""What a split or a merge costs a producer that is writing meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.load import JavaLoad
from bench.report import Plot, Result, Table, percentile
from bench.setting import SEALOG, Setting
from broker.client import LayoutClient
from wire.layouts import Response

SHORT = "Latency of a producer during and outside of splits and merges."
TINY = {"changes": 2, "every_s": 0.05, "prelude_s": 0.0, "at_once": 20}
QUICK = {"changes": 20, "every_s": 0.5, "prelude_s": 2.0, "at_once": 400}
FULL = {"changes": 200, "every_s": 0.5, "prelude_s": 5.0, "at_once": 400}

TOPIC = "splits"
PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class _Change:
    """A split or merge: from the request to the answer, in milliseconds of the day."""

    kind: str
    began_ms: float
    ended_ms: float


def run(folder: Path, *, changes: int, every_s: float, prelude_s: float, at_once: int) -> Result:
    """One producer writes to all partitions; the topic goes from one range to two, to four, and back."""
    result = Result(
        "splits",
        "What a split costs a producer",
        f"A producer sends a 1 KB record to each of {PARTITIONS} partitions and waits for all (acks=all), or does so "
        f"in a transaction, again and again, while the topic is split and merged every {every_s:g} s, "
        f"{changes} times. During: the turn overlaps the time from a change's request to its answer. Milliseconds.",
    )
    turns = Table("turns", ["mode", "when", "turns", "p50", "p99", "max"])
    took = Table("the changes themselves, from request to answer", ["mode", "change", "count", "p50", "max"])
    setting = Setting(folder, (SEALOG,))
    for mode in ("plain", "txn"):
        with setting.running() as systems, JavaLoad() as load:
            (broker,) = systems.values()
            load.ask("topic", broker, topic=TOPIC, partitions=PARTITIONS)
            done: list[_Change] = []
            errors: list[Exception] = []
            changer = threading.Thread(
                target=_change, args=(broker.address, changes, every_s, prelude_s, done, errors)
            )
            changer.start()
            found: list[tuple[float, float]] = []
            while changer.is_alive():
                answer = load.ask(
                    "turns",
                    broker,
                    topic=TOPIC,
                    partitions=PARTITIONS,
                    turns=at_once,
                    warmup=0,
                    modes=[mode],
                    pause_us=500,
                )
                # The first turns of a producer find out about the cluster: not of this figure.
                pairs = zip(answer["began_ms"][5:], answer[mode][5:], strict=True)
                found += [(float(began), micros / 1000) for began, micros in pairs]
            changer.join()
        if errors:
            raise errors[0]
        warm = found[0][0] + prelude_s * 500
        by_kind: dict[str, list[tuple[float, float]]] = {"outside": [], "split": [], "merge": []}
        for began, ms in found:
            if began > warm:
                by_kind[_when(done, began, began + ms)].append((began, ms))
        for kind, points in by_kind.items():
            times = [ms for _, ms in points]
            when = kind if kind == "outside" else f"during a {kind}"
            turns.rows.append(
                [
                    mode,
                    when,
                    len(times),
                    percentile(times, 50),
                    percentile(times, 99),
                    max(times, default=0.0),
                ]
            )
        for kind in ("split", "merge"):
            times = [change.ended_ms - change.began_ms for change in done if change.kind == kind]
            took.rows.append([mode, kind, len(times), percentile(times, 50), max(times, default=0.0)])
        start = found[0][0]
        result.plots.append(
            Plot(
                f"{mode}: each turn of the producer",
                "seconds",
                "ms",
                {
                    kind: [((began - start) / 1000, ms) for began, ms in points]
                    for kind, points in by_kind.items()
                },
                log_y=True,
                points=True,
            )
        )
    result.tables += [turns, took]
    return result


def _when(done: list[_Change], began_ms: float, ended_ms: float) -> str:
    for change in done:
        if began_ms <= change.ended_ms and ended_ms >= change.began_ms:
            return change.kind
    return "outside"


def _change(
    address: str,
    changes: int,
    every_s: float,
    prelude_s: float,
    done: list[_Change],
    errors: list[Exception],
) -> None:
    """One range to two, two to four, and back by two merges and one."""
    half, quarter = PARTITIONS // 2, PARTITIONS // 4
    steps: list[tuple[str, Callable[[LayoutClient], Response]]] = [
        ("split", lambda layout: layout.split(TOPIC, [half])),
        ("split", lambda layout: layout.split(TOPIC, [quarter, half + quarter])),
        ("merge", lambda layout: layout.merge(TOPIC, 0, half - 1)),
        ("merge", lambda layout: layout.merge(TOPIC, half, PARTITIONS - 1)),
        ("merge", lambda layout: layout.merge(TOPIC, 0, PARTITIONS - 1)),
    ]
    try:
        time.sleep(prelude_s)  # the client warms up
        with LayoutClient(address) as layout:
            for number in range(changes):
                kind, step = steps[number % len(steps)]
                began = time.time() * 1000
                response = step(layout)
                ended = time.time() * 1000
                if not response.changed:
                    raise RuntimeError(f"change {number} changed nothing: {response}")
                done.append(_Change(kind, began, ended))
                time.sleep(every_s)
    except Exception as error:  # noqa: BLE001 - told by the thread that measures
        errors.append(error)
