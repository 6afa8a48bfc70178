"""decide(): a table of cases, each with the reason that a person would want to read."""

from __future__ import annotations

import pytest

from broker.layout_policy import Decision, Policy, RangeLoad, decide

NOW = 10_000_000
OLD = 0
MB = 1e6
POLICY = Policy(
    split_bytes_per_s=50 * MB,
    split_flush_ms=100,
    split_flush_bytes_per_s=5 * MB,
    merge_bytes_per_s=2 * MB,
    split_cooldown_ms=60_000,
    merge_cooldown_ms=600_000,
    max_ranges=4,
)


def load(
    first: int,
    last: int,
    rate: float,
    *,
    flush_ms: float = 1.0,
    created_ms: int = OLD,
    shares: dict[int, float] | None = None,
) -> RangeLoad:
    even = dict.fromkeys(range(first, last + 1), 1.0)
    return RangeLoad(first, last, rate, flush_ms, created_ms, even if shares is None else shares)


CASES = {
    "idle and alone": ([load(0, 9, 0)], [("none", 0, 9, -1, "nothing to relieve")]),
    "hot": ([load(0, 9, 60 * MB)], [("split", 0, 9, 5, "60.0 MB/s, a range carries up to 50.0")]),
    "hot, unevenly": (
        [load(0, 3, 60 * MB, shares={0: 90.0, 1: 5.0, 2: 5.0, 3: 0.0})],
        [("split", 0, 3, 1, "60.0 MB/s")],
    ),
    "hot in its last partition": (
        [load(0, 3, 60 * MB, shares={3: 100.0})],
        [("split", 0, 3, 1, "60.0 MB/s")],
    ),
    "hot, one partition": ([load(4, 4, 60 * MB)], [("none", 4, 4, -1, "one partition cannot be split")]),
    "hot, young": ([load(0, 9, 60 * MB, created_ms=NOW - 59_000)], [("none", 0, 9, -1, "younger than 60 s")]),
    "hot, at the limit": (
        [load(n, n + 1, 60 * MB) for n in (0, 2, 4, 6)],
        [("none", n, n + 1, -1, "its limit of 4 ranges") for n in (0, 2, 4, 6)],
    ),
    "slow flushes under load": (
        [load(0, 1, 6 * MB, flush_ms=120)],
        [("split", 0, 1, 1, "flushes take 120 ms")],
    ),
    "slow flushes, hardly a load": (
        [load(0, 1, 1 * MB, flush_ms=120)],
        [("none", 0, 1, -1, "nothing to relieve")],
    ),
    "cold neighbours": (
        [load(0, 1, 0.5 * MB), load(2, 3, 0.5 * MB)],
        [
            ("merge", 0, 3, -1, "together they carry 1.00 MB/s"),
            ("none", 0, 1, -1, "nothing to relieve"),
            ("none", 2, 3, -1, "nothing to relieve"),
        ],
    ),
    "cold neighbours, one young": (
        [load(0, 1, 0), load(2, 3, 0, created_ms=NOW - 500_000)],
        [("none", 0, 1, -1, ""), ("none", 2, 3, -1, "")],
    ),
    "neighbours, together too warm": (
        [load(0, 1, 1 * MB), load(2, 3, 1 * MB)],
        [("none", 0, 1, -1, ""), ("none", 2, 3, -1, "")],
    ),
    "three cold ones: two at a time": (
        [load(0, 0, 0), load(1, 1, 0), load(2, 2, 0)],
        [("merge", 0, 1, -1, ""), ("none", 0, 0, -1, ""), ("none", 1, 1, -1, ""), ("none", 2, 2, -1, "")],
    ),
    "a split comes before a merge": (
        [load(0, 0, 0), load(1, 1, 0), load(2, 3, 60 * MB)],
        [("split", 2, 3, 3, ""), ("none", 0, 0, -1, ""), ("none", 1, 1, -1, "")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_decide(case: str) -> None:
    ranges, expected = CASES[case]
    found = decide(ranges, POLICY, NOW)
    assert [(one.action, one.first, one.last, one.at) for one in found] == [one[:4] for one in expected]
    for one, (*_, reason) in zip(found, expected, strict=True):
        assert reason in one.reason
        assert one.reason


def test_what_was_split_is_not_merged_at_once() -> None:
    """A split and a merge never undo each other at the same load."""
    for rate in (1, 2, 10, 25, 49, 50, 60, 200):
        (first, *_) = decide([load(0, 3, rate * MB)], POLICY, NOW)
        if first.action != "split":
            continue
        halves = [load(0, first.at - 1, rate * MB / 2), load(first.at, 3, rate * MB / 2)]
        assert not [one for one in decide(halves, POLICY, NOW) if one.action == "merge"]
    assert isinstance(first, Decision)
