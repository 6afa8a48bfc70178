"""Transactions and transactional ids as plain state."""

from __future__ import annotations

import itertools

import pytest

from txn.transaction import (
    MAX_EPOCH,
    TRANSITIONS,
    IllegalTransition,
    LastEnd,
    State,
    Transaction,
    TransactionalId,
)


def transaction(state: State = State.OPEN) -> Transaction:
    return Transaction("t", 1, 0, 5, created_ms=0, deadline_ms=1000, state=state)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_the_moves_in_the_table_are_possible(before: State, after: State) -> None:
    subject = transaction(before)
    if after in TRANSITIONS[before]:
        subject.move(after)
        assert subject.state is after
    else:
        with pytest.raises(IllegalTransition):
            subject.move(after)
        assert subject.state is before


def test_an_ended_transaction_never_moves_again() -> None:
    assert TRANSITIONS[State.COMMITTED] == TRANSITIONS[State.ABORTED] == frozenset()


def test_an_id_survives_its_record() -> None:
    held = TransactionalId("t", 7, 3, 60_000, 2, LastEnd(7, 2, True), (7, 1))
    again = TransactionalId.from_record("t", held.record())
    assert again.record() == held.record()
    assert again.last_end == held.last_end
    assert again.previous == (7, 1)


def test_epochs_run_out_into_a_new_producer_id() -> None:
    """The last epoch is never handed out: a fence above every client's epoch must exist (KIP-360)."""
    held = TransactionalId("t", 7, MAX_EPOCH - 2, 60_000, 1)
    assert held.next_epoch(1, lambda: 99) == (7, MAX_EPOCH - 1)
    held.epoch = MAX_EPOCH - 1
    assert held.next_epoch(1, lambda: 99) == (99, 0)
    held.epoch = MAX_EPOCH - 2
    assert held.next_epoch(2, lambda: 99) == (99, 0), "a double bump must not step over the end"
