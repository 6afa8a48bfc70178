"""Group commit of one range: who waits for what to be durable, and when the device is asked.

Guarantees: one round of flushes at a time; a round covers everything written before it began, across files,
and counts only when every file of it is durable; what is appended meanwhile is covered by the next round.
Whoever waits is answered in order, after the owner has moved its high watermarks. A failed flush is final: no
further round ever starts, and everyone who waits gets the error.

Positions ("lsn") are bytes in the range's append order. No I/O of its own: the rounds are the owner's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

from storage.clock import Scheduler, Timer

Outcome = Callable[[Exception | None], None]
"""Called once: with None on success, with the error otherwise. Must not raise."""

State = Literal["IDLE", "FLUSHING", "STOPPED"]

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "IDLE": frozenset({"FLUSHING", "STOPPED"}),
    "FLUSHING": frozenset({"IDLE", "STOPPED"}),
    "STOPPED": frozenset(),
}


class Round(Protocol):
    """What the owner does for a flusher."""

    def start_round(self) -> None:
        """Start flushing everything written. The owner calls `round_done` or `stop` later, never from
        within."""
        ...


class GroupFlusher:
    """Counts positions and decides when a round starts."""

    def __init__(self, scheduler: Scheduler, owner: Round, linger_ms: float, lsn: int = 0) -> None:
        self._scheduler = scheduler
        self._owner = owner
        self._linger_ms = linger_ms
        self._timer: Timer | None = None
        self._state: State = "IDLE"
        self._error: Exception | None = None
        self._waiters: list[tuple[int, Outcome]] = []
        self._wanted_lsn = lsn
        self._round_lsn = lsn
        self.written_lsn = lsn
        self.durable_lsn = lsn

    @property
    def state(self) -> State:
        return self._state

    def _change_state(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            raise ValueError(f"a flusher that is {self._state} cannot become {state}")
        self._state = state

    def wrote(self, lsn: int) -> None:
        """Everything up to `lsn` has been written to its files."""
        self.written_lsn = lsn
        if self._state != "IDLE" or lsn <= self.durable_lsn:
            return
        if self._wanted_lsn > self.durable_lsn:
            self._start()
        elif self._timer is None:
            self._timer = self._scheduler.call_later(self._linger_ms, self._lingered)

    def when_durable(self, lsn: int, callback: Outcome) -> None:
        if self._state == "STOPPED" or lsn <= self.durable_lsn:
            self._scheduler.call_soon(callback, None if lsn <= self.durable_lsn else self._error)
            return
        self._waiters.append((lsn, callback))
        self.request(lsn)

    def request(self, lsn: int) -> None:
        """Flush up to `lsn` without linger, as soon as it is written."""
        if lsn > self._wanted_lsn:
            self._wanted_lsn = lsn
        if self._state == "IDLE" and self.durable_lsn < lsn <= self.written_lsn:
            self._start()

    def _lingered(self) -> None:
        self._timer = None
        self.request(self.written_lsn)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._change_state("FLUSHING")
        self._round_lsn = self.written_lsn
        self._owner.start_round()

    def round_done(self) -> list[Outcome]:
        """Every file of the round is durable. Returns whom to tell, after the owner's own bookkeeping; the
        next round, if one is wanted, starts with `proceed`."""
        self.durable_lsn = self._round_lsn
        reached = [callback for lsn, callback in self._waiters if lsn <= self.durable_lsn]
        if reached:
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > self.durable_lsn]
        return reached

    def proceed(self) -> None:
        """Go on after a round: start the next one at once if somebody waits, else linger."""
        self._change_state("IDLE")
        self.wrote(self.written_lsn)

    def stop(self, error: Exception | None) -> list[Outcome]:
        """No round starts any more. Returns whom to tell of the error: everyone still waiting."""
        self._change_state("STOPPED")
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [callback for _, callback in self._waiters]
        self._waiters = []
        return waiting


def tell_all(scheduler: Scheduler, callbacks: list[Outcome], error: Exception | None) -> None:
    """Call all of them; one that raises takes nobody else's answer away."""
    for number, callback in enumerate(callbacks):
        try:
            callback(error)
        except BaseException:
            if number + 1 < len(callbacks):
                scheduler.call_soon(tell_all, scheduler, callbacks[number + 1 :], error)
            raise
