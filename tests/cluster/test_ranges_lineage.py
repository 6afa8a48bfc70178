"""Records of ranges that are split and merged: pure steps."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from broker.placement import AddReplica, RemoveReplica
from broker.ranges import lineage
from broker.ranges.leaders import Led
from broker.ranges.moves import ordered
from broker.ranges.records import RangeRecord

PARENT = RangeRecord("t", b"i" * 16, 0, 5, (1, 2, 3), 7)
LED = Led(2, 4, (1, 2, 3), (1, 2), 0, is_retired=True, before=(16,))
CHILDREN = ((20, 0, 2), (21, 3, 5))


def test_a_record_is_what_was_packed_of_it():
    record = replace(lineage.wished(PARENT, CHILDREN), before=(1, 2), base_term=9)
    assert RangeRecord.of(msgpack.unpackb(msgpack.packb(record.value()))) == record
    assert RangeRecord.of({key: one for key, one in PARENT.value().items() if key != "becomes"}) == PARENT


@pytest.mark.parametrize(
    ("at", "spans"),
    [
        ((3,), [(0, 2), (3, 5)]),
        ((5, 1, 1, 9, 0), [(0, 0), (1, 4), (5, 5)]),
        ((6,), [(0, 5)]),
    ],
)
def test_a_range_is_cut_where_others_shall_begin(at, spans):
    assert lineage.cut(0, 5, at) == spans


def test_a_range_that_is_to_be_succeeded_does_not_move_and_one_that_moves_is_not_succeeded():
    wished = lineage.wished(PARENT, CHILDREN)
    assert ordered(wished, AddReplica("r", 4, "why")) is None
    assert ordered(wished, RemoveReplica("r", 1, "why")) is None
    moving = ordered(PARENT, AddReplica("r", 4, "why"))
    assert not lineage.is_at_rest(moving)
    assert not lineage.is_at_rest(wished)
    assert lineage.is_at_rest(PARENT)


def test_a_range_has_ended_when_its_leader_says_so_of_the_members_on_record():
    wished = lineage.wished(PARENT, CHILDREN)
    assert lineage.has_ended(wished, LED)
    assert not lineage.has_ended(wished, None)
    assert not lineage.has_ended(wished, replace(LED, is_retired=False))
    assert not lineage.has_ended(wished, replace(LED, voters=(1, 2)))
    assert not lineage.has_ended(wished, replace(LED, learners=(4,)))


def test_a_split_gives_each_part_to_a_range_that_begins_where_the_parent_ended():
    wished = lineage.wished(PARENT, CHILDREN)
    retired, children = lineage.succeeded({16: wished}, {16: LED}, 50)
    assert retired == {16: replace(wished, retired=True)}
    assert [(group, one.first, one.last) for group, one in children.items()] == list(CHILDREN)
    for one in children.values():
        assert one.replicas == (2, 1, 3), "who led it shall lead"
        assert (one.parents, one.before, one.factor, one.becomes) == ((16,), (16,), 3, ())
        assert one.base_term > LED.term + 1
    assert lineage.alive({21: children[21]}) == {16, 21}


def test_a_merge_has_all_parents_and_as_many_replicas_as_they_should_have():
    left = replace(PARENT, last=2, becomes=((30, 0, 5),), began=(1, 2), wanted=0)
    right = replace(PARENT, first=3, becomes=((30, 0, 5),))
    leds = {18: LED, 17: replace(LED, leader=3, term=9, before=(5, 17))}
    _, children = lineage.succeeded({18: right, 17: left}, leds, 50)
    assert list(children) == [30]
    merged = children[30]
    assert (merged.parents, merged.before) == ((17, 18), (5, 16, 17))
    assert merged.replicas[0] == 3
    assert merged.base_term > 9
    assert merged.factor == 3
    assert lineage.same_members([left, right])
    assert not lineage.same_members([left, replace(right, replicas=(1, 2))])


def test_a_parent_is_not_needed_when_every_member_of_every_successor_has_its_replica():
    retired, children = lineage.succeeded({16: lineage.wished(PARENT, CHILDREN)}, {16: LED}, 50)
    ranges = {**retired, **children}
    there = replace(LED, is_here=True)
    assert lineage.is_over(retired[16], ranges, {20: there, 21: there})
    assert not lineage.is_over(retired[16], ranges, {20: there, 21: LED})
    assert not lineage.is_over(retired[16], ranges, {20: there, 21: None})
    assert not lineage.is_over(retired[16], ranges, {20: there, 21: replace(there, voters=(1, 2))})
    # One that was succeeded itself, and is gone, was whole.
    del ranges[21]
    assert lineage.is_over(retired[16], ranges, {20: there, 21: None})
