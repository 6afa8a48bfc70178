from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.producers import Duplicate, ProducerBudget, ProducerStates, SequenceGap
from wire.batch import BatchHeader
from wire.errors import ErrorCode, KafkaError

MAX = 2**31 - 1


def header(sequence: int, count: int = 1, *, producer_id: int = 1, epoch: int = 0) -> BatchHeader:
    return BatchHeader(0, 100, -1, 2, 0, 0, count - 1, 0, 0, producer_id, epoch, sequence, count)


def states(limit: int = 100, idle_ms: int = 1000) -> ProducerStates:
    return ProducerStates(ProducerBudget(limit, idle_ms))


def accept(producers: ProducerStates, batch: BatchHeader, offset: int = 0, now_ms: int = 0) -> None:
    assert producers.check(batch, now_ms) is None
    producers.update(batch, offset, now_ms)


def refusal(producers: ProducerStates, batch: BatchHeader, **options: bool) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.check(batch, 0, **options)
    return caught.value.code


def test_sequences_go_on_without_a_gap() -> None:
    producers = states()
    accept(producers, header(0, 3), 0)
    accept(producers, header(3, 2), 3)
    for sequence in (4, 6, 7, MAX):
        assert refusal(producers, header(sequence)) is ErrorCode.out_of_order_sequence_number
    accept(producers, header(5), 5)


@pytest.mark.parametrize("last", [4, MAX - 1, MAX])
def test_what_is_ahead_of_its_turn_is_told_from_what_comes_too_late(last: int) -> None:
    producers = states()
    accept(producers, header(last))
    for ahead in (2, 3, 1000, 2**30):
        with pytest.raises(SequenceGap):
            producers.check(header((last + ahead) & MAX), 0)
    for behind in (1, 2, 1000, 2**30 - 2):
        with pytest.raises(KafkaError) as caught:
            producers.check(header((last - behind) & MAX), 0)
        assert not isinstance(caught.value, SequenceGap)
    with pytest.raises(SequenceGap):
        producers.check(header(1, epoch=1), 0)


def test_unknown_producer_may_start_anywhere_unless_it_must_be_known() -> None:
    producers = states()
    code = refusal(producers, header(17), require_known_producer=True)
    assert code is ErrorCode.out_of_order_sequence_number
    assert producers.check(header(0), 0, require_known_producer=True) is None
    accept(producers, header(17))
    assert producers.check(header(18), 0, require_known_producer=True) is None


def test_last_five_batches_are_known_as_duplicates() -> None:
    producers = states()
    for number in range(7):
        accept(producers, header(number * 10, 10), 1000 + number * 10)
    for number in range(2, 7):
        duplicate = producers.check(header(number * 10, 10), 0)
        assert duplicate == Duplicate(1000 + number * 10, 1009 + number * 10)
    for number in range(2):
        assert refusal(producers, header(number * 10, 10)) is ErrorCode.out_of_order_sequence_number
    # The same start with another length is no duplicate.
    assert refusal(producers, header(60, 9)) is ErrorCode.out_of_order_sequence_number


def test_older_epoch_never_writes_again() -> None:
    producers = states()
    accept(producers, header(0, epoch=4))
    assert refusal(producers, header(1, epoch=3)) is ErrorCode.invalid_producer_epoch
    assert refusal(producers, header(0, epoch=3)) is ErrorCode.invalid_producer_epoch


def test_new_epoch_starts_at_zero() -> None:
    producers = states()
    accept(producers, header(0, 5, epoch=4))
    assert refusal(producers, header(5, epoch=5)) is ErrorCode.out_of_order_sequence_number
    accept(producers, header(0, 5, epoch=5), 5)
    # Nothing of the old epoch is remembered: this is a batch of the new one.
    assert producers.check(header(0, 5, epoch=5), 0) == Duplicate(5, 9)


@pytest.mark.parametrize("first", [MAX, MAX - 1, MAX - 3])
def test_sequences_wrap_around(first: int) -> None:
    producers = states()
    accept(producers, header(first, 3), 0)
    end = (first + 3) & MAX
    assert producers.check(header(first, 3), 0) == Duplicate(0, 2)
    assert refusal(producers, header((end + 1) & MAX)) is ErrorCode.out_of_order_sequence_number
    accept(producers, header(end), 3)


def test_expiry_by_time_of_the_last_append() -> None:
    producers = states()
    accept(producers, header(0, producer_id=1), now_ms=0)
    accept(producers, header(0, producer_id=2), now_ms=50)
    assert producers.expire(99, 100) == 0
    assert producers.expire(100, 100) == 1
    assert producers.budget.count == len(producers) == 1
    accept(producers, header(9, producer_id=1), now_ms=101)


def test_idle_producers_make_room_oldest_first() -> None:
    budget = ProducerBudget(10, 100)
    one, other = ProducerStates(budget), ProducerStates(budget)
    for number in range(10):
        accept(one if number % 2 else other, header(0, producer_id=number), now_ms=number)
    accept(one, header(0, producer_id=50), now_ms=102)
    # Down to nine tenths of the limit, so that this is not done for every new producer.
    assert budget.count == 10
    assert 0 not in other.states
    assert set(one.states) == {1, 3, 5, 7, 9, 50}


def test_hard_limit_refuses_new_producers_only() -> None:
    producers = states(limit=3, idle_ms=1000)
    for number in range(3):
        accept(producers, header(0, producer_id=number))
    assert refusal(producers, header(0, producer_id=3)) is ErrorCode.throttling_quota_exceeded
    accept(producers, header(1, producer_id=1), 10)
    # It looks again only after a pause, and then finds the idle ones.
    with pytest.raises(KafkaError):
        producers.check(header(0, producer_id=3), 999)
    accept(producers, header(0, producer_id=3), now_ms=1000)
    assert len(producers) <= 3


def test_snapshot_and_restore_through_msgpack() -> None:
    producers = states()
    for number in range(7):
        accept(producers, header(number // 2, producer_id=number % 2, epoch=3), number, now_ms=number)
    restored = states()
    accept(restored, header(0, producer_id=9))
    restored.restore(msgpack.unpackb(msgpack.packb(producers.snapshot())))
    assert restored.snapshot() == producers.snapshot()
    assert restored.budget.count == 2
    for producer_id, state in restored.states.items():
        assert state.active_ms == producers.states[producer_id].active_ms
    assert restored.check(header(3, producer_id=0, epoch=3), 0) == Duplicate(6, 6)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 1, 2, 3, MAX - 1]), st.integers(1, 3)
        ),
        max_size=40,
    )
)
def test_against_a_plain_reading_of_the_rules(sent: list[tuple[int, int, int, int]]) -> None:
    """Whatever is sent: no batch twice within its epoch's last five, no gap within an epoch, no older epoch."""
    producers = states()
    accepted: dict[int, list[BatchHeader]] = {}
    offset = 0
    for producer_id, epoch, sequence, count in sent:
        batch = header(sequence, count, producer_id=producer_id, epoch=epoch)
        before = accepted.setdefault(producer_id, [])
        current = [known for known in before if known.producer_epoch == before[-1].producer_epoch]
        try:
            result = producers.check(batch, 0)
        except KafkaError as error:
            assert before
            if error.code is ErrorCode.invalid_producer_epoch:
                assert epoch < before[-1].producer_epoch
            elif epoch > before[-1].producer_epoch:
                assert sequence != 0
            else:
                assert sequence != (before[-1].last_sequence + 1) % 2**31
            continue
        if result is not None:
            assert (sequence, count) in [(known.base_sequence, known.record_count) for known in current[-5:]]
            continue
        if before and epoch == before[-1].producer_epoch:
            assert sequence == (before[-1].last_sequence + 1) % 2**31
        elif before:
            assert epoch > before[-1].producer_epoch
            assert sequence == 0
        producers.update(batch, offset, 0)
        before.append(batch)
        offset += count
