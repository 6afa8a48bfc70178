"""Group commit: one write per turn, one flush in flight, everyone told in order, and one failure for all."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from support.sim_disk import SimDisk
from support.sim_loop import SimScheduler

from txn.metastore import MetaStore, Options, Put, Schema, StoreFailed
from txn.metastore.log import LogState

LOG = "meta/log-0000000001"


class World:
    def __init__(self, *, flush_delay_ms: float = 0, options: Options | None = None) -> None:
        self.scheduler = SimScheduler()
        self.disk = SimDisk(self.scheduler)
        self.options = options or Options()
        self.store, self.report = MetaStore.open(self.disk, "meta", Schema(), self.scheduler, self.options)
        self.disk.flush_delay_ms = flush_delay_ms
        self.told: list[tuple[str, object]] = []

    def put(self, value: object = 1) -> int:
        return self.store.apply([Put("/a", value)]).lsn

    def tell(self, name: str) -> Callable[[Exception | None], None]:
        return lambda error: self.told.append((name, error))

    @property
    def writes(self) -> int:
        return self.disk.writes[LOG]

    @property
    def flushes(self) -> int:
        return self.disk.flushes[LOG]


def test_all_batches_of_a_turn_are_one_write() -> None:
    world = World()
    before = world.writes
    for value in range(50):
        world.put(value)
    assert world.writes == before
    world.scheduler.run_ready()
    assert world.writes == before + 1


def test_written_is_told_after_the_write_and_without_a_flush() -> None:
    world = World()
    world.put()
    before, flushed = world.writes, world.flushes
    world.store.when_written(lambda error: world.told.append(("written", world.writes - before)))
    world.put()
    world.scheduler.run_ready()
    assert world.told == [("written", 1)]
    assert world.flushes == flushed
    world.store.when_written(world.tell("again"))
    assert len(world.told) == 1
    world.scheduler.run_ready()
    assert world.told[1:] == [("again", None)]


def test_durable_is_told_after_the_flush_in_the_order_of_lsns() -> None:
    world = World(flush_delay_ms=5)
    first, second, third = world.put(), world.put(), world.put()
    world.store.when_durable(third, world.tell("third"))
    world.store.when_durable(first, world.tell("first"))
    world.store.when_durable(second, world.tell("second"))
    world.scheduler.advance(4.9)
    assert world.told == []
    assert world.store.durable_lsn == 0
    world.scheduler.advance(0.2)
    assert world.told == [("first", None), ("second", None), ("third", None)]
    assert world.store.durable_lsn == third


def test_what_is_durable_already_is_told_in_the_same_turn_but_not_inside_the_call() -> None:
    world = World()
    lsn = world.put()
    world.scheduler.run_until_idle()
    flushed = world.flushes
    world.store.when_durable(lsn, world.tell("now"))
    world.store.when_durable(0, world.tell("nothing"))
    assert world.told == []
    world.scheduler.run_turn()
    assert world.told == [("nothing", None), ("now", None)]
    assert world.flushes == flushed


def test_an_lsn_not_given_yet() -> None:
    world = World()
    world.put()
    with pytest.raises(ValueError, match="lsn 2"):
        world.store.when_durable(2, world.tell("never"))


def test_one_flush_is_in_flight_and_the_next_covers_all_that_came_meanwhile() -> None:
    world = World(flush_delay_ms=10)
    flushed = world.flushes
    world.store.when_durable(world.put(), world.tell("first"))
    world.scheduler.advance(1)
    for number in range(20):
        world.store.when_durable(world.put(), world.tell(f"later {number}"))
        world.scheduler.advance(0.2)
    assert world.disk.flushes_in_flight == 1
    world.scheduler.advance(6)
    assert world.told == [("first", None)]
    world.scheduler.advance(10)
    assert len(world.told) == 21
    assert world.flushes == flushed + 2
    assert world.disk.most_flushes_in_flight == 1


def test_a_flush_starts_in_the_turn_that_asks_for_it() -> None:
    world = World(flush_delay_ms=10)
    world.store.when_durable(world.put(), world.tell("durable"))
    world.scheduler.run_turn()
    assert world.disk.flushes_in_flight == 1


def test_what_nobody_waits_for_is_flushed_after_the_linger_time() -> None:
    world = World(options=Options(flush_linger_ms=20))
    flushed = world.flushes
    lsn = world.put()
    world.scheduler.advance(19)
    assert world.store.durable_lsn == 0
    world.put()
    world.scheduler.advance(2)
    assert world.store.durable_lsn == lsn + 1
    assert world.flushes == flushed + 1
    world.scheduler.run_until_idle()
    assert world.flushes == flushed + 1


def test_a_wait_for_an_old_lsn_does_not_flush_what_came_after_twice() -> None:
    world = World(flush_delay_ms=1)
    flushed = world.flushes
    first = world.put()
    world.put()
    world.store.when_durable(first, world.tell("first"))
    world.scheduler.run_until_idle()
    assert world.flushes == flushed + 1
    assert world.store.durable_lsn == 2


def test_the_log_grows_in_steps() -> None:
    world = World(options=Options(allocate_bytes=10_000))
    for _ in range(100):
        world.put("x" * 500)
        world.scheduler.run_ready()
    size = len(world.disk.content(LOG))
    assert size % 10_000 == 0
    assert size - world.store.stats().log_bytes < 20_000


def test_no_room_to_reserve_is_no_failure() -> None:
    world = World()
    world.disk.fail("allocate", error=errno.ENOSPC)
    world.store.when_durable(world.put(), world.tell("durable"))
    world.scheduler.run_until_idle()
    assert world.told == [("durable", None)]


class TestFailure:
    @pytest.mark.parametrize("kind", ["write", "flush"])
    def test_everyone_is_told_and_nothing_can_be_changed_any_more(self, kind: str) -> None:
        world = World(flush_delay_ms=5)
        world.store.when_durable(world.put(), world.tell("good"))
        world.scheduler.run_until_idle()
        world.store.when_failed(world.tell("failed"))
        world.disk.fail(kind, error=errno.ENOSPC if kind == "write" else errno.EIO)
        lsn = world.put("in doubt")
        world.store.when_durable(lsn, world.tell("durable"))
        world.store.when_written(world.tell("written"))
        world.scheduler.advance(1)
        world.scheduler.run_until_idle()
        outcomes = dict(world.told)
        assert outcomes["good"] is None
        assert isinstance(outcomes["durable"], StoreFailed)
        assert isinstance(outcomes["failed"], StoreFailed)
        assert isinstance(outcomes["failed"].__cause__, OSError)
        assert outcomes["written"] is (None if kind == "flush" else outcomes["durable"])
        with pytest.raises(StoreFailed):
            world.put()
        assert world.store.failure is outcomes["failed"]
        record = world.store.get("/a")
        assert record is not None
        assert record.value == "in doubt"

    def test_it_is_final(self) -> None:
        """A flush that failed is not tried again: the kernel would call the lost pages clean."""
        world = World()
        world.disk.fail("flush")
        world.store.when_durable(world.put(), world.tell("first"))
        world.scheduler.run_until_idle()
        flushed = world.flushes
        world.store.when_durable(1, world.tell("second"))
        world.store.when_written(world.tell("written"))
        world.store.when_failed(world.tell("failed"))
        world.scheduler.run_until_idle()
        assert {name for name, error in world.told if isinstance(error, StoreFailed)} == {
            "first",
            "second",
            "failed",
        }
        assert ("written", None) in world.told
        world.store.close(world.tell("closed"))
        assert world.told[-1] == ("closed", world.store.failure)
        assert world.flushes == flushed
        assert not world.disk.open_files

    def test_what_comes_while_a_failing_flush_runs(self) -> None:
        world = World(flush_delay_ms=5)
        world.disk.fail("flush")
        world.store.when_durable(world.put(), world.tell("first"))
        world.scheduler.advance(1)
        world.store.when_durable(world.put(), world.tell("second"))
        world.scheduler.run_until_idle()
        assert [name for name, error in world.told if isinstance(error, StoreFailed)] == ["first", "second"]

    def test_a_write_that_fails_while_a_flush_runs(self) -> None:
        world = World(flush_delay_ms=5)
        world.store.when_durable(world.put(), world.tell("first"))
        world.scheduler.advance(1)
        world.disk.fail("write")
        world.store.when_durable(world.put(), world.tell("second"))
        world.scheduler.advance(1)
        world.store.close(world.tell("closed"))
        assert not world.store.closed
        world.scheduler.run_until_idle()
        assert world.store.closed
        assert [name for name, error in world.told if error] == ["first", "second", "closed"]

    def test_a_callback_that_raises_keeps_nobody_from_being_told(self) -> None:
        world = World()

        def fails(error: Exception | None) -> None:
            raise RuntimeError("mine")

        world.store.when_written(fails)
        world.store.when_durable(world.put(), fails)
        world.store.when_durable(1, world.tell("durable"))
        world.store.when_written(world.tell("written"))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="mine"):
                world.scheduler.run_until_idle()
        world.scheduler.run_until_idle()
        assert sorted(world.told) == [("durable", None), ("written", None)]


def test_an_impossible_transition_raises() -> None:
    world = World()
    world.store.close()
    for state in LogState:
        with pytest.raises(AssertionError):
            world.store._journal._move(state)


class TestClose:
    def test_everything_is_written_and_flushed_and_told_before_it_returns(self) -> None:
        world = World()
        world.store.when_durable(world.put(), world.tell("durable"))
        world.store.when_written(world.tell("written"))
        world.store.close(world.tell("closed"))
        assert world.told == [("written", None), ("durable", None), ("closed", None)]
        assert world.store.closed
        assert world.disk.unflushed() == []
        assert not world.disk.open_files
        world.scheduler.run_until_idle()
        again, report = MetaStore.open(world.disk.crash(1, keep="none"), "meta", Schema(), world.scheduler)
        assert report.torn is None
        assert again.get("/a") == (1, 1)

    def test_a_flush_in_flight_is_awaited(self) -> None:
        """Its error, if there is one, is reported to it and not to another flush of the same file."""
        world = World(flush_delay_ms=5)
        world.store.when_durable(world.put(), world.tell("durable"))
        world.scheduler.advance(1)
        world.put()
        world.store.close(world.tell("closed"))
        world.disk.fail("flush")
        assert world.told == []
        with pytest.raises(StoreFailed):
            world.put()
        world.scheduler.run_until_idle()
        assert [(name, type(error)) for name, error in world.told] == [
            ("durable", StoreFailed),
            ("closed", StoreFailed),
        ]
        assert world.store.closed

    def test_all_is_flushed_at_once_even_if_nobody_awaits_the_flush_in_flight(self) -> None:
        world = World(flush_delay_ms=5)
        world.store.when_durable(world.put(), world.tell("durable"))
        world.scheduler.advance(1)
        world.put(2)
        world.store.close(world.tell("closed"))
        assert world.told == []
        scheduler = SimScheduler()
        again, _ = MetaStore.open(
            world.disk.crash(1, keep="none", scheduler=scheduler), "meta", Schema(), scheduler
        )
        assert again.get("/a") == (2, 2)

    def test_a_flush_in_flight_ends_well_and_the_last_one_does_not(self) -> None:
        world = World(flush_delay_ms=5)
        world.store.when_durable(world.put(), world.tell("durable"))
        world.scheduler.advance(1)
        world.disk.fail("flush")
        world.store.close(world.tell("closed"))
        world.scheduler.run_until_idle()
        assert [(name, type(error)) for name, error in world.told] == [
            ("durable", StoreFailed),
            ("closed", StoreFailed),
        ]

    def test_a_good_flush_in_flight_is_awaited_too(self) -> None:
        world = World(flush_delay_ms=5)
        world.store.when_durable(world.put(), world.tell("first"))
        world.scheduler.advance(1)
        world.store.when_durable(world.put(), world.tell("second"))
        world.store.close(world.tell("closed"))
        world.store.close(world.tell("closed again"))
        world.scheduler.run_until_idle()
        assert world.told == [(name, None) for name in ("first", "second", "closed", "closed again")]
        assert world.disk.unflushed() == []

    def test_it_is_harmless_when_repeated(self) -> None:
        world = World()
        world.store.close()
        world.store.close(world.tell("closed"))
        assert world.told == [("closed", None)]
        with pytest.raises(StoreFailed, match="closed"):
            world.put()
        assert world.store.get("/a") is None

    @pytest.mark.parametrize("kind", ["write", "flush"])
    def test_it_can_fail(self, kind: str) -> None:
        world = World()
        world.store.when_durable(world.put(), world.tell("durable"))
        world.disk.fail(kind)
        world.store.close(world.tell("closed"))
        assert [type(error) for _, error in world.told] == [StoreFailed, StoreFailed]
        assert world.store.closed

    def test_no_timer_is_left(self) -> None:
        world = World()
        world.put()
        world.scheduler.run_ready()
        world.store.close()
        changes = world.disk.changes
        world.scheduler.run_until_idle()
        assert world.disk.changes == changes


class TestMarks:
    """An idle log says how far it is durable, so that damage at its end is told from an unfinished write."""

    def test_an_idle_log_is_marked_once(self) -> None:
        world = World(options=Options(mark_idle_ms=1000))
        world.put()
        world.scheduler.advance(900)
        before, flushed = world.writes, world.flushes
        world.scheduler.advance(200)
        assert world.writes == before + 1
        world.scheduler.run_until_idle()
        assert (world.writes, world.flushes) == (before + 1, flushed)

    def test_a_busy_log_needs_none(self) -> None:
        world = World(options=Options(mark_idle_ms=1000))
        for _ in range(50):
            world.put()
            world.scheduler.advance(50)
        size = world.store.stats().log_bytes
        world.put()
        world.scheduler.advance(10)
        assert (world.store.stats().log_bytes - size) * 51 == world.store.stats().log_bytes

    def test_an_opened_log_is_marked_if_its_end_is_not(self) -> None:
        world = World()
        world.put()
        world.scheduler.run_ready()
        scheduler = SimScheduler()
        disk = world.disk.kill(scheduler)
        MetaStore.open(disk, "meta", Schema(), scheduler)
        before = disk.writes[LOG]
        scheduler.run_until_idle()
        assert disk.writes[LOG] == before + 1
