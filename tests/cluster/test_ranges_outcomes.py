"""What a replica makes of transactions by its log and the metadata, when one of the two is ahead of the other."""

from __future__ import annotations

from types import SimpleNamespace

from broker.ranges.outcomes import RECOVERED_TERM, Outcomes, words_of
from broker.ranges.records import first_segment
from broker.ranges.settling import Reports
from txn import keys
from txn.buffer import PartitionTransactions
from txn.metastore import Change
from txn.transaction import State

FIRST = first_segment(20)
"""Of a range's segments."""


class View:
    """Records by their keys."""

    def __init__(self):
        self.records = {}

    def put(self, key, value):
        self.records[key] = SimpleNamespace(value=value)

    def get(self, key):
        return self.records.get(key)

    def scan(self, prefix, after=None):
        for key in sorted(self.records):
            if key.startswith(prefix) and (after is None or key > after):
                yield key, self.records[key]


class Place:
    """A partition of a replica whose segments begin at these offsets."""

    index = 0
    log_start_offset = 0

    def __init__(self, *begins):
        self.transactions = PartitionTransactions()
        self.begins = list(begins)
        self.end_offset = begins[-1] + 10
        self.waked = 0

    @property
    def last_stable_offset(self):
        return min(self.end_offset, *(first for _, first in self.transactions.open_transactions()), 10**9)

    def segments(self):
        return [FIRST + n for n in range(len(self.begins))]

    def segment_of(self, offset):
        return FIRST + max(n for n, begin in enumerate(self.begins) if begin <= offset)

    def segments_within(self, first, last):
        ends = [*self.begins[1:], self.end_offset]
        return [
            (FIRST + n, begin, end)
            for n, (begin, end) in enumerate(zip(self.begins, ends, strict=True))
            if begin <= last and end > first
        ]

    def wake(self):
        self.waked += 1


def batch(first, last, key):
    return SimpleNamespace(first=first, last=last, key=key)


def seq(term, number=1):
    return (term << 32) + number


def ahead():
    """The metadata know of a segment, and of a coordinator, that came after what this replica has."""
    view = View()
    view.put(keys.NODE, {RECOVERED_TERM: 3})
    view.put(keys.resolved(FIRST + 1), {0: 30})
    view.put(keys.aborted(FIRST + 1, 0, 20), [22, 5])
    # Of the range after this one, which is none of its business.
    view.put(keys.resolved(first_segment(21)), {0: 90})
    view.put(keys.aborted(first_segment(21), 0, 8), [8, 4])
    return Outcomes(lambda: view, lambda key: None)


def test_what_is_settled_further_on_in_the_log_than_this_replica_is_committed():
    """Its header is gone, and the coordinator of its term, too: without the record it would count as aborted."""
    outcomes = ahead()
    place = Place(0)
    assert outcomes.resolved(place) == 30
    outcomes.committed(place, batch(8, 8, (4, 0, seq(1))))
    assert not place.transactions.is_aborted(4, 8)
    assert place.last_stable_offset == place.end_offset


def test_what_was_aborted_further_on_is_known_when_it_comes():
    outcomes = ahead()
    place = Place(0)
    outcomes.committed(place, batch(8, 8, (4, 0, seq(1))))
    place.begins.append(19)
    place.end_offset = 30
    outcomes.committed(place, batch(20, 22, (5, 0, seq(1))))
    outcomes.committed(place, batch(23, 23, (4, 0, seq(1, 2))))
    assert place.transactions.is_aborted(5, 20)
    assert not place.transactions.is_aborted(4, 23)


def test_what_comes_after_its_header_has_gone_is_decided_when_that_is_on_record():
    view = View()
    view.put(keys.NODE, {RECOVERED_TERM: 1})
    outcomes = Outcomes(lambda: view, lambda key: None)
    place = Place(0)
    outcomes.committed(place, batch(4, 5, (4, 0, seq(1))))
    outcomes.committed(place, batch(6, 7, (5, 0, seq(1, 2))))
    assert place.last_stable_offset == 4
    view.put(keys.aborted(FIRST, 0, 4), [5, 4])
    view.put(keys.resolved(FIRST), {0: 6})
    outcomes.resolved_told([])
    assert place.transactions.is_aborted(4, 4)
    assert place.last_stable_offset == 6
    view.put(keys.resolved(FIRST), {0: 10})
    outcomes.resolved_told([])
    assert not place.transactions.is_aborted(5, 6)
    assert place.last_stable_offset == place.end_offset


def test_where_an_aborted_transaction_wrote_is_known_until_its_header_is_gone():
    """A leader that took over may hear of the abort before it is asked what was written."""
    view = View()
    view.put(keys.NODE, {RECOVERED_TERM: 3})
    outcomes = Outcomes(lambda: view, lambda key: None)
    place = Place(0, 10)
    place.end_offset = 20
    before, after = (4, 0, seq(3)), (4, 1, seq(3, 2))
    view.put(keys.txn(before), {"state": State.OPEN.value})
    for first in (2, 12):
        outcomes.committed(place, batch(first, first + 1, before))
    # By a note, ahead of the record.
    outcomes.decide(before, aborted=True)
    view.put(keys.txn(before), {"state": State.ABORTED.value})
    view.put(keys.txn(after), {"state": State.ABORTED.value})
    outcomes.committed(place, batch(14, 15, after))
    for _ in range(2):
        assert words_of(outcomes.writes(before)[place], 0) == [[0, FIRST, 2, 3], [0, FIRST + 1, 12, 13]]
        assert words_of(outcomes.writes(after)[place], 0) == [[0, FIRST + 1, 14, 15]]
        outcomes.decide(before, aborted=True)
        outcomes.look()
    for key in (before, after):
        record = view.records.pop(keys.txn(key))
        outcomes.headers_told([Change(1, keys.txn(key), record, None)])
        assert not outcomes.writes(key)
    view.put(keys.NODE, {RECOVERED_TERM: 4})
    assert not outcomes._aborted


def test_transactions_that_end_in_the_same_segments_are_aborted_each_under_its_own_name():
    """The records of aborted ranges are told apart by their segment and first offset."""
    view = View()
    outcomes = Outcomes(lambda: view, lambda key: None)
    place = Place(0, 10)
    place.end_offset = 20
    one, other = (4, 0, seq(1)), (5, 0, seq(1, 2))
    for key, first in ((one, 2), (other, 4), (other, 10), (one, 12)):
        outcomes.committed(place, batch(first, first, key))
    for key in (one, other):
        view.put(keys.txn(key), {"state": State.ABORTED.value})
        outcomes.decide(key, aborted=True)
    nobody = SimpleNamespace(serve=lambda kind, handle: None)
    _, limit, is_all, resolved, ranges = Reports(None, None, outcomes, nobody)._of(place)
    assert (limit, is_all, resolved) == (20, True, [[FIRST, 10], [FIRST + 1, 20]])
    named = {keys.aborted(segment, 0, first): [last, producer] for segment, first, last, producer in ranges}
    assert len(named) == len(ranges) == 4
    for key, value in named.items():
        view.put(key, value)
    view.put(keys.resolved(FIRST + 1), {0: 20})
    # As another replica learns it from the records alone, when the headers are gone.
    for key in (one, other):
        del view.records[keys.txn(key)]
    learning = Outcomes(lambda: view, lambda key: None)
    again = Place(0, 10)
    for key, first in ((one, 2), (other, 4), (other, 10), (one, 12)):
        learning.committed(again, batch(first, first, key))
        assert again.transactions.is_aborted(key[0], first)
