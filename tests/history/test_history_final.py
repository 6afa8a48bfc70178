"""The checker finds each kind of violation in a history made by hand, and none in a correct one."""

import pytest

from tests.history import (
    Begun,
    EndCalled,
    Ended,
    FinalEnds,
    FinalOffset,
    FinalRead,
    OffsetsSent,
    PlainAcked,
    Seen,
    Sent,
    Unusable,
    check,
    violations,
)


def txn(number, outcome, *values, producer="p", offset=None):
    """The events of one transaction; a value "b2" goes to partition 2. Outcomes: commit, abort, then
    "?" for no answer and "!" for a refusal; None: its end was never called."""
    events = [Begun(producer, number)]
    events += [Sent(producer, number, "t", int(value[1]), value) for value in values]
    if offset is not None:
        events.append(OffsetsSent(producer, number, "g", "in", 0, offset))
    for end in (outcome or "").split():
        commit = end.startswith("commit")
        how = {"?": "unknown", "!": "failed"}.get(end[-1], "acked")
        events += [EndCalled(producer, number, commit), Ended(producer, number, commit, how)]
    return events


def plain(*values, acked=True):
    events = [Sent("plain", None, "t", int(value[1]), value) for value in values]
    return events + [PlainAcked(value) for value in values if acked]


def final(partition, *values, committed=True, position=None, stable=None, end=None):
    """What is in a partition at the end: values at offsets 0, 1, ...; None is an offset without a record."""
    records = tuple((offset, value) for offset, value in enumerate(values) if value is not None)
    end = len(values) if end is None else end
    return [
        FinalRead("t", partition, committed, records, end if position is None else position),
        FinalEnds("t", partition, 0, end if stable is None else stable, end),
    ]


def kinds(events, **options):
    return [violation.kind for violation in check(events, **options)]


CORRECT = [
    *txn(1, "commit", "a0", "b1", offset=10),
    *txn(2, "abort", "c0", "d1", offset=20),
    *plain("x0", "y0"),
    *plain("z1", acked=False),
    *txn(3, "commit?", "e0", "f1", offset=30),
    *txn(4, "commit?", "g0", "h1", offset=40),
    *txn(5, "commit! abort", "i0"),
    *txn(6, None, "j0"),
    *txn(7, "commit? commit", "k0", offset=70),
    *txn(8, "abort?", "l0", offset=80),
    Seen("t", 0, 0, "a0", True),
    Seen("t", 0, 1, "c0", False),
    *final(0, "a0", None, "x0", "y0", "e0", None, "k0"),
    *final(1, "b1", None, "f1"),
    *final(0, "a0", "c0", "x0", "y0", "e0", "i0", "k0", committed=False),
    FinalOffset("g", "in", 0, 70),
]


def test_a_correct_history_passes():
    assert check(CORRECT) == []
    assert check(CORRECT, markerless=True) == []


def test_an_open_end_is_either_all_or_nothing():
    events = txn(1, "commit?", "a0", "b1", offset=5)
    assert check([*events, *final(0, "a0"), *final(1, "b1"), FinalOffset("g", "in", 0, 5)]) == []
    assert check([*events, *final(0, None), *final(1, None), FinalOffset("g", "in", 0, None)]) == []


def test_a_commit_without_any_answer_may_be_either():
    events = [*txn(1, None, "a0"), EndCalled("p", 1, True)]
    assert check([*events, *final(0, "a0")]) == []
    assert check([*events, *final(0, None)]) == []


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        (violations.LOST_COMMIT, [*txn(1, "commit", "a0", "b1"), *final(0, "a0"), *final(1)]),
        (violations.LOST_COMMIT, [*txn(1, "commit", "a0"), *final(0)]),
        (violations.LOST_COMMIT, [*txn(1, "commit? commit", "a0"), *final(0)]),
        (violations.LOST_PLAIN, [*plain("a0"), *final(0)]),
        (violations.ABORTED_VISIBLE, [*txn(1, "abort", "a0", "b1"), *final(0, "a0"), *final(1, "b1")]),
        (violations.ABORTED_VISIBLE, [*txn(1, "abort?", "a0"), *final(0, "a0")]),
        (violations.ABORTED_VISIBLE, [*txn(1, "commit! abort?", "a0"), *final(0, "a0")]),
        (violations.ABORTED_VISIBLE, [*txn(1, "commit? abort", "a0"), *final(0, "a0")]),
        (violations.ABORTED_VISIBLE, [*txn(1, None, "a0"), *final(0, "a0")]),
        (violations.TORN, [*txn(1, "commit?", "a0", "b1"), *final(0, "a0"), *final(1)]),
        (violations.CONTRADICTION, [*txn(1, "abort commit", "a0"), *final(0, "a0")]),
        (violations.DUPLICATE, [*plain("a0"), *final(0, "a0", "a0")]),
        (violations.STRANGER, [*final(0, "a0")]),
        (violations.MISPLACED, [*plain("a0"), *final(0), *final(1, "a0")]),
        (violations.DISORDER, [*txn(1, "commit", "a0", "b0"), *final(0, "b0", "a0")]),
        (violations.DISORDER, [*txn(1, "commit", "a0"), *txn(2, "commit", "b0"), *final(0, "b0", "a0")]),
        (
            violations.OFFSETS_BACK,
            [*plain("a0", "b0"), FinalRead("t", 0, True, ((1, "a0"), (1, "b0")), 2)],
        ),
        (violations.RETRACTED, [*plain("a0", acked=False), Seen("t", 0, 0, "a0", True), *final(0, None)]),
        (
            violations.RETRACTED,
            [
                *plain("a0", "b0", acked=False),
                Seen("t", 0, 0, "a0", False),
                *final(0, "b0", "a0", committed=False),
            ],
        ),
        (violations.BLOCKED, [*plain("a0"), *final(0, "a0", stable=1, end=2, position=2)]),
        (violations.UNREADABLE, [*plain("a0"), *final(0, "a0", None, position=1)]),
        (violations.UNREADABLE, [*final(0, None, position=0, committed=False)]),
        (violations.UNUSABLE, [Unusable("p", "CONCURRENT_TRANSACTIONS")]),
        (violations.WRONG_OFFSET, [*txn(1, "commit", offset=5), FinalOffset("g", "in", 0, None)]),
        (
            violations.WRONG_OFFSET,
            [*txn(1, "commit", offset=5), *txn(2, "commit", offset=6), FinalOffset("g", "in", 0, 5)],
        ),
        (
            violations.WRONG_OFFSET,
            [*txn(1, "commit", offset=5), *txn(2, "abort", offset=6), FinalOffset("g", "in", 0, 6)],
        ),
        (
            violations.WRONG_OFFSET,
            [*txn(1, "commit?", "a0", offset=5), *final(0, "a0"), FinalOffset("g", "in", 0, None)],
        ),
        (
            violations.WRONG_OFFSET,
            [*txn(1, "commit", offset=5), FinalOffset("g", "in", 0, None, "unstable offset commit")],
        ),
    ],
)
def test_each_violation_is_found(kind, events):
    found = kinds(events)
    assert kind in found
    assert set(found) <= {kind, violations.DISORDER} or kind == violations.CONTRADICTION


def test_offsets_of_an_open_end_without_records_may_be_either():
    events = [*txn(1, "commit", offset=5), *txn(2, "commit?", offset=6)]
    assert check([*events, FinalOffset("g", "in", 0, 5)]) == []
    assert check([*events, FinalOffset("g", "in", 0, 6)]) == []
    assert kinds([*events, FinalOffset("g", "in", 0, 7)]) == [violations.WRONG_OFFSET]


def test_markers_are_found_only_where_they_are_not_to_be():
    events = [*txn(1, "commit", "a0"), *final(0, "a0", None)]
    assert kinds(events) == []
    assert kinds(events, markerless=True) == [violations.MARKERS]


def test_violations_say_where():
    violations = check([*txn(1, "commit", "a0", "b1"), *final(0, "a0"), *final(1)])
    assert str(violations[0]) == (
        "an acknowledged commit is not wholly there: transaction 1 of p: b1 (t-1) of 2 missing"
    )
