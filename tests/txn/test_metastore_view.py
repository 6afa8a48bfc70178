from __future__ import annotations

import random

import pytest

from txn.metastore.ops import Delete, Put, Record
from txn.metastore.schema import Schema
from txn.metastore.state import State


def make(names: list[str]) -> State:
    state = State(Schema(), max_key_bytes=100)
    state.commit(state.plan([Put(name, name) for name in names]))
    return state


def test_an_empty_state() -> None:
    assert make([]).freeze().take(10) is None


def test_a_step_takes_no_more_than_asked() -> None:
    view = make(["a", "b", "c", "d", "e"]).freeze()
    steps = [view.take(2) for _ in range(4)]
    assert [[key for key, _ in step] if step is not None else None for step in steps] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
        None,
    ]


def test_created_since_is_not_there_deleted_since_is() -> None:
    state = make(["b", "d"])
    view = state.freeze()
    state.commit(state.plan([Put("a", 1), Put("c", 1), Delete("d"), Put("b", 2)]))
    state.commit(state.plan([Delete("c"), Put("d", 3), Put("b", 3)]))
    taken = [pair for _ in range(9) for pair in (view.take(1) or [])]
    assert taken == [("b", Record("b", 1)), ("d", Record("d", 1))]


def test_only_one_at_a_time() -> None:
    state = make(["a"])
    state.freeze()
    with pytest.raises(AssertionError):
        state.freeze()
    state.release()
    state.freeze()


def test_it_costs_memory_only_for_what_changes_ahead_of_it() -> None:
    state = make([f"{n:03d}" for n in range(100)])
    view = state.freeze()
    view.take(50)
    state.commit(state.plan([Put(f"{n:03d}", "new") for n in range(100)]))
    assert len(view._kept) == 50
    while view.take(10) is not None:
        pass
    assert not view._kept
    assert not len(view._kept_keys)


@pytest.mark.parametrize("seed", range(20))
def test_the_steps_together_are_the_state_when_it_was_frozen(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"{n:03d}" for n in range(60)]
    state = make(rng.sample(names, 30))
    expected = list(state.scan("", None, None))
    view = state.freeze()
    taken = []
    while (step := view.take(rng.randrange(1, 6))) is not None:
        taken += step
        for _ in range(rng.randrange(4)):
            ops = [rng.choice([Put(name, rng.random()), Delete(name)]) for name in rng.choices(names, k=5)]
            state.commit(state.plan(ops))
    assert taken == expected
