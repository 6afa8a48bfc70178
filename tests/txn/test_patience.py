"""Work beside the requests that meets a store which takes nothing at this moment: it goes on later."""

from __future__ import annotations

import pytest
from support.sim_loop import SimScheduler

from txn.metastore import StoreFailed, TryAgain
from txn.outcomes import delete_in_batches
from txn.sweep import Sweep


class Failing(Sweep):
    def __init__(self, scheduler, errors):
        super().__init__(scheduler)
        self.errors = errors
        self.parts = 0

    def part(self, before_ms):
        self.parts += 1
        if self.errors:
            raise self.errors.pop()
        return False


@pytest.mark.parametrize(("error", "parts"), [(TryAgain("a hand-over"), 4), (StoreFailed("no disk"), 1)])
def test_a_sweep_goes_on_after_a_moment_in_which_the_store_takes_nothing(error, parts):
    scheduler = SimScheduler()
    sweep = Failing(scheduler, [error])
    sweep.configure(1000, 500)
    scheduler.advance(1600)
    assert sweep.parts == parts
    sweep.close()
    scheduler.advance(1000)
    assert sweep.parts == parts


class Store:
    def __init__(self, paths, errors):
        self.paths = paths
        self.errors = errors

    def apply(self, ops):
        if self.errors:
            raise self.errors.pop()
        for op in ops:
            self.paths.remove(op.key)


@pytest.mark.parametrize(("error", "left"), [(TryAgain("a hand-over"), 0), (StoreFailed("no disk"), 3)])
def test_records_are_deleted_once_the_store_takes_that(error, left):
    scheduler = SimScheduler()
    store = Store(["/resolved/1", "/resolved/2", "/resolved/3"], [error])
    delete_in_batches(store, scheduler, lambda: iter(store.paths))
    scheduler.advance(1000)
    assert len(store.paths) == left
