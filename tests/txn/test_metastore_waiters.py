from __future__ import annotations

import pytest
from support.sim_loop import SimScheduler

from txn.metastore.waiters import Waiters


def test_in_the_order_of_lsns_first_come_first_served_among_equals() -> None:
    waiters = Waiters(SimScheduler())
    called: list[object] = []
    for lsn, name in ((5, "a"), (3, "b"), (5, "c"), (4, "d"), (6, "e")):
        waiters.add(lsn, lambda error, name=name: called.append((name, error)))  # type: ignore[misc]
    waiters.fire(5)
    assert called == [("b", None), ("d", None), ("a", None), ("c", None)]
    assert len(waiters) == 1
    error = OSError()
    waiters.fire_all(error)
    assert called[-1] == ("e", error)
    waiters.fire_all(error)
    assert len(called) == 5


def test_one_that_raises_does_not_keep_the_others() -> None:
    scheduler = SimScheduler()
    waiters = Waiters(scheduler)
    called: list[int] = []

    def fails(error: Exception | None) -> None:
        raise RuntimeError("mine")

    waiters.add(1, lambda error: called.append(1))
    waiters.add(2, fails)
    waiters.add(3, lambda error: called.append(3))
    with pytest.raises(RuntimeError, match="mine"):
        waiters.fire(3)
    scheduler.run_ready()
    assert called == [1, 3]


def test_one_added_by_a_callback_is_called_too_when_it_is_due() -> None:
    waiters = Waiters(SimScheduler())
    called: list[int] = []

    def adds(error: Exception | None) -> None:
        waiters.add(1, lambda error: called.append(1))
        waiters.add(9, lambda error: called.append(9))

    waiters.add(2, adds)
    waiters.fire(2)
    assert called == [1]
    assert len(waiters) == 1
