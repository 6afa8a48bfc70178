"""The course of the demo: start, stream, kill, go on, stop, count."""

import multiprocessing
import queue
import time
from dataclasses import dataclass, field

from kafka.admin import KafkaAdminClient, NewTopic

from demo.audit import Check, Verdict, audit
from demo.flights import plain_totals
from demo.ledger import Ledger
from demo.plan import (
    FEEDERS,
    FLIGHT_PARTITIONS,
    TOTAL_PARTITIONS,
    TOTALLERS,
    KillOrder,
    Plan,
    Report,
    Stage,
    Wires,
    client_settings,
)
from demo.screen import LABELS, Screen
from demo.server import Server
from demo.workers import end_workers, kill_orders, start_workers

SILENCE_S = 120.0


class DemoFailed(RuntimeError):
    """A worker failed or nothing moves any more: there is nothing to count."""


@dataclass
class Run:
    """One run against `plan.bootstrap`; `server` is the broker's process when it is the demo's own."""

    plan: Plan
    screen: Screen
    server: Server | None
    ledger: Ledger = field(default_factory=Ledger)
    kills: int = 0
    _feeders_done: int = 0
    _idle: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def run(self) -> Verdict:
        context = multiprocessing.get_context("spawn")
        wires = Wires(context.Queue(), context.Event(), context.Event())
        orders = kill_orders(context, self.plan)
        processes = start_workers(context, self.plan, wires, orders)
        try:
            create_topics(self.plan)
            wires.go.set()
            self._stream(wires, orders)
        finally:
            end_workers(processes)
        self.screen.tell("counting: both topics from the start, read_committed, and the file itself")
        verdict = audit(self.plan, self.ledger, plain_totals(self.plan.flights), context)
        if orders:
            killed = Check(
                self.kills == len(orders), f"the broker was killed in mid-transaction {self.kills} times"
            )
            verdict.checks.append(killed)
        return verdict

    def _stream(self, wires: Wires, orders: dict[Stage, KillOrder]) -> None:
        """Follow the workers' reports until all flights are through both stages and all workers have left."""
        left = FEEDERS + TOTALLERS
        while left:
            try:
                report = wires.reports.get(timeout=SILENCE_S)
            except queue.Empty:
                raise DemoFailed(f"nothing has moved for {SILENCE_S:.0f} s") from None
            if report.kind == "failed":
                raise DemoFailed(f"{LABELS[report.stage]}, worker {report.worker}: {report.message}")
            if report.kind == "done":
                left -= 1
                self._feeders_done += report.stage == "flights"
            elif report.kind == "kill-me":
                self._kill(report, orders[report.stage])
            elif report.kind == "idle":
                self._idle[report.worker] = report.partitions
                if self._all_is_read():
                    wires.stop.set()
            else:
                self._account(report)

    def _all_is_read(self) -> bool:
        read = {partition for partitions in self._idle.values() for partition in partitions}
        return self._feeders_done == FEEDERS and len(read) == FLIGHT_PARTITIONS

    def _account(self, report: Report) -> None:
        self._idle.clear()
        self.ledger.enter(report)
        if report.kind == "in-doubt":
            outcome = {True: "it was committed", False: "it is done again", None: "the readers will tell"}
            self.screen.tell(
                f"{LABELS[report.stage]}: transaction {report.transaction} got no answer;"
                f" {outcome[report.resolved]} ({report.message})"
            )
        if report.kind == "committed" or report.resolved:
            self.screen.advance(report.stage, report.flights)

    def _kill(self, report: Report, order: KillOrder) -> None:
        assert self.server is not None
        self.server.kill()
        self.kills += 1
        order.killed.set()
        self.screen.tell(
            f"{LABELS[report.stage]}: transaction {report.transaction} is open with records written;"
            " broker killed (SIGKILL)"
        )
        started = time.monotonic()
        self.server.start()
        self.screen.tell(f"broker is back after {time.monotonic() - started:.1f} s")


def free_suffix(bootstrap: str) -> str:
    """The first of '', '-2', '-3', ... that no topic of an earlier run on this broker uses."""
    number = 1
    plan = Plan(bootstrap, 0, "", False)
    admin = KafkaAdminClient(**client_settings(plan))
    taken = set(admin.list_topics())
    admin.close()
    while plan.flights_topic in taken:
        number += 1
        plan = Plan(bootstrap, 0, f"-{number}", False)
    return plan.suffix


def create_topics(plan: Plan) -> None:
    admin = KafkaAdminClient(**client_settings(plan))
    for name, partitions in (
        (plan.source_topic, FEEDERS),
        (plan.flights_topic, FLIGHT_PARTITIONS),
        (plan.totals_topic, TOTAL_PARTITIONS),
    ):
        admin.create_topics([NewTopic(name, partitions, 1)])
    admin.close()
