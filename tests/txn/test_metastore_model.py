"""The store against its model under hypothesis: batches, waits, watches, restarts, kills and power cuts."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from metastore_group import GroupPair
from metastore_model import KEYS, Mirror, Pair, random_ops

seeds = st.integers(0, 2**32 - 1)


class StoreMachine(RuleBasedStateMachine):
    make: Callable[[int], Pair] = Pair

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.pair = type(self).make(seed)
        self.pair.open()

    @rule(seed=seeds, batches=st.integers(1, 8))
    def apply(self, seed: int, batches: int) -> None:
        rng = random.Random(seed)
        for _ in range(batches):
            self.pair.apply(random_ops(rng, self.pair.model))

    @rule()
    def wait_durable(self) -> None:
        self.pair.wait_durable(self.pair.store.lsn)

    @rule()
    def wait_written(self) -> None:
        self.pair.wait_written()

    @rule(turns=st.integers(1, 4))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.pair.scheduler.run_turn()

    @rule(delay_ms=st.sampled_from([1, 5, 30, 200]))
    def advance(self, delay_ms: int) -> None:
        self.pair.scheduler.advance(delay_ms)
        self.pair.check_mirrors()

    @rule(
        what=st.one_of(
            st.sampled_from(KEYS).map(lambda key: {"key": key}),
            st.sampled_from(["", "/", "/i/", "/q/", "/k/1"]).map(lambda prefix: {"prefix": prefix}),
            st.tuples(st.integers(0, 3), st.integers(0, 4)).map(
                lambda bounds: {"index": ("n", (bounds[0],), (bounds[1],))}
            ),
        )
    )
    def watch(self, what: dict[str, object]) -> None:
        self.pair.mirrors.append((Mirror(self.pair.store, **what), what))

    @rule(choice=seeds)
    def cancel(self, choice: int) -> None:
        mirrors = self.pair.mirrors
        if mirrors:
            mirrors.pop(choice % len(mirrors))[0].watch.cancel()

    @rule()
    def restart(self) -> None:
        self.pair.restart()

    @rule()
    def kill(self) -> None:
        self.pair.kill()
        self.pair.open()

    @rule(seed=seeds)
    def power_cut(self, seed: int) -> None:
        self.pair.crash(seed)
        self.pair.open()

    @invariant()
    def store_is_model(self) -> None:
        if hasattr(self, "pair"):
            self.pair.check()


StoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestStoreAgainstModel = StoreMachine.TestCase


class GroupMachine(StoreMachine):
    """The same, of a store that a group of one node commits."""

    make = GroupPair


GroupMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestGroupAgainstModel = GroupMachine.TestCase
