"""What a history must not show while it goes on: each kind in a history made by hand, and the same one put right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.history import (
    Begun,
    Compacted,
    Deleted,
    EndCalled,
    Ended,
    Event,
    Fenced,
    FinalEnds,
    FinalOffset,
    FinalRead,
    OffsetSeen,
    OffsetsSent,
    Placed,
    PlainAcked,
    Read,
    Sent,
    check,
    violations,
)


def kinds(events: list[Event]) -> list[str]:
    return [violation.kind for violation in check(events, markerless=True)]


def plain(value: str, offset: int, partition: int = 0, key: str | None = None) -> list[Event]:
    return [Sent("plain", None, "t", partition, value, key), PlainAcked(value, offset)]


def txn(number: int, *placed: tuple[int, int, str], end: str = "commit", instance: int = 0) -> list[Event]:
    """(partition, offset, value) records of one transaction of p; `end`: commit, abort or nothing."""
    events: list[Event] = [Begun("p", number, instance)]
    for partition, offset, value in placed:
        events += [Sent("p", number, "t", partition, value), Placed(value, offset)]
    if end:
        commit = end == "commit"
        events += [EndCalled("p", number, commit), Ended("p", number, commit, "acked")]
    return events


def read(
    first: int,
    position: int,
    *records: tuple[int, str],
    partition: int = 0,
    committed: bool = True,
    end: int,
    stable: int | None = None,
    begun: int = 0,
    start: int = 0,
) -> Read:
    stable = end if stable is None else stable
    return Read("t", partition, committed, first, position, records, end, stable, start, begun)


def final(
    partition: int, *values: str | None, hidden: dict[int, str] | None = None, start: int = 0
) -> list[Event]:
    """What is in a partition in the end, by offset; `hidden`: what readers of everything see beside."""
    seen = tuple((at, value) for at, value in enumerate(values) if value is not None and at >= start)
    everything = tuple(sorted([*seen, *((hidden or {}).items())]))
    end = len(values)
    return [
        FinalRead("t", partition, True, seen, end),
        FinalRead("t", partition, False, everything, end),
        FinalEnds("t", partition, start, end, end),
    ]


TWO = [*plain("a", 0), *plain("b", 1)]


def test_a_record_that_stays_where_it_was_told_to_be() -> None:
    assert kinds([*TWO, *final(0, "a", "b")]) == []
    moved = [*plain("a", 1), *plain("b", 0), *final(0, "b", "a")]
    assert violations.MOVED not in kinds(moved)
    assert violations.MOVED in kinds([*plain("a", 1), *plain("b", 2), *final(0, "a", "b")])


def test_a_reader_that_is_led_past_a_record() -> None:
    good = [*TWO, read(0, 2, (0, "a"), (1, "b"), end=2, begun=4), *final(0, "a", "b")]
    assert kinds(good) == []
    bad = [*TWO, read(0, 2, (1, "b"), end=2, begun=4), *final(0, "a", "b")]
    assert kinds(bad) == [violations.SKIPPED]


def test_a_reader_that_gets_what_is_not_there() -> None:
    aborted = txn(1, (0, 0, "x"), end="abort")
    good = [
        *aborted,
        *plain("b", 1),
        read(0, 2, (1, "b"), end=2, begun=6),
        *final(0, None, "b", hidden={0: "x"}),
    ]
    assert kinds(good) == []
    bad = [
        *aborted,
        *plain("b", 1),
        read(0, 2, (0, "x"), (1, "b"), end=2, begun=6),
        *final(0, None, "b", hidden={0: "x"}),
    ]
    assert kinds(bad) == [violations.GHOST]


@pytest.mark.parametrize("name", ["high_watermark", "last_stable", "log_start"])
def test_offsets_that_only_grow(name: str) -> None:
    sent: list[Event] = [Sent("plain", None, "t", 0, value) for value in "ab"]
    earlier = replace(read(2, 2, end=2, begun=2), **{name: 2})
    later = replace(read(2, 2, end=2, begun=3), **{name: 1})
    beside = replace(later, begun=2)
    assert kinds([*sent, earlier, beside, *final(0, "a", "b", start=2)]) == [], (
        "asked for before: it may be older"
    )
    assert violations.WENT_BACK in kinds([*sent, earlier, later, *final(0, "a", "b", start=2)])


def test_a_watermark_below_what_was_acknowledged() -> None:
    assert kinds([*TWO, read(0, 1, (0, "a"), end=1, begun=3), *final(0, "a", "b")]) == []
    assert kinds([*TWO, read(0, 1, (0, "a"), end=1, begun=4), *final(0, "a", "b")]) == [violations.BEHIND]


def test_an_undecided_record_that_a_reader_gets_past() -> None:
    open_ = txn(1, (0, 0, "x"), end="")
    end: list[Event] = [EndCalled("p", 1, True), Ended("p", 1, True, "acked")]
    seen = read(0, 1, (0, "x"), end=1, begun=3)
    assert kinds([*open_, *end, seen, *final(0, "x")]) == []
    assert kinds([*open_, end[0], seen, end[1], *final(0, "x")]) == [], (
        "it may be committed before it is answered"
    )
    assert kinds([*open_, seen, *end, *final(0, "x")]) == [violations.UNDECIDED]
    stable = read(1, 1, end=1, committed=False, begun=3)
    assert kinds([*open_, stable, *end, *final(0, "x")]) == [violations.UNDECIDED], "the answer says so, too"


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_stable_offset_that_stays_at_what_is_over(end: str) -> None:
    over = txn(1, (0, 0, "x"), end=end)
    held = read(0, 0, end=1, stable=0, begun=len(over))
    last = final(0, "x") if end == "commit" else final(0, None, hidden={0: "x"})
    assert kinds([*over, replace(held, begun=len(over) - 1), *last]) == []
    assert kinds([*over, held, *last]) == [violations.HELD_BACK]


def test_a_stable_offset_that_stays_at_a_plain_record() -> None:
    held = read(1, 1, end=2, stable=1, begun=4)
    assert kinds([*TWO, replace(held, last_stable=2), *final(0, "a", "b")]) == []
    assert kinds([*TWO, held, *final(0, "a", "b")]) == [violations.HELD_BACK]
    # At a log start that moved, it may stay at a record that is gone.
    assert kinds([*TWO, replace(held, log_start=1), *final(0, None, "b", start=1)]) == []


def test_a_stable_offset_that_stays_at_a_fenced_transaction() -> None:
    open_ = [*plain("a", 0), *txn(1, (0, 1, "x"), end="", instance=1)]
    held = read(1, 1, end=2, stable=1, begun=6)
    last = [EndCalled("p", 1, True), Ended("p", 1, True, "failed"), *final(0, "a", None, hidden={1: "x"})]
    assert kinds([*open_, Fenced("p", 1), held, *last]) == []
    assert kinds([*open_, Fenced("p", 2), held, *last]) == [violations.HELD_BACK]


def test_a_transaction_that_is_visible_in_part() -> None:
    both = [*plain("a", 0, partition=1), *txn(1, (0, 0, "x"), (1, 1, "y"), end="")]
    call, answer = EndCalled("p", 1, True), Ended("p", 1, True, "acked")
    here = read(0, 1, (0, "x"), end=1, begun=8)
    there = read(1, 1, end=2, stable=1, partition=1, begun=9)
    last = [*final(0, "x"), *final(1, "a", "y")]
    assert kinds([*both, call, replace(there, begun=8), here, answer, *last]) == []
    assert kinds([*both, call, here, there, answer, *last]) == [violations.TORN_IN_TIME]


def test_a_producer_that_was_fenced() -> None:
    early = [*txn(1, (0, 0, "x"), end="", instance=1), EndCalled("p", 1, True), Fenced("p", 2)]
    assert kinds([*early, Ended("p", 1, True, "acked"), *final(0, "x")]) == [], (
        "it asked before it was fenced"
    )
    late = [*txn(1, (0, 0, "x"), end="", instance=1), Fenced("p", 2), EndCalled("p", 1, True)]
    assert kinds([*late, Ended("p", 1, True, "failed"), *final(0, None, hidden={0: "x"})]) == []
    assert violations.FENCED_COMMIT in kinds([*late, Ended("p", 1, True, "acked"), *final(0, "x")])
    write = [Begun("p", 1, 1), Fenced("p", 2), Sent("p", 1, "t", 0, "x"), EndCalled("p", 1, True)]
    assert violations.FENCED_WRITE in kinds([*write, Ended("p", 1, True, "unknown"), *final(0, "x")])


def moves(
    number: int, start: int, stop: int, *values: tuple[str, str], outcome: str = "acked"
) -> list[Event]:
    """A loop's transaction over start..stop of in-0; (value, what it was made of)."""
    events: list[Event] = [Begun("loop", number)]
    events += [Sent("loop", number, "out", 0, value, None, source) for value, source in values]
    events.append(OffsetsSent("loop", number, "g", "in", 0, stop, start))
    return [*events, EndCalled("loop", number, True), Ended("loop", number, True, outcome)]


def loop_final(*made: str, offset: int) -> list[Event]:
    return [
        FinalRead("in", 0, True, ((0, "a"), (1, "b")), 2),
        FinalRead("out", 0, True, tuple(enumerate(made)), len(made)),
        FinalOffset("g", "in", 0, offset),
    ]


INPUT = [
    Sent("source", None, "in", 0, "a"),
    PlainAcked("a", 0),
    Sent("source", None, "in", 0, "b"),
    PlainAcked("b", 1),
]


def test_an_exactly_once_loop() -> None:
    first, second = moves(1, 0, 1, ("1", "a")), moves(2, 1, 2, ("2", "b"))
    assert kinds([*INPUT, *first, *second, *loop_final("1", "2", offset=2)]) == []
    twice = [*INPUT, *first, *moves(2, 0, 2, ("2", "a"), ("3", "b")), *loop_final("1", "2", "3", offset=2)]
    assert kinds(twice) == [violations.GAP, violations.TWICE]
    past = [*INPUT, *first, *moves(2, 1, 2), *loop_final("1", offset=2)]
    assert kinds(past) == [violations.UNPROCESSED]
    gap = [*INPUT, *moves(1, 1, 2, ("1", "b")), *loop_final("1", offset=2)]
    assert kinds(gap) == [violations.GAP, violations.UNPROCESSED]
    perhaps = [*INPUT, *moves(1, 0, 1, outcome="unknown"), *moves(2, 1, 2, ("1", "a"), ("2", "b"))]
    assert violations.GAP not in kinds([*perhaps, *loop_final("1", "2", offset=2)]), (
        "the first may have committed"
    )


def test_an_offset_that_is_older_than_one_committed_before() -> None:
    events = [*INPUT, *moves(1, 0, 2, ("1", "a"), ("2", "b"))]
    last = loop_final("1", "2", offset=2)
    number = len(events)
    assert kinds([*events, OffsetSeen("g", "in", 0, None, number - 1), *last]) == [], (
        "asked for before the answer"
    )
    assert kinds([*events, OffsetSeen("g", "in", 0, 2, number), *last]) == []
    assert kinds([*events, OffsetSeen("g", "in", 0, None, number), *last]) == [violations.STALE_OFFSET]
    assert kinds([*events, OffsetSeen("g", "in", 0, 1, number), *last]) == [violations.STALE_OFFSET]


def test_what_may_be_gone() -> None:
    assert kinds([*TWO, *final(0, None, "b", start=1)]) == [], "below the log start"
    assert kinds([*TWO, *final(0, "a", None, start=0)]) == [violations.LOST_PLAIN]
    assert kinds([*TWO, Deleted("t")]) == []
    keyed = [Compacted("t"), *plain("a", 0, key="k"), *plain("b", 1, key="k")]
    assert kinds([*keyed, *final(0, None, "b")]) == []
    assert kinds([*keyed, *final(0, "a", None)]) == [violations.LOST_PLAIN], "the last of a key stays"
