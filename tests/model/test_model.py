"""The model, explored: small scenarios whole or up to a bound of states, and planted faults that it must find.

On demand without bounds: ./run model [SCENARIO...]. Figures of such a run: docs/testing.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from model.explore import explore
from model.planted import PLANTED, Planted
from model.scenarios import SCENARIOS

STATES = {
    "parallel-prepare": None,
    "two-at-once": 100,
    "settlement": 150,
    "group": None,
    "split": 60,
    "retired-parent": 60,
}
"""How many states are seen in a run of the suite; None: all of them."""
PLANTED_STATES = 400


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_state_keeps_the_invariants(name: str) -> None:
    bound = STATES[name]
    explored = explore(SCENARIOS[name], max_states=bound or 1 << 60, finish_every=3)
    assert explored.found is None, str(explored.found)
    assert explored.whole if bound is None else explored.states >= bound


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.what)
def test_planted_faults_are_found(planted: Planted) -> None:
    with planted.planted():
        explored = explore(
            SCENARIOS[planted.scenario],
            max_states=PLANTED_STATES,
            finish_every=2,
            breadth_first=planted.scenario == "retired-parent",
        )
    assert explored.found is not None, f"not found in {explored.states} states"
