"""One run: a load, trouble after trouble, how long service was away each time, and the judgement of the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tests.cluster.faults import Trouble, troubles
from tests.cluster.lanes import Lanes
from tests.cluster.machines import ClusterUnderTest
from tests.cluster.times import ServiceTimes
from tests.history import Violation

POLL_S = 0.005


class LoadOnCluster(Protocol):
    """What a campaign needs of a load. `commit_lanes`: those lanes that need the leaders to reach each other."""

    lanes: Lanes
    commit_lanes: tuple[str, ...]

    def start(self) -> None: ...

    def troubled(self) -> None:
        """A fault has begun, or ended."""
        ...

    def judge(self) -> list[Violation]: ...

    def report(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. Service that is not back within `back_s` fails the run."""

    start_s: float = 30.0
    back_s: float = 20.0
    without_majority_s: float = 1.0


class Campaign:
    """`say` prints a line of progress; the caller starts and stops the cluster.

    `plan`: these troubles instead of the seed's.
    """

    def __init__(
        self,
        cluster: ClusterUnderTest,
        load: LoadOnCluster,
        *,
        seed: int,
        faults: int,
        plan: Iterable[Trouble] | None = None,
        limits: Limits = Limits(),
        say: Callable[[str], None] = print,
    ) -> None:
        self.cluster = cluster
        self.load = load
        self.seed = seed
        self.faults = faults
        self.plan = troubles(seed, faults, cluster.nodes) if plan is None else plan
        self.limits = limits
        self.times = ServiceTimes()
        self._say = say
        self._number = 0

    def run(self) -> list[Violation]:
        """The violations of the history.

        Raises:
            AssertionError: service did not come back in time, or a process ended by itself; says after which trouble.
        """
        lanes = self.load.lanes
        self._say(f"seed {self.seed}, {self.faults} faults")
        self.load.start()
        lanes.mark()
        self._wait("the first service", lanes.names, self.limits.start_s)
        began = time.monotonic()
        for trouble in self.plan:
            self._number += 1
            self._one(trouble)
        self._say(f"{self.faults} faults in {time.monotonic() - began:.0f} s\n{self.times.table()}")
        return self.load.judge()

    def _one(self, trouble: Trouble) -> None:
        lanes = self.load.lanes
        wanted = lanes.names
        if not trouble.commits_meanwhile:
            wanted = tuple(name for name in lanes.names if name not in self.load.commit_lanes)
        lanes.mark()
        self.cluster.begin(trouble)
        self.load.troubled()
        if trouble.serves_meanwhile:
            away_s = self._wait(f"service beside {trouble}", wanted, self.limits.back_s)
            self.times.meanwhile[trouble.kind].append(away_s)
            time.sleep(trouble.hold_s)
        else:
            time.sleep(self.limits.without_majority_s)
        lanes.mark()
        self.cluster.end(trouble)
        self.load.troubled()
        self.times.after[trouble.kind].append(
            self._wait(f"service after {trouble}", lanes.names, self.limits.back_s)
        )
        # Else the next fault would find a cluster that is not whole.
        self.cluster.wait_for_all()

    def _wait(self, what: str, wanted: tuple[str, ...], limit_s: float) -> float:
        lanes = self.load.lanes
        deadline = time.monotonic() + limit_s
        while missing := lanes.missing(wanted):
            self.cluster.check_alive()
            assert time.monotonic() < deadline, (
                f"trouble {self._number} of seed {self.seed}: {what} is not there after {limit_s} s: "
                f"{', '.join(missing)}\n{self.load.report()}\n{self.times.table()}\n{self.cluster.logs()}"
            )
            time.sleep(POLL_S)
        return lanes.back_after_s(wanted)
