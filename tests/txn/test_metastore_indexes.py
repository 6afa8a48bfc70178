"""Secondary indexes: in step with the records, whatever a batch does; nothing unsortable ever gets in."""

from __future__ import annotations

import random
from typing import Any

import pytest

from txn.metastore.errors import InvalidOperation
from txn.metastore.ops import Delete, Op, Put, Record
from txn.metastore.schema import IndexSpec, Schema
from txn.metastore.state import State


def by_value(key: str, value: Any) -> Any:
    return value["at"] if value else None


SCHEMA = Schema(
    indexes={
        "at": IndexSpec("/i/", by_value),
        "open": IndexSpec(
            "/i/", lambda key, value: (value["at"][0], key) if value and value.get("open") else None
        ),
    }
)


def make() -> State:
    return State(SCHEMA, max_key_bytes=100)


def apply(state: State, *ops: Op) -> None:
    state.commit(state.plan(ops))


def put(name: str, *at: Any, **more: Any) -> Put:
    return Put(f"/i/{name}", {"at": at, **more})


def entries(state: State, low: Any = None, high: Any = None, name: str = "at") -> list[tuple[Any, str]]:
    return list(state.scan_index(name, low, high, None))


def test_entries_come_go_and_move_with_their_records() -> None:
    state = make()
    apply(state, put("a", 3), put("b", 1), Put("/other", {"at": (0,)}), Put("/i/none", None))
    assert entries(state) == [((1,), "/i/b"), ((3,), "/i/a")]
    apply(state, put("a", 0), Delete("/i/b"), put("none", 5))
    assert entries(state) == [((0,), "/i/a"), ((5,), "/i/none")]
    apply(state, Put("/i/a", None), Put("/i/none", {"at": (5,), "changed": True}))
    assert entries(state) == [((5,), "/i/none")]


def test_one_index_key_for_several_records() -> None:
    state = make()
    apply(state, put("b", 1), put("a", 1))
    assert entries(state) == [((1,), "/i/a"), ((1,), "/i/b")]
    apply(state, Delete("/i/a"))
    assert entries(state) == [((1,), "/i/b")]


def test_bounds_are_half_open_and_compare_element_by_element() -> None:
    state = make()
    apply(state, *(put(f"{n}{m}", n, m) for n in range(4) for m in "xy"))
    assert [key for key, _ in entries(state, (1,), (2,))] == [(1, "x"), (1, "y")]
    assert [key for key, _ in entries(state, (1, "y"), (2, "y"))] == [(1, "y"), (2, "x")]
    assert [key for key, _ in entries(state, None, (0, "y"))] == [(0, "x")]
    assert [key for key, _ in entries(state, (3, "y"))] == [(3, "y")]


def test_a_limit() -> None:
    state = make()
    apply(state, *(put(str(n), n) for n in range(10)))
    assert [key for key, _ in state.scan_index("at", (2,), None, 3)] == [(2,), (3,), (4,)]


def test_the_index_may_change_while_it_is_read() -> None:
    state = make()
    apply(state, *(put(f"{n:04d}", n) for n in range(1000)))
    seen = []
    for (number,), key in state.scan_index("at", None, None, None):
        seen.append(number)
        apply(state, Delete(key), Delete(f"/i/{number + 1:04d}"))
    assert seen == list(range(0, 1000, 2))
    assert entries(state) == []


def test_an_entry_that_moves_behind_the_reader_is_given_once() -> None:
    state = make()
    apply(state, *(put(str(n), n) for n in range(3)))
    seen = []
    for (number,), _ in state.scan_index("at", None, None, None):
        seen.append(number)
        if number == 0:
            apply(state, put("1", -1))
    assert seen == [0, 2]


@pytest.mark.parametrize(
    "bad",
    [[1], "text", 5, (None,), ((1, 2),), (1.5,), ([1],), ("text",), (1, 2), (True,), ()],
    ids=repr,
)
def test_an_index_key_that_cannot_be_sorted_among_the_others(bad: Any) -> None:
    state = make()
    apply(state, put("a", 1))
    with pytest.raises(InvalidOperation, match="index at"):
        state.plan([put("b", 2), Put("/i/c", {"at": bad})])
    assert entries(state) == [((1,), "/i/a")]
    assert len(state) == 1


@pytest.mark.parametrize("bad", [(None,), ((1,),), (1.5,), [1]], ids=repr)
def test_the_first_index_key_must_be_sortable_too(bad: Any) -> None:
    with pytest.raises(InvalidOperation):
        make().plan([Put("/i/c", {"at": bad})])


def test_the_first_keys_of_one_batch_must_agree() -> None:
    state = make()
    with pytest.raises(InvalidOperation):
        state.plan([put("a", 1), put("b", "text")])
    # What failed leaves no rule behind.
    apply(state, put("b", "text"), put("c", "more"))
    with pytest.raises(InvalidOperation):
        state.plan([put("a", 1)])
    apply(state, Delete("/i/b"), Delete("/i/c"))
    apply(state, put("a", 1))
    assert entries(state) == [((1,), "/i/a")]


def test_an_error_of_the_key_function_passes_through_with_nothing_applied() -> None:
    state = make()
    with pytest.raises(KeyError):
        state.plan([put("a", 1), Put("/i/b", {"no": "at"})])
    assert len(state) == 0


@pytest.mark.parametrize("seed", range(10))
def test_indexes_equal_those_built_anew(seed: int) -> None:
    rng = random.Random(seed)
    state = make()
    for _ in range(200):
        ops: list[Op] = []
        for _ in range(rng.randrange(1, 6)):
            name = str(rng.randrange(12))
            ops.append(
                rng.choice(
                    [
                        put(name, rng.randrange(5), open=rng.random() < 0.5),
                        Delete(f"/i/{name}"),
                        Put(f"/i/{name}", None),
                    ]
                )
            )
        apply(state, *ops)
        if rng.random() < 0.3:
            records: dict[str, Record] = dict(state.scan("", None, None))
            anew = State(SCHEMA, max_key_bytes=100, records=records)
            for index in SCHEMA.indexes:
                assert entries(state, name=index) == entries(anew, name=index)
                expected = [
                    (SCHEMA.indexes[index].key_of(key, record.value), key) for key, record in records.items()
                ]
                assert entries(state, name=index) == sorted(pair for pair in expected if pair[0] is not None)
