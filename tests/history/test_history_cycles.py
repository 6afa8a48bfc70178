"""Lists that transactions read and append to: every anomaly by hand, and orders that are none."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.history import violations
from tests.history.cycles import ListTransaction, check_lists

Reads = dict[str, tuple[str, ...]]
Appends = dict[str, list[str]]


def t(number: int, reads: Reads | None = None, appends: Appends | None = None) -> ListTransaction:
    return ListTransaction(("t", number), reads or {}, appends or {})


def kinds(lists: dict[str, list[str]], *transactions: ListTransaction, **aborted: int) -> list[str]:
    gone = {value: ("t", number) for value, number in aborted.items()}
    return [violation.kind for violation in check_lists(lists, transactions, gone)]


def test_one_after_another_is_right() -> None:
    first = t(1, {"x": ()}, {"x": ["a"], "y": ["b"]})
    second = t(2, {"x": ("a",), "y": ("b",)}, {"x": ["c", "d"]})
    third = t(3, {"x": ("a", "c", "d")})
    assert kinds({"x": ["a", "c", "d"], "y": ["b"]}, first, second, third) == []


def test_g0() -> None:
    first, second = t(1, {}, {"x": ["a"], "y": ["b"]}), t(2, {}, {"x": ["c"], "y": ["d"]})
    assert kinds({"x": ["a", "c"], "y": ["b", "d"]}, first, second) == []
    assert kinds({"x": ["a", "c"], "y": ["d", "b"]}, first, second) == [violations.G0]


def test_g1a() -> None:
    reader = t(1, {"x": ("a",)})
    assert kinds({"x": ["a"]}, reader, t(2, {}, {"x": ["a"]})) == []
    assert kinds({"x": []}, reader, a=2) == [violations.G1A]


def test_g1b() -> None:
    writer = t(1, {}, {"x": ["a", "b"]})
    assert kinds({"x": ["a", "b"]}, writer, t(2, {"x": ("a", "b")})) == []
    found = kinds({"x": ["a", "b"]}, writer, t(2, {"x": ("a",)}))
    assert found[0] == violations.G1B


def test_g1c() -> None:
    first = t(1, {"y": ("b",)}, {"x": ["a"]})
    assert kinds({"x": ["a"], "y": ["b"]}, first, t(2, {}, {"y": ["b"]})) == []
    assert kinds({"x": ["a"], "y": ["b"]}, first, t(2, {"x": ("a",)}, {"y": ["b"]})) == [violations.G1C]


def test_lost_update() -> None:
    first, second = t(1, {"x": ()}, {"x": ["a"]}), t(2, {"x": ()}, {"x": ["b"]})
    assert violations.LOST_UPDATE in kinds({"x": ["a", "b"]}, first, second)
    assert kinds({"x": ["a", "b"]}, first, t(2, {"x": ("a",)}, {"x": ["b"]})) == []


def test_a_read_that_fits_no_order() -> None:
    # Each sees what the other wrote not yet: write skew.
    first, second = t(1, {"x": ()}, {"y": ["b"]}), t(2, {"y": ()}, {"x": ["a"]})
    assert kinds({"x": ["a"], "y": ["b"]}, first, second) == [violations.CYCLE]


def test_a_read_that_is_no_prefix() -> None:
    writers = t(1, {}, {"x": ["a"]}), t(2, {"x": ("a",)}, {"x": ["b"]})
    assert kinds({"x": ["a", "b"]}, *writers, t(3, {"x": ("b", "a")})) == [violations.NOT_A_PREFIX]
    assert kinds({"x": ["a", "b"]}, *writers, t(3, {"x": ("a",)})) == [], "an old value is one"


@pytest.mark.parametrize("seed", range(20))
def test_what_ran_in_order_has_no_circle(seed: int) -> None:
    rng = random.Random(seed)
    lists: dict[str, list[str]] = {key: [] for key in "xyz"}
    values = itertools.count()
    transactions = []
    for number in range(40):
        one = t(number)
        for key in rng.sample("xyz", rng.choice((1, 2, 3))):
            one.reads[key] = tuple(lists[key])
            one.appends[key] = [str(next(values)) for _ in range(rng.choice((0, 1, 2)))]
        for key, appended in one.appends.items():
            lists[key] += appended
        transactions.append(one)
    rng.shuffle(transactions)
    assert kinds(lists, *transactions) == []
    # The same with one read from the past: its transaction wrote after what it did not see.
    victims = [
        one for one in transactions if any(one.appends[key] and len(one.reads[key]) > 1 for key in one.reads)
    ]
    victim = rng.choice(victims)
    key = rng.choice([key for key in victim.reads if victim.appends[key] and len(victim.reads[key]) > 1])
    victim.reads[key] = victim.reads[key][: rng.randrange(len(victim.reads[key]))]
    assert kinds(lists, *transactions)
