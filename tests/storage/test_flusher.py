from __future__ import annotations

from collections.abc import Callable

import pytest
from support.sim_loop import SimScheduler

from storage.flusher import GroupFlusher, tell_all


class FakeOwner:
    """Counts rounds; a test ends them by hand."""

    def __init__(self, linger_ms: float = 20) -> None:
        self.scheduler = SimScheduler()
        self.rounds = 0
        self.flusher = GroupFlusher(self.scheduler, self, linger_ms)
        self.told: list[str] = []

    def start_round(self) -> None:
        self.rounds += 1

    def end_round(self) -> None:
        callbacks = self.flusher.round_done()
        self.flusher.proceed()
        tell_all(self.scheduler, callbacks, None)

    def waiter(self, name: str) -> Callable[[Exception | None], None]:
        def told(error: Exception | None) -> None:
            self.told.append(name if error is None else f"{name}: {error}")

        return told


def test_what_is_appended_during_a_flush_is_covered_by_the_next() -> None:
    owner = FakeOwner()
    flusher = owner.flusher
    flusher.wrote(10)
    flusher.when_durable(10, owner.waiter("a"))
    assert owner.rounds == 1
    for lsn in (20, 30, 40):
        flusher.wrote(lsn)
        flusher.when_durable(lsn, owner.waiter(str(lsn)))
    assert owner.rounds == 1
    owner.end_round()
    assert owner.told == ["a"]
    assert (owner.rounds, flusher.durable_lsn) == (2, 10)
    owner.end_round()
    assert owner.told == ["a", "20", "30", "40"]
    assert (owner.rounds, flusher.durable_lsn, flusher.state) == (2, 40, "IDLE")


def test_waiting_for_what_is_queued_waits_for_its_write() -> None:
    owner = FakeOwner()
    owner.flusher.wrote(10)
    # Bytes are lingering, but a flush now would not cover what is waited for.
    owner.flusher.when_durable(20, owner.waiter("b"))
    assert owner.rounds == 0
    owner.flusher.wrote(20)
    assert owner.rounds == 1
    owner.end_round()
    assert owner.told == ["b"]


def test_unwaited_bytes_are_flushed_after_the_linger() -> None:
    owner = FakeOwner(linger_ms=20)
    owner.flusher.wrote(10)
    owner.scheduler.advance(19)
    owner.flusher.wrote(15)
    assert owner.rounds == 0
    owner.scheduler.advance(2)
    assert owner.rounds == 1
    owner.end_round()
    assert owner.flusher.durable_lsn == 15
    owner.scheduler.run_until_idle()
    assert owner.rounds == 1


def test_linger_goes_on_after_a_round_that_missed_bytes() -> None:
    owner = FakeOwner(linger_ms=20)
    owner.flusher.wrote(10)
    owner.flusher.request(10)
    owner.flusher.wrote(20)
    owner.end_round()
    assert owner.rounds == 1
    owner.scheduler.advance(21)
    assert owner.rounds == 2


def test_request_without_anything_new_is_nothing() -> None:
    owner = FakeOwner()
    owner.flusher.wrote(10)
    owner.flusher.request(10)
    owner.end_round()
    owner.flusher.request(10)
    owner.flusher.wrote(10)
    assert owner.rounds == 1


def test_durable_already_is_answered_in_a_later_turn() -> None:
    owner = FakeOwner()
    owner.flusher.when_durable(0, owner.waiter("now"))
    assert owner.told == []
    owner.scheduler.run_ready()
    assert owner.told == ["now"]


def test_stop_tells_all_and_starts_nothing_more() -> None:
    owner = FakeOwner()
    owner.flusher.wrote(10)
    owner.flusher.when_durable(10, owner.waiter("a"))
    owner.flusher.when_durable(30, owner.waiter("b"))
    error = OSError("gone")
    tell_all(owner.scheduler, owner.flusher.stop(error), error)
    assert owner.told == ["a: gone", "b: gone"]
    owner.flusher.wrote(40)
    owner.flusher.when_durable(40, owner.waiter("c"))
    owner.flusher.when_durable(0, owner.waiter("old"))
    owner.scheduler.run_until_idle()
    assert owner.told[2:] == ["c: gone", "old"]
    assert owner.rounds == 1


def test_impossible_transitions_raise() -> None:
    owner = FakeOwner()
    with pytest.raises(ValueError, match="cannot become"):
        owner.flusher.proceed()
    owner.flusher.stop(None)
    with pytest.raises(ValueError, match="cannot become"):
        owner.flusher.stop(None)


def test_a_raising_callback_takes_no_answer_away() -> None:
    owner = FakeOwner()

    def broken(error: Exception | None) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tell_all(owner.scheduler, [owner.waiter("a"), broken, owner.waiter("b")], None)
    owner.scheduler.run_ready()
    assert owner.told == ["a", "b"]
