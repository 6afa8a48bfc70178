"""Batches against the state in memory: all or nothing, conditions, versions, sequential keys, scans."""

from __future__ import annotations

from typing import Any

import pytest

from txn.metastore.errors import Conflict, InvalidOperation, LimitExceeded
from txn.metastore.ops import ABSENT, WITHIN_BATCH, Check, Delete, Op, Put, PutSequential, Record
from txn.metastore.schema import IndexSpec, Schema
from txn.metastore.state import Batch, State

SCHEMA = Schema(
    indexes={"by-n": IndexSpec("/i/", lambda key, value: value if type(value) is tuple else None)}
)


def make(**records: Any) -> State:
    state = State(SCHEMA, max_key_bytes=100)
    if records:
        apply(state, *(Put(f"/{name}", value) for name, value in records.items()))
    return state


def apply(state: State, *ops: Op) -> Batch:
    batch = state.plan(ops)
    state.commit(batch)
    return batch


def contents(state: State) -> dict[str, Record]:
    return dict(state.scan("", None, None))


def test_a_version_is_the_number_of_the_batch_that_wrote_the_record() -> None:
    state = make(a=1)
    assert state.get("/a") == Record(1, 1)
    apply(state, Put("/b", 2))
    apply(state, Put("/a", 1))
    assert contents(state) == {"/a": Record(1, 3), "/b": Record(2, 2)}


def test_a_deleted_key_comes_back_with_a_version_it_never_had() -> None:
    state = make(a=1)
    apply(state, Delete("/a"))
    apply(state, Put("/a", 2, ABSENT))
    record = state.get("/a")
    assert record is not None
    assert record.version == 3


@pytest.mark.parametrize(
    ("op", "actual"),
    [
        (Put("/a", 9, ABSENT), 1),
        (Put("/a", 9, 2), 1),
        (Put("/new", 9, 1), ABSENT),
        (Delete("/a", ABSENT), 1),
        (Delete("/a", 7), 1),
        (Delete("/new", 1), ABSENT),
        (Check("/a", ABSENT), 1),
        (Check("/new", 1), ABSENT),
    ],
)
def test_a_condition_that_does_not_hold_leaves_everything_as_it_was(op: Op, actual: int) -> None:
    state = make(a=1)
    with pytest.raises(Conflict) as caught:
        state.plan([Put("/b", 1), PutSequential("/q/", 1), op])
    assert (caught.value.key, caught.value.actual) == (op[0], actual)
    assert contents(state) == {"/a": Record(1, 1)}
    assert apply(state, PutSequential("/q/", 1)).assigned == ("/q/0000000000000001",)


def test_conditions_that_hold() -> None:
    state = make(a=1, b=2, c=3)
    apply(state, Put("/a", 9, 1), Delete("/b", 1), Check("/c", 1), Check("/d", ABSENT), Put("/d", 4, ABSENT))
    assert contents(state) == {"/a": Record(9, 2), "/c": Record(3, 1), "/d": Record(4, 2)}


class TestOneKeySeveralTimes:
    """A later operation sees what the earlier ones of its batch did; the batch has one net effect per key."""

    def test_the_last_put_wins_and_is_one_effect(self) -> None:
        state = make(a=1)
        batch = apply(state, Put("/a", 2), Put("/a", 3))
        assert [tuple(effect) for effect in batch.effects] == [("/a", Record(1, 1), Record(3, 2))]

    def test_deleted_and_put_again_is_a_change_of_the_old_record(self) -> None:
        state = make(a=1)
        batch = apply(state, Delete("/a"), Put("/a", 2, ABSENT))
        assert [tuple(effect) for effect in batch.effects] == [("/a", Record(1, 1), Record(2, 2))]

    def test_put_and_deleted_is_nothing(self) -> None:
        state = make(a=1)
        assert state.plan([Put("/b", 1, ABSENT), Delete("/b")]).effects == []

    def test_a_put_is_there_for_those_after_it(self) -> None:
        state = make()
        with pytest.raises(Conflict) as caught:
            state.plan([Put("/a", 1), Put("/a", 2, ABSENT)])
        assert caught.value.actual == WITHIN_BATCH

    def test_a_version_is_not_expected_twice(self) -> None:
        state = make(a=1)
        with pytest.raises(Conflict) as caught:
            state.plan([Put("/a", 2, 1), Put("/a", 3, 1)])
        assert caught.value.actual == WITHIN_BATCH

    def test_what_it_will_write_cannot_be_expected(self) -> None:
        state = make(a=1)
        with pytest.raises(Conflict):
            state.plan([Put("/a", 2), Check("/a", 2)])

    def test_a_delete_is_seen(self) -> None:
        state = make(a=1)
        apply(state, Delete("/a", 1), Check("/a", ABSENT), Delete("/a", ABSENT))
        with pytest.raises(Conflict):
            make(a=1).plan([Delete("/a"), Check("/a", 1)])


class TestSequentialKeys:
    def test_the_order_of_keys_is_the_order_of_numbers(self) -> None:
        state = make()
        keys = [apply(state, PutSequential("/q/", n)).assigned[0] for n in range(120)]
        assert keys == sorted(keys)
        assert [record.value for _, record in state.scan("/q/", None, None)] == list(range(120))

    def test_several_in_one_batch(self) -> None:
        state = make()
        batch = apply(state, PutSequential("/q/", 1), PutSequential("/p/", 2), PutSequential("/q/", 3))
        assert batch.assigned == ("/q/0000000000000001", "/p/0000000000000002", "/q/0000000000000003")

    def test_a_number_is_not_given_again_after_a_delete(self) -> None:
        state = make()
        (first,) = apply(state, PutSequential("/q/", 1)).assigned
        apply(state, Delete(first))
        (second,) = apply(state, PutSequential("/q/", 1)).assigned
        assert second > first

    def test_a_record_under_the_same_name_is_not_overwritten(self) -> None:
        state = make()
        apply(state, Put("/q/0000000000000001", "mine"))
        batch = apply(state, Put("/q/0000000000000002", "mine too"), PutSequential("/q/", 1))
        assert batch.assigned == ("/q/0000000000000003",)

    def test_later_operations_see_the_new_key(self) -> None:
        state = make()
        with pytest.raises(Conflict):
            state.plan([PutSequential("/q/", 1), Put("/q/0000000000000001", 2, ABSENT)])

    def test_the_numbers_run_out_with_an_error(self) -> None:
        state = State(SCHEMA, max_key_bytes=100, next_sequence=10**16 - 1)
        assert apply(state, PutSequential("/q/", 1)).assigned == ("/q/9999999999999999",)
        with pytest.raises(LimitExceeded):
            state.plan([PutSequential("/q/", 1)])


class TestWhatAKeyMayBe:
    @pytest.mark.parametrize("key", ["", b"/a", 5, None])
    def test_not_a_string_or_empty(self, key: Any) -> None:
        with pytest.raises(InvalidOperation):
            make().plan([Put(key, 1)])

    @pytest.mark.parametrize("key", ["k" * 100, "\u00e4" * 50, "\U0001f600" * 25])
    def test_as_long_as_allowed(self, key: str) -> None:
        state = make()
        apply(state, Put(key, 1))
        assert state.get(key) is not None

    @pytest.mark.parametrize("key", ["k" * 101, "\u00e4" * 51, "\U0001f600" * 26])
    def test_too_long(self, key: str) -> None:
        with pytest.raises(LimitExceeded):
            make().plan([Put(key, 1)])

    def test_a_sequential_key_too_long(self) -> None:
        with pytest.raises(LimitExceeded):
            make().plan([PutSequential("k" * 90, 1)])

    def test_a_sequential_prefix_that_is_no_string(self) -> None:
        with pytest.raises(InvalidOperation):
            make().plan([PutSequential(5, 1)])  # type: ignore[arg-type]

    def test_something_that_is_no_operation(self) -> None:
        with pytest.raises(InvalidOperation):
            make().plan([("/a", 1)])  # type: ignore[list-item]

    def test_an_impossible_expectation(self) -> None:
        with pytest.raises(InvalidOperation):
            make().plan([Put("/a", 1, WITHIN_BATCH)])


class TestScan:
    def test_a_prefix_is_a_prefix_of_the_string(self) -> None:
        state = make(**{"a/1": 1, "a/2": 2, "ab": 3, "b": 4})
        assert [key for key, _ in state.scan("/a/", None, None)] == ["/a/1", "/a/2"]
        assert [key for key, _ in state.scan("/a", None, None)] == ["/a/1", "/a/2", "/ab"]
        assert list(state.scan("/c", None, None)) == []

    def test_the_last_characters_there_are(self) -> None:
        top = "\U0010ffff"
        state = make()
        apply(state, *(Put(key, 1) for key in ("/a", top, top + top, "\ud7ff", "\ue000", "/a" + top + "b")))
        assert [key for key, _ in state.scan(top, None, None)] == [top, top + top]
        assert [key for key, _ in state.scan("/a" + top, None, None)] == ["/a" + top + "b"]
        assert [key for key, _ in state.scan("\ud7ff", None, None)] == ["\ud7ff"]
        assert state.count(top) == 2
        assert state.count("\ud7ff") == 1

    def test_after_and_limit(self) -> None:
        state = make(**{f"k{n:04d}": n for n in range(2000)})

        def values(**bounds: Any) -> list[int]:
            return [r.value for _, r in state.scan("/k", bounds.get("after"), bounds.get("limit"))]

        assert values() == list(range(2000))
        assert values(limit=1000) == list(range(1000))
        assert values(after="/k1500") == list(range(1501, 2000))
        assert values(after="/k0031x", limit=3) == [32, 33, 34]
        assert values(after="/a", limit=2) == [0, 1]
        assert values(after="/z") == []
        assert values(limit=0) == []

    def test_everything_may_be_deleted_on_the_way(self) -> None:
        state = make(**{f"k{n:04d}": n for n in range(1500)})
        seen = []
        for key, record in state.scan("/k", None, None):
            seen.append(record.value)
            apply(state, Delete(key))
        assert seen == list(range(1500))
        assert len(state) == 0

    def test_what_is_deleted_or_changed_ahead_is_given_as_it_is_by_then(self) -> None:
        state = make(a=1, b=2, c=3)
        seen = []
        for key, record in state.scan("/", None, None):
            seen.append((key, record.value))
            if key == "/a":
                apply(state, Delete("/b"), Put("/c", 9))
        assert seen == [("/a", 1), ("/c", 9)]

    def test_count(self) -> None:
        state = make(**{"a/1": 1, "a/2": 2, "b": 3})
        assert [state.count(prefix) for prefix in ("", "/a/", "/b", "/c", "/")] == [3, 2, 1, 0, 3]
        apply(state, Delete("/a/1"), Put("/c", 1))
        assert [state.count(prefix) for prefix in ("", "/a/", "/b", "/c")] == [3, 1, 1, 1]


def test_an_index_that_the_schema_lacks() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        make().scan_index("nowhere", None, None, None)


def test_only_the_batch_planned_last_can_be_committed() -> None:
    state = make()
    first, second = state.plan([Put("/a", 1)]), state.plan([Put("/b", 1)])
    state.commit(first)
    with pytest.raises(AssertionError):
        state.commit(second)
