from __future__ import annotations

import random

import pytest

from txn.metastore.sorted_set import MAX_NOTED, LateSortedSet


@pytest.mark.parametrize("seed", range(5))
def test_behaves_as_a_sorted_set(seed: int) -> None:
    rng = random.Random(seed)
    members = set(rng.sample(range(3000), 500))
    late = LateSortedSet(members)
    for _ in range(3000):
        member = rng.randrange(3000)
        if member in members:
            members.remove(member)
            late.remove(member)
        else:
            members.add(member)
            late.add(member)
        assert len(late) == len(members)
        if rng.random() < 0.02:
            low = rng.choice([None, rng.randrange(3000)])
            high = rng.choice([None, rng.randrange(3000)])
            above = rng.random() < 0.5
            expected = [
                m
                for m in sorted(members)
                if (low is None or m > low or (m == low and not above)) and (high is None or m < high)
            ]
            limit = rng.randrange(1, 50)
            assert late.between(low, high, limit, above=above) == expected[:limit]
            assert late.rank(member) == sum(1 for m in members if m < member)


def test_what_comes_and_goes_between_two_reads_is_never_sorted() -> None:
    late = LateSortedSet(["b"])
    late.add("a")
    late.remove("a")
    late.remove("b")
    late.add("b")
    assert late.between(None, None, 9) == ["b"]


def test_a_read_never_has_many_changes_to_carry_out() -> None:
    late: LateSortedSet[int] = LateSortedSet()
    for number in range(10 * MAX_NOTED):
        late.add(number)
        assert len(late._added) < MAX_NOTED
    for number in range(10 * MAX_NOTED):
        late.remove(number)
        assert len(late._removed) < MAX_NOTED
    assert late.between(None, None, 1) == []
