"""The table of states: complete, and the only way."""

from __future__ import annotations

from itertools import product

import pytest

from broker.groups.group import Budget, Group
from broker.groups.states import TRANSITIONS, GroupState, ImpossibleTransition


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(GroupState)


@pytest.mark.parametrize(("current", "wanted"), list(product(GroupState, GroupState)))
def test_only_what_the_table_allows(current: GroupState, wanted: GroupState) -> None:
    group = Group("orders", Budget(1))
    group.state = current
    if wanted in TRANSITIONS[current]:
        group.transition_to(wanted)
        assert group.state is wanted
    else:
        with pytest.raises(ImpossibleTransition, match=f"'orders' .* {current.value} to {wanted.value}"):
            group.transition_to(wanted)
        assert group.state is current


def test_dead_is_the_end_and_can_be_reached_from_empty_only() -> None:
    assert not TRANSITIONS[GroupState.DEAD]
    assert [state for state in GroupState if GroupState.DEAD in TRANSITIONS[state]] == [GroupState.EMPTY]
