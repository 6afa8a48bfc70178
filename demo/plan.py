"""What main and the worker processes agree on: names, sizes, and the events that workers report."""

from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event, Semaphore
from typing import Any, Literal, NamedTuple

FLIGHT_PARTITIONS = 6
TOTAL_PARTITIONS = 3
FEEDERS = 2
TOTALLERS = 2
ABORT_EVERY = 8
TRANSACTION_TIMEOUT_MS = 60_000
Stage = Literal["flights", "airport-totals"]


@dataclass(frozen=True)
class Plan:
    """One run. Topics, groups and transactional ids end in the suffix, so that runs can share a broker."""

    bootstrap: str
    flights: int
    suffix: str
    kills: bool

    @property
    def source_topic(self) -> str:
        """Holds nothing: partition n stands for the n-th shard of the file, so that a position in the shard
        can be committed like any offset, inside the transaction that wrote the flights before it."""
        return f"flights-file{self.suffix}"

    @property
    def flights_topic(self) -> str:
        return f"flights{self.suffix}"

    @property
    def totals_topic(self) -> str:
        return f"airport-totals{self.suffix}"

    @property
    def feeder_group(self) -> str:
        return f"demo-feeder{self.suffix}"

    @property
    def totals_group(self) -> str:
        return f"demo-totals{self.suffix}"

    def transactional_id(self, stage: Stage, worker: int) -> str:
        return f"demo-{stage}{self.suffix}-{worker}"

    @property
    def flights_per_transaction(self) -> int:
        return max(10, min(2_000, self.flights // 20))


Kind = Literal["committed", "aborted", "in-doubt", "kill-me", "idle", "done", "failed"]


class Report(NamedTuple):
    """What a worker tells main.

    committed, aborted: the broker acknowledged this end of the transaction.
    in-doubt: an error came instead; `resolved` says what the broker said afterwards, None when only the readers
        can tell.
    kill-me: a transaction is open with acknowledged records in it; the worker waits until the broker is dead.
    idle: nothing left to read in `partitions`.
    """

    kind: Kind
    stage: Stage
    worker: int
    transaction: str = ""
    records: int = 0
    flights: int = 0
    resolved: bool | None = None
    partitions: tuple[int, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class Wires:
    """The multiprocessing objects that every worker gets."""

    reports: "Queue[Report]"
    go: Event
    """The topics are there."""
    stop: Event
    """Everything is read: leave."""


@dataclass(frozen=True)
class KillOrder:
    """One stage's order to have the broker killed: once, by whichever of its workers gets so far first."""

    at: int
    """Flights that a worker has behind it by then."""
    permit: Semaphore
    killed: Event

    def is_due(self, done: int) -> bool:
        """Whether the asking worker is the one; True only once."""
        return done >= self.at and self.permit.acquire(block=False)

    def carry_out(self, wires: Wires, report: Report) -> None:
        """Have the broker killed, and go on only when it is dead."""
        wires.reports.put(report)
        self.killed.wait()


def client_settings(plan: Plan) -> dict[str, Any]:
    """Settings of every client: a broker that was killed is looked for again at once, not after seconds."""
    return {
        "bootstrap_servers": plan.bootstrap,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 200,
        "retry_backoff_ms": 50,
    }
