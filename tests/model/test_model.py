"""The model, explored: each scenario whole within small bounds, in part beyond, and planted faults that it must find.

On demand without bounds: ./run model [SCENARIO...]. Figures of such a run: docs/testing.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from model.explore import explore
from model.planted import PLANTED, Planted
from model.scenarios import SCENARIOS

WHOLE: dict[str, dict[str, int]] = {
    "parallel-prepare": {},
    "group": {},
    "two-at-once": {"crashes": 0},
    "split": {"crashes": 0},
    "retired-parent": {"crashes": 0},
    "settlement": {"crashes": 0, "ticks": 1},
}
"""What is explored whole in a run of the suite: the bounds that differ from the scenario's own."""
CRASHING = {"two-at-once": 60, "settlement": 60, "settlement-passes": 60, "split": 60, "retired-parent": 60}
"""How many states of those with crashes are seen there, too."""
PLANTED_STATES = 400


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", WHOLE)
def test_every_state_keeps_the_invariants(name: str) -> None:
    explored = explore(lambda: SCENARIOS[name](**WHOLE[name]), finish_every=10)
    assert explored.found is None, str(explored.found)
    assert explored.whole


@pytest.mark.parametrize("name", CRASHING)
def test_states_with_crashes_keep_the_invariants(name: str) -> None:
    explored = explore(SCENARIOS[name], max_states=CRASHING[name], finish_every=3)
    assert explored.found is None, str(explored.found)
    assert explored.states >= CRASHING[name]


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
