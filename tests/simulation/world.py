"""Machines, clients and what happens to them, in one virtual time, with a history of what the clients saw."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.history import Event
from tests.simulation.loop import Loop, Process
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.plan import Plan


class Trace:
    """A hash over all that came over the network, and when; two runs are the same if it is."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._hash = hashlib.blake2b(digest_size=8)
        self.log: list[tuple[float, str]] | None = None
        """What happened, for people, if somebody wants it."""

    def network(self, direction: str, data: bytes | None) -> None:
        self._hash.update(
            b"%s %.3f %d " % (direction.encode(), self._loop.now_ms, -1 if data is None else len(data))
        )
        if data is not None:
            self._hash.update(data)

    def say(self, what: str) -> None:
        self._hash.update(what.encode())
        if self.log is not None:
            self.log.append((self._loop.now_ms, what))

    def digest(self) -> str:
        return self._hash.hexdigest()


class World:
    """`events` is the history; `faults_found` what went wrong inside a broker, or never came to an end."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = Loop(f"{plan.seed}/loop")
        self.trace = Trace(self.loop)
        self.stats: Counter[str] = Counter()
        self.events: list[Event] = []
        self.faults_found: list[str] = []
        self.ending = False
        self.damaged = False
        """Bits were flipped: a start may refuse what it finds."""
        self.driver = Process(self.loop, "driver")
        self.network = Network(self.driver, f"{plan.seed}/network", plan.latency_ms, self.trace.network)
        self.machines = [self._machine(number) for number in range(1)]
        self.partitions: dict[str, int] = {}
        """Of the topics that are there, and that the final reads are to read."""
        self.groups: dict[str, dict[tuple[str, int], None]] = {}
        """The groups whose offsets are looked at in the end, and for which partitions."""

    def _machine(self, number: int) -> Machine:
        return Machine(
            self.loop,
            self.network,
            f"m{number}",
            f"{self.plan.seed}/machine-{number}",
            self.plan.settings,
            flush_ms=self.plan.flush_ms,
            on_fault=self._fault_inside,
            count=self.count,
        )

    def _fault_inside(self, what: str) -> None:
        self.faults_found.append(f"{what}: {LAST_ERROR.text}")

    def count(self, what: str, by: int = 1) -> None:
        self.stats[what] += by

    def note(self, event: Event) -> None:
        self.events.append(event)
        if self.trace.log is not None:
            self.trace.say(str(event))

    @property
    def machine(self) -> Machine:
        """The one that a client would be sent to."""
        return self.machines[0]

    def run_until(self, condition: Callable[[], bool], *, max_ms: float, what: str) -> bool:
        """Run; where the condition does not come true in time, that is a fault found."""
        end_ms = self.loop.now_ms + max_ms
        self.driver.call_later(max_ms, lambda: None)
        loop = self.loop
        loop.run(lambda: condition() or loop.now_ms >= end_ms, max_steps=3_000_000)
        if not condition():
            self.faults_found.append(f"after {max_ms:.0f} ms of virtual time: {what}")
            return False
        return True

    def advance(self, ms: float) -> None:
        end_ms = self.loop.now_ms + ms
        self.driver.call_later(ms, lambda: None)
        self.loop.run(lambda: self.loop.now_ms >= end_ms, max_steps=3_000_000)


class _LastError(logging.Handler):
    """Keeps what the broker logged last as an error, to be shown with the fault."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = logging.Formatter("%(message)s").format(record)


LAST_ERROR = _LastError()


def quiet_logging() -> Any:
    """The broker's warnings are expected here; its errors are kept for the report."""
    log = logging.getLogger("sealog")
    log.propagate = False
    log.setLevel(logging.ERROR)
    if LAST_ERROR not in log.handlers:
        log.addHandler(LAST_ERROR)
    return log
