"""The transaction buffer against a naive model: LSO and the verdict on each batch."""

from __future__ import annotations

import random

import pytest

from txn.buffer import PartitionTransactions


def test_the_first_open_transaction_is_the_limit() -> None:
    buffer = PartitionTransactions()
    assert buffer.first_open_offset is None
    buffer.opened((1, 0, 1), 10)
    buffer.opened((2, 0, 2), 20)
    assert buffer.first_open_offset == 10
    buffer.closed((1, 0, 1))
    assert buffer.first_open_offset == 20
    buffer.closed((2, 0, 2))
    assert buffer.first_open_offset is None


def test_closing_what_is_not_open_changes_nothing() -> None:
    buffer = PartitionTransactions()
    buffer.opened((1, 0, 1), 10)
    buffer.closed((9, 9, 9))
    assert (1, 0, 1) in buffer
    assert buffer.open_count == 1


def test_an_aborted_range_covers_its_producer_alone() -> None:
    buffer = PartitionTransactions()
    buffer.add_aborted(7, 10, 20)
    assert buffer.is_aborted(7, 10)
    assert buffer.is_aborted(7, 20)
    assert not buffer.is_aborted(7, 9)
    assert not buffer.is_aborted(7, 21)
    assert not buffer.is_aborted(8, 15)


def test_the_same_range_again_only_grows() -> None:
    buffer = PartitionTransactions()
    buffer.add_aborted(7, 10, 15)
    buffer.add_aborted(7, 10, 20)
    buffer.add_aborted(7, 10, 12)
    assert buffer.aborted_count == 1
    assert buffer.is_aborted(7, 20)


def test_ranges_below_the_log_start_are_forgotten() -> None:
    buffer = PartitionTransactions()
    buffer.add_aborted(7, 10, 20)
    buffer.add_aborted(7, 30, 40)
    buffer.add_aborted(8, 12, 14)
    buffer.drop_aborted_below(21)
    assert buffer.aborted_count == 1
    assert not buffer.is_aborted(7, 15)
    assert buffer.is_aborted(7, 35)


@pytest.mark.parametrize("seed", range(20))
def test_against_a_model(seed: int) -> None:
    """Interleaved transactions of five producers; each batch's outcome is known to the model."""
    rng = random.Random(seed)
    buffer = PartitionTransactions()
    open_now: dict[int, tuple[int, list[int]]] = {}
    outcome: dict[tuple[int, int], str] = {}
    offset = seq = 0
    for _ in range(400):
        producer = rng.randrange(5)
        if producer in open_now and rng.random() < 0.3:
            txn_seq, offsets = open_now.pop(producer)
            aborted = rng.random() < 0.5
            if aborted:
                buffer.add_aborted(producer, offsets[0], offsets[-1])
            buffer.closed((producer, 0, txn_seq))
            for at in offsets:
                outcome[producer, at] = "aborted" if aborted else "committed"
        else:
            if producer not in open_now:
                seq += 1
                open_now[producer] = (seq, [])
                buffer.opened((producer, 0, seq), offset)
            open_now[producer][1].append(offset)
            offset += rng.randrange(1, 4)
        expected = min((offsets[0] for _, offsets in open_now.values()), default=None)
        assert buffer.first_open_offset == expected
    for (producer, at), end in outcome.items():
        assert buffer.is_aborted(producer, at) == (end == "aborted"), (producer, at)
