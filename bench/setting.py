"""What workloads have in common: where they run, the systems they compare, and turns that alternate."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.report import percentile
from bench.systems import shims
from bench.systems.kafka import KafkaProcess
from bench.systems.sealog import SealogProcess
from bench.systems.server_process import ServerProcess

Found = TypeVar("Found")

SEALOG = "sealog"
KAFKA = "Kafka"
KAFKA_FLUSH = "Kafka, flush"
SYSTEMS: Mapping[str, str] = {
    SEALOG: "every acknowledged record and commit is on the disk",
    KAFKA: "its default: nothing is flushed before an answer",
    KAFKA_FLUSH: "log.flush.interval.messages=1: a flush before each answer, the durability that sealog gives",
}

_KAFKA_SETTINGS = {
    "log.segment.bytes": str(1 << 30),
    # As Kafka has them; tests use shorter ones.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}


@dataclass(slots=True)
class Setting:
    """`folder` is where brokers keep their data; `say` prints a line of progress."""

    folder: Path
    systems: Sequence[str] = (SEALOG, KAFKA, KAFKA_FLUSH)
    say: Callable[[str], None] = print
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_folder(self, name: str) -> Path:
        return self.folder / f"{name.lower().replace(', ', '-')}-{next(self._numbers)}"

    def system(
        self,
        name: str,
        *,
        flush_delay_ms: float = 0,
        settings: Mapping[str, object] | None = None,
        kafka_settings: Mapping[str, str] | None = None,
    ) -> ServerProcess:
        """A system with a new folder, not started."""
        env = {}
        if flush_delay_ms:
            env = shims.preload(shims.build("slowflush")) | shims.slow_flushes(int(flush_delay_ms * 1000))
        data = self.new_folder(name)
        if name == SEALOG:
            return SealogProcess(data, env=env, settings=settings)
        own = _KAFKA_SETTINGS | dict(kafka_settings or {})
        if name == KAFKA_FLUSH:
            own["log.flush.interval.messages"] = "1"
        return KafkaProcess(data, env=env, settings=own, heap="2g")

    @contextmanager
    def running(self, *, flush_delay_ms: float = 0) -> Iterator[dict[str, ServerProcess]]:
        """All systems, fresh, side by side; idle ones cost next to nothing while another is measured."""
        with ExitStack() as stack:
            yield {
                name: stack.enter_context(self.system(name, flush_delay_ms=flush_delay_ms))
                for name in self.systems
            }


@dataclass(slots=True)
class Samples:
    """Measured values of one thing, round by round."""

    rounds: list[list[float]] = field(default_factory=list)

    def percentile(self, percent: float) -> float:
        return percentile([value for round_ in self.rounds for value in round_], percent)

    @property
    def p50(self) -> float:
        return self.percentile(50)

    @property
    def p99(self) -> float:
        return self.percentile(99)

    @property
    def spread(self) -> str:
        """The lowest and the highest median of a round."""
        medians = [percentile(round_, 50) for round_ in self.rounds if round_]
        if not medians:
            return "-"
        return f"{min(medians):.3g} .. {max(medians):.3g}"


def alternate(names: Sequence[str], rounds: int, measure: Callable[[str], Found]) -> dict[str, list[Found]]:
    """`measure` each of them `rounds` times, another one first in each round; by name, in order of rounds.

    Before each measurement what others left unwritten goes to the disk, so that nobody pays for it in flushes.
    """
    found: dict[str, list[Found]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            os.sync()
            found[name].append(measure(name))
    return found


def ratio(value: float, to: float) -> float:
    return value / to if to else math.nan
