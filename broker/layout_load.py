"""What each range carries, measured in passing, and the policy put to it: dry, or in force where that is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.layout_controller import LayoutController
from broker.layout_policy import Decision, Policy, RangeLoad, decide
from broker.topic import Topic
from broker.topics import Topics
from storage.clock import Periodic, Scheduler
from storage.range_log import RangeLog

SMOOTHING = 0.3
"""Weight of the last interval in a rate: a burst within one interval counts for a third."""


@dataclass(slots=True)
class _Measured:
    lsn: int
    since_ms: int
    bytes_per_s: float = 0.0


class LayoutBalancer:
    """Measures all ranges every `interval_ms`, and lets the policy change them if it is `automatic`."""

    def __init__(
        self,
        topics: Topics,
        controller: LayoutController,
        scheduler: Scheduler,
        policy: Policy,
        *,
        interval_ms: int,
        automatic: bool,
        on_decision: Callable[[Topic, Decision], None],
    ) -> None:
        self._topics = topics
        self._controller = controller
        self._scheduler = scheduler
        self._policy = policy
        self._automatic = automatic
        self._on_decision = on_decision
        self._measured: dict[RangeLog, _Measured] = {}
        self._measured_at_ms = scheduler.monotonic_ms()
        self._turns = Periodic(scheduler, interval_ms, self._turn)

    def loads(self, topic: Topic) -> list[RangeLoad]:
        """What the ranges of a topic carry, as far as it has been measured."""
        now_ms = self._scheduler.now_ms()
        loads = []
        for log in topic.ranges:
            measured = self._measured.get(log)
            loads.append(
                RangeLoad(
                    log.first,
                    log.last,
                    measured.bytes_per_s if measured else 0.0,
                    log.flush_ms,
                    measured.since_ms if measured else now_ms,
                    {index: found.size_bytes for index, found in log.active.indexes.items()},
                )
            )
        return loads

    def advice(self, topic: Topic) -> list[Decision]:
        """What the policy would do now, and why."""
        return decide(self.loads(topic), self._policy, self._scheduler.now_ms())

    def close(self) -> None:
        self._turns.close()

    def _turn(self) -> None:
        self._measure()
        if self._automatic:
            for topic in list(self._topics):
                self._act(topic)

    def _measure(self) -> None:
        at_ms, now_ms = self._scheduler.monotonic_ms(), self._scheduler.now_ms()
        seconds = max(at_ms - self._measured_at_ms, 1) / 1000
        self._measured_at_ms = at_ms
        measured: dict[RangeLog, _Measured] = {}
        for topic in self._topics:
            for log in topic.ranges:
                before = self._measured.get(log)
                if before is None:
                    measured[log] = _Measured(log.appended_lsn, now_ms)
                    continue
                rate = (log.appended_lsn - before.lsn) / seconds
                before.bytes_per_s += SMOOTHING * (rate - before.bytes_per_s)
                before.lsn = log.appended_lsn
                measured[log] = before
        self._measured = measured

    def _act(self, topic: Topic) -> None:
        if len(topic.partitions) == 1:
            return
        for decision in self.advice(topic):
            if decision.action == "split":
                self._on_decision(topic, decision)
                self._controller.split(topic, [decision.at], lambda _: None)
            elif decision.action == "merge":
                self._on_decision(topic, decision)
                self._controller.merge(topic, decision.first, decision.last, lambda _: None)
