"""The pure parts of nodes whose ranges have groups of their own: founding, leaders, assignment."""

from __future__ import annotations

import pytest

from broker.placement import NodeView
from broker.ranges.assignment import assign, replication_factor, split_evenly
from broker.ranges.founding import FolderLost, Founding
from broker.ranges.leaders import Leaders
from broker.ranges.records import RangeRecord
from wire.errors import ErrorCode, KafkaError

PEERS = (1, 2, 3)


def founding(node, number):
    return Founding(node, PEERS, {node: number})


def tell(source, target):
    return target.heard(source.node_id, *source.words())


def test_a_cluster_is_founded_when_all_its_nodes_have_met():
    one, two, three = founding(1, 10), founding(2, 20), founding(3, 30)
    assert tell(two, one)
    assert not one.is_done
    assert not tell(two, one), "nothing new"
    assert tell(three, one)
    assert one.is_done
    assert Founding.unpacked(1, one.packed()).numbers == {1: 10, 2: 20, 3: 30}
    # A founder tells a node that has not met all of them yet: its own number is right, and only its own is new.
    assert tell(one, two)
    assert not two.is_done
    assert tell(three, two)
    assert two.numbers == one.numbers


def test_a_node_with_another_folder_than_it_began_with_is_found_out():
    one = founding(1, 10)
    tell(founding(2, 20), one)
    tell(founding(3, 30), one)
    again = founding(3, 31)
    assert not tell(again, one), "a founder keeps what it knows"
    assert one.numbers[3] == 30
    with pytest.raises(FolderLost):
        tell(one, again)


def test_a_folder_that_is_lost_before_all_have_met_is_no_matter_but_to_itself():
    one = founding(1, 10)
    tell(founding(2, 20), one)
    assert tell(founding(2, 21), one)
    assert one.numbers == {1: 10, 2: 21}


def test_nodes_that_were_told_of_other_peers_are_no_part_of_it():
    one = founding(1, 10)
    assert not one.heard(2, (1, 2), {2: 20})
    assert not one.heard(4, PEERS, {4: 40})
    assert one.numbers == {1: 10}


def words(group, leader, term, since_ms=0):
    return [group, leader, term, [1, 2, 3], [1, 2], since_ms, [], 0, False]


def test_the_latest_term_says_who_leads():
    leaders = Leaders()
    assert leaders.said(1, [words(16, 1, 3), words(17, 1, 1)]) == {16, 17}
    assert leaders.said(1, [words(16, 1, 3), words(17, 1, 1)]) == set()
    assert leaders.said(2, [words(16, 2, 4)]) == {16}
    assert leaders.said(1, [words(16, 1, 3), words(17, 1, 1)]) == set(), (
        "who does not know yet changes nothing"
    )
    assert (leaders.get(16).leader, leaders.get(16).term) == (2, 4)
    assert leaders.said(1, []) == {17}
    assert leaders.get(17) is None
    # Of others a node may know more, and never takes anything back.
    assert leaders.said(3, [words(17, 2, 5), words(16, 2, 4)]) == {17}
    assert leaders.said(3, []) == set()
    assert leaders.said(2, [words(17, 2, 5, since_ms=7), words(16, 2, 4)]) == {17}
    assert leaders.get(17).since_ms == 7
    leaders.forget(17)
    assert leaders.get(17) is None


def test_what_is_told_of_some_takes_nothing_from_the_others():
    leaders = Leaders()
    leaders.said(1, [words(16, 1, 3), words(17, 1, 1)])
    assert leaders.said_of_some(1, [words(18, 1, 1)], []) == {18}
    assert leaders.said_of_some(1, [], [16, 19]) == {16}
    assert leaders.get(16) is None
    assert leaders.said_of_some(2, [words(17, 2, 2)], []) == {17}
    assert leaders.said_of_some(1, [], [17]) == set(), "another one leads it meanwhile"
    assert [leaders.get(group).leader for group in (17, 18)] == [2, 1]


def test_partitions_are_split_into_ranges_that_follow_each_other():
    for first in (0, 7):
        for count in range(1, 12):
            for ranges in range(1, 5):
                spans = split_evenly(first, count, ranges)
                assert len(spans) == min(ranges, count)
                assert [n for begin, end in spans for n in range(begin, end + 1)] == list(
                    range(first, first + count)
                )
                sizes = [end - begin + 1 for begin, end in spans]
                assert max(sizes) - min(sizes) <= 1


def test_leaders_of_new_ranges_are_spread_over_the_nodes():
    nodes = [NodeView(1), NodeView(2), NodeView(3)]
    placed = assign(nodes, {}, {}, split_evenly(0, 6, 3), 3)
    assert sorted(one[0] for one in placed) == [1, 2, 3]
    there = {16: RangeRecord("t", b"", 0, 0, (1, 2, 3), 0), 17: RangeRecord("t", b"", 1, 1, (1, 2, 3), 0)}
    # By who leads now, where that is known, not by who was meant to.
    assert assign(nodes, there, {16: 3, 17: 2}, [(2, 2)], 3)[0][0] == 1
    assert assign(nodes, there, {}, [(2, 2)], 3)[0][0] in (2, 3)
    with pytest.raises(KafkaError) as refused:
        assign(nodes[:1], {}, {}, [(0, 0)], 3)
    assert refused.value.code is ErrorCode.invalid_replication_factor


def test_a_replication_factor_is_at_most_the_number_of_nodes():
    assert replication_factor(-1, 3, 5) == 3
    assert replication_factor(-1, 5, 3) == 3
    assert replication_factor(2, 3, 3) == 2
    for wanted in (0, 4, -2):
        with pytest.raises(KafkaError):
            replication_factor(wanted, 3, 3)
