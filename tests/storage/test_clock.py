"""Deferred calls."""

from support.sim_loop import SimScheduler

from storage.clock import Paced


def test_what_is_paced_runs_soon_and_once_for_all_that_come_within_the_interval():
    scheduler = SimScheduler()
    begin, ran = scheduler.monotonic_ms(), []
    paced = Paced(scheduler, 10, lambda: ran.append(scheduler.monotonic_ms() - begin))
    paced.wake()
    paced.wake()
    assert not ran, "never from within"
    scheduler.run_ready()
    assert ran == [0]
    for _ in range(3):
        paced.wake()
        scheduler.run_ready()
    scheduler.advance(9)
    assert ran == [0]
    scheduler.advance(1)
    assert ran == [0, 10]
    scheduler.advance(30)
    paced.wake()
    scheduler.run_ready()
    assert ran == [0, 10, 40]
    paced.wake()
    paced.close()
    scheduler.advance(30)
    assert ran == [0, 10, 40]
