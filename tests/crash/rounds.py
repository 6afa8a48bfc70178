"""Rounds of: load, crash, restart. What is known of the log is checked between rounds and after the last.

A crash is a SIGKILL of the broker, at one of these moments:

    any         some time after the restarted broker has acknowledged an end of a transaction
    commit      within milliseconds of a producer's call of commit
    recovery    while the broker starts

or that and a power cut: `cut` makes of the data directory what a power cut leaves.
"""

import os
import random
import re
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.load import GROUP, INPUT_TOPIC, PARTITIONS, TOPICS, Load
from tests.crash.readers import Auditor, Follower, create_topics, read_ends, read_group
from tests.history import Event, Partition, Violation, check
from tests.support import shim
from tests.support.broker_process import BrokerProcess, ServerProcess

DATA_PARTITIONS: list[Partition] = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run goes. Times in seconds."""

    seed: int
    rounds: int
    librdkafka: int = 4
    kafka_python: int = 1
    check_every: int = 40
    moments: tuple[str, ...] = ("any", "any", "commit", "commit", "commit", "recovery")
    warmup_s: float = 0.0
    uptime_s: tuple[float, float] = (0.05, 0.6)
    commit_delay_s: tuple[float, float] = (0.0, 0.004)
    recovery_delay_s: tuple[float, float] = (0.0, 0.5)
    progress_timeout_s: float = 30.0
    settle_s: float = 5.0
    markerless: bool = True


def chosen_seed() -> int:
    """SEALOG_CRASH_SEED, or another one for each run; printed by the run. The clients' threads are not
    seeded, so a seed repeats the plan of a run, not the run."""
    return int(os.environ.get("SEALOG_CRASH_SEED", "0")) or random.randrange(1, 1 << 31)


class PoweredMachine:
    """A broker under the powerloss shim, and the power cut that goes with a crash of it.

    Flushes take up to `flush_us` longer, each another time, so that cuts meet them under way in every order: the
    metadata's done and the data's not, and the other way round.
    """

    flush_us = 20_000
    commit_delay_s = (0.0, 0.02)
    """How long after a commit was called its flushes are still under way: for `Plan`."""

    def __init__(self, data: Path, *, module: str = "broker", module_args: Sequence[str] = ()) -> None:
        self.power = shim.PowerCut(data)
        self.power.switch_on()
        self.lost_bytes = 0
        self.broker = BrokerProcess(
            data,
            preload=[shim.require("powerloss"), shim.require("slowflush")],
            env=self.power.env | shim.slow_flushes(0, jitter_us=self.flush_us),
            module=module,
            module_args=module_args,
        )

    def cut(self, rng: random.Random) -> None:
        """Mostly something of what was not flushed is left, and sometimes nothing."""
        self.lost_bytes += self.power.unflushed_bytes()
        self.power.cut(rng if rng.random() < 0.7 else None)
        self.power.switch_on()
        self.broker.env |= self.power.env

    def end(self) -> None:
        self.broker.end()
        self.power.switch_off()


class CrashRun:
    """One run over one broker and its data directory."""

    def __init__(
        self,
        broker: ServerProcess,
        plan: Plan,
        cut: Callable[[random.Random], None] | None = None,
        beside: Callable[[Load], threading.Thread] | None = None,
    ) -> None:
        self.broker = broker
        self.plan = plan
        self.cut = cut
        self.beside = beside
        """What goes on beside the load, from its beginning until it stops: a thread that looks at `stopping`."""
        self.rng = random.Random(plan.seed)
        self.load = Load(
            broker.address, plan.seed, librdkafka=plan.librdkafka, kafka_python=plan.kafka_python
        )
        self.followers: list[Follower] = []
        self.auditors: list[Auditor] = []
        self.start_cpu_s: list[float] = []
        """Of each start until it served, one after the other."""

    def run(self) -> list[Violation]:
        """All rounds and the final check; the first check that finds violations ends the run."""
        print(f"seed {self.plan.seed}, {self.plan.rounds} rounds", flush=True)
        self.broker.start()
        create_topics(
            self.broker.address,
            dict.fromkeys(TOPICS, PARTITIONS) | {INPUT_TOPIC: len(self.load.transactional)},
        )
        self.followers = [self._follower(committed) for committed in (True, False)]
        self.auditors = [self._auditor(committed) for committed in (True, False)]
        self.load.start()
        beside = self.beside(self.load) if self.beside is not None else None
        if beside is not None:
            beside.start()
        try:
            for number in range(1, self.plan.rounds + 1):
                self._round()
                self.start_cpu_s.append(self.broker.cpu_s())
                if number % self.plan.check_every == 0 and number < self.plan.rounds:
                    violations = self._check(final=False)
                    cpu_s = statistics.mean(self.start_cpu_s[-self.plan.check_every :])
                    print(
                        f"round {number}: {self.load.progress()} ends, {cpu_s:.2f} CPU s a start", flush=True
                    )
                    if violations:
                        return violations
            return self._check(final=True)
        finally:
            self.load.stopping = True
            if beside is not None:
                beside.join()
            for auditor in self.auditors:
                auditor.close()

    def report(self) -> str:
        errors = [f"  errors follower {name}: {n}" for f in self.followers for name, n in f.errors.items()]
        tenth = max(1, len(self.start_cpu_s) // 10)
        first, last = (
            statistics.fmean(part or [0.0]) for part in (self.start_cpu_s[:tenth], self.start_cpu_s[-tenth:])
        )
        starts = f"  CPU s of a start: {first:.2f} in the first tenth of the rounds, {last:.2f} in the last"
        return "\n".join([self.load.report(), *errors, starts])

    def told(self, violations: Sequence[Violation]) -> str:
        """The violations, and what the clients did and heard around the transactions that they name."""
        named = re.findall(r"transaction (\d+) of ([\w-]+)", "\n".join(map(str, violations[:30])))
        around = {(name, int(number) + step) for number, name in named[:10] for step in (-1, 0, 1, 2)}
        events = [
            str(event)
            for event in self.load.events
            if (getattr(event, "producer", None), getattr(event, "txn", None)) in around
        ]
        return "\n".join([*map(str, violations[:30]), *events[:300]])

    def _follower(self, committed: bool) -> Follower:
        follower = Follower(
            self.broker.address, DATA_PARTITIONS, committed=committed, events=self.load.events
        )
        follower.start()
        return follower

    def _auditor(self, committed: bool) -> Auditor:
        return Auditor(self.broker.address, DATA_PARTITIONS, committed=committed)

    # ---- a round -------------------------------------------------------------------------------------------

    def _round(self) -> None:
        moment = self.rng.choice(self.plan.moments)
        self._wait_for_progress()
        time.sleep(self.plan.warmup_s)
        if moment == "commit":
            self.load.commit_called.clear()
            self.load.commit_called.wait(1.0)
            time.sleep(self.rng.uniform(*self.plan.commit_delay_s))
        else:
            time.sleep(self.rng.uniform(*self.plan.uptime_s))
        self._crash()
        if moment == "recovery":
            self.broker.launch()
            time.sleep(self.rng.uniform(*self.plan.recovery_delay_s))
            self._crash()
        self.broker.start()

    def _crash(self) -> None:
        self.broker.sigkill()
        self.load.crashed()
        if self.cut is not None:
            self.cut(self.rng)

    def _wait_for_progress(self) -> None:
        before = self.load.progress()
        deadline = time.monotonic() + self.plan.progress_timeout_s
        while self.load.progress() == before:
            self.broker.check_alive()
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"no transaction ended for {self.plan.progress_timeout_s} s:\n{self.report()}\n"
                    f"the broker's log:\n{self.broker.log_tail()}"
                )
            time.sleep(0.002)

    # ---- checks --------------------------------------------------------------------------------------------

    def _check(self, *, final: bool) -> list[Violation]:
        """Lets the load come to rest and judges all that was heard and is there. The final check reads
        everything anew from the beginning, too; the followers must have come to their end by then."""
        self.load.pause()
        self.load.fence()
        address = self.broker.address
        ends = read_ends(address, DATA_PARTITIONS, settle_s=self.plan.settle_s)
        events: list[Event] = list(ends)
        for auditor in self.auditors:
            events += auditor.read(ends, timeout_s=self.plan.settle_s)
        inputs = [(INPUT_TOPIC, worker.number) for worker in self.load.transactional]
        events += read_group(address, GROUP, inputs)
        if final:
            self.load.stop()
            for follower in self.followers:
                follower.stop()
        violations = check([*self.load.events, *events], markerless=self.plan.markerless)
        if final and not violations:
            fresh: list[Event] = list(ends)
            for committed in (True, False):
                auditor = self._auditor(committed)
                fresh += auditor.read(ends, timeout_s=4 * self.plan.settle_s)
                auditor.close()
            violations = check([*self.load.events, *fresh], markerless=self.plan.markerless)
        self.load.resume()
        return violations
