"""Deadlines against a model that simply looks at all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.groups.deadlines import WORK_PER_TICK, Deadline, Deadlines

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 4), st.integers(0, 50)),
        st.tuples(st.just("cancel"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("tick"), st.just(0), st.integers(0, 30)),
        st.tuples(st.just("next"), st.just(0), st.just(0)),
    )
)


@given(STEPS)
def test_fires_what_a_plain_list_would_fire(steps: list[tuple[str, int, int]]) -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    keys = [Deadline(lambda _now_ms, key=key: fired.append(key)) for key in range(5)]
    model: dict[int, int] = {}
    now_ms = 0
    for step, key, value in steps:
        if step == "set":
            deadlines.set(keys[key], now_ms + value)
            model[key] = now_ms + value
        elif step == "cancel":
            deadlines.cancel(keys[key])
            model.pop(key, None)
        elif step == "tick":
            now_ms += value
            deadlines.tick(now_ms)
            due = sorted((at_ms, key) for key, at_ms in model.items() if at_ms <= now_ms)
            times = {key: at_ms for at_ms, key in due}
            assert sorted(fired) == sorted(times)
            assert [times[key] for key in fired] == [at_ms for at_ms, _ in due]  # earliest first
            fired.clear()
            for key in times:
                del model[key]
        else:
            next_ms = deadlines.next_ms()
            assert (next_ms is None) is (not model)
            assert next_ms is None or next_ms <= min(model.values())
        assert len(deadlines) == len(model)
        assert {
            key: deadline.due_ms for key, deadline in enumerate(keys) if deadline.due_ms is not None
        } == model


def test_a_deadline_may_set_itself_again() -> None:
    deadlines = Deadlines()
    fired: list[int] = []

    def fire(now_ms: int) -> None:
        fired.append(now_ms)
        if len(fired) < 3:
            deadlines.set(deadline, 10 * len(fired))

    deadline = Deadline(fire)
    deadlines.set(deadline, 5)
    deadlines.tick(15)
    assert fired == [15, 15]
    assert deadlines.next_ms() == 20


def test_moving_a_deadline_later_leaves_the_heap_alone() -> None:
    deadlines = Deadlines()
    sessions = [Deadline(lambda _now_ms: None) for _ in range(10_000)]
    for session in sessions:
        deadlines.set(session, 10_000)
    pushed = deadlines._sequence
    for now_ms in range(0, 9_000, 1_000):
        for session in sessions:
            deadlines.set(session, now_ms + 10_000)
        deadlines.tick(now_ms)
        assert deadlines.next_ms() == 10_000
    assert deadlines._sequence == pushed


def test_one_tick_does_a_bounded_amount_of_work() -> None:
    deadlines = Deadlines()
    fired: list[int] = []
    for _ in range(2 * WORK_PER_TICK + 1):
        deadlines.set(Deadline(fired.append), 10)
    for left in (WORK_PER_TICK + 1, 1, 0):
        assert deadlines.next_ms() == 10
        deadlines.tick(10)
        assert len(deadlines) == left
    assert deadlines.next_ms() is None
    assert fired == [10] * (2 * WORK_PER_TICK + 1)


def test_clients_that_come_and_go_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for now_ms in range(100_000):
        session = Deadline(lambda _now_ms: None)
        deadlines.set(session, now_ms + 300_000)
        deadlines.cancel(session)
    assert len(deadlines) == 0
    assert len(deadlines._heap) <= 64


def test_a_deadline_that_moves_to_and_fro_does_not_pile_up() -> None:
    deadlines = Deadlines()
    session = Deadline(lambda _now_ms: None)
    for due_ms in range(100_000, 0, -1):
        deadlines.set(session, due_ms)
    assert len(deadlines._heap) <= 70
    assert deadlines.next_ms() == 1
