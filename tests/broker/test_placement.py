"""Placement of replicas and leaders: cases to read, then properties over random clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.placement import (
    AddReplica,
    MoveLeader,
    NodeView,
    NoPlace,
    Policy,
    RangeView,
    RemoveReplica,
    decide,
    place,
)

LATE_MS = 1_000_000
POLICY = Policy()


def nodes(*states, racks=None):
    """Nodes 1, 2, ... in these states; `racks` one letter each, "-" for none."""
    letters = racks or "-" * len(states)
    return [
        NodeView(number, None if rack == "-" else rack, state)
        for number, (state, rack) in enumerate(zip(states, letters, strict=True), 1)
    ]


def ranges(*rows):
    """A range per row, the first of its replicas leads, all are current: "123" is led by 1."""
    return [
        RangeView(f"t {number}", tuple(map(int, row)), int(row[0]), current=frozenset(map(int, row)))
        for number, row in enumerate(rows)
    ]


def moves(*args, policy=POLICY, now_ms=LATE_MS):
    return [_short(move) for move in decide(*args, policy, now_ms).moves]


def _short(move):
    match move:
        case AddReplica():
            return f"{move.range} +{move.node}"
        case RemoveReplica():
            return f"{move.range} -{move.node}"
        case MoveLeader():
            return f"{move.range} {move.source}>{move.target}"


UP3 = ("up", "up", "up")

CASES = {
    "at rest": (nodes(*UP3), ranges("123", "231", "312"), []),
    "nothing to place": (nodes(*UP3), [], []),
    "leaders spread": (nodes(*UP3), ranges("123", "123", "123"), ["t 0 1>2", "t 1 1>3"]),
    "a difference of one is no reason": (nodes(*UP3), ranges("123", "231", "312", "123"), []),
    "leaders off a draining node": (
        nodes("draining", "up", "up"),
        ranges("123", "231", "312", "123"),
        ["t 0 1>2", "t 3 1>3"],
    ),
    "an away node's leaders are elected, not moved": (
        nodes("away", "up", "up"),
        ranges("123", "231", "312"),
        [],
    ),
    "a draining node gives up what another can take": (
        nodes("up", "up", "draining", "up"),
        ranges("123", "214"),
        ["t 0 +4"],
    ),
    "a missing replica": (nodes(*UP3), ranges("12", "231", "312"), ["t 0 +3"]),
    "a removed node's replica": (nodes(*UP3), ranges("124", "231", "312"), ["t 0 +3"]),
    "a removed node, and nobody to take its place": (nodes("up", "up"), ranges("123", "213"), ["t 0 -3"]),
    "a leaving node that leads hands over first": (
        nodes("leaving", "up", "up"),
        ranges("123", "213"),
        ["t 0 1>3", "t 1 -1"],
    ),
    "a leaving node, and one to take its place": (
        nodes("leaving", "up", "up", "up"),
        ranges("213"),
        ["t 0 +4"],
    ),
    "one too many: the node that goes": (nodes(*UP3, "draining"), ranges("1234", "231"), ["t 0 -4"]),
    "one too many: the fullest, not the leader": (
        nodes(*UP3, "up"),
        ranges("1234", "213", "321"),
        ["t 0 -2"],
    ),
    "one too many: a leader hands over first": (
        nodes(*UP3, "up"),
        ranges("1234", "12", "13"),
        ["t 0 1>2", "t 2 1>3"],
    ),
    "an added node": (nodes(*UP3, "up"), ranges("123", "231", "312", "123"), ["t 0 +4"]),
    "two replicas in one rack": (nodes(*UP3, "up", racks="aabc"), ranges("123", "341"), ["t 0 +4"]),
    "racks that cannot be told apart further": (nodes(*UP3, racks="aab"), ranges("123", "231", "312"), []),
    "no second move while one is under way": (nodes(*UP3, "up"), ranges("2134", "132", "32"), ["t 0 -3"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_case(name):
    given_nodes, given_ranges, expected = CASES[name]
    assert moves(given_nodes, given_ranges) == expected


def test_a_learner_is_waited_for_and_given_up_when_its_node_goes_away():
    one = RangeView("t", (1, 2, 3), 1, learners=(4,), current=frozenset((1, 2, 3)))
    assert moves(nodes(*UP3, "up"), [one]) == []
    assert moves(nodes(*UP3, "away"), [one]) == ["t -4"]


def test_no_leader_is_moved_to_a_replica_that_is_behind():
    one = replace(ranges("123")[0], current=frozenset((1, 3)))
    assert moves(nodes("draining", "up", "up"), [one]) == ["t 0 1>3"]
    plan = decide(nodes("draining", "up", "up"), [replace(one, current=frozenset((1,)))], POLICY, LATE_MS)
    assert not plan.moves
    assert "no other replica can lead yet" in plan.waiting[0]


def test_a_returned_node_leads_again_after_its_cooldown_and_a_young_leader_stays():
    returned = [*nodes("up", "up"), NodeView(3, since_ms=LATE_MS - 1)]
    led = ranges("123", "213", "123", "213")
    assert moves(returned, led) == []
    later = LATE_MS + POLICY.return_cooldown_ms
    assert moves(returned, led, now_ms=later) == ["t 0 1>3"]
    young = [replace(one, led_since_ms=later - 1) for one in led]
    assert moves(returned, young, now_ms=later) == []
    # Draining knows no cooldown.
    assert len(moves(nodes("draining", "up", "up"), young, now_ms=later)) == 2


def test_moves_of_leaders_are_bounded():
    many = ranges(*["123"] * 100)
    assert len(moves(nodes("draining", "up", "up"), many)) == POLICY.max_leader_moves
    assert len(moves(nodes(*UP3), many)) == POLICY.max_leader_moves


def test_no_replica_is_removed_where_the_rest_had_no_majority():
    plan = decide(nodes("up", "away", "away", "draining"), ranges("1234"), POLICY, LATE_MS)
    assert plan.moves == ()
    assert "no majority" in " ".join(plan.waiting)


def test_a_dry_run_says_why_in_words():
    plan = decide(nodes("draining", "up", "up"), ranges("123"), POLICY, LATE_MS)
    assert plan.lines()[0] == "t 0: move the leader from node 1 to node 2: node 1 is draining"
    assert len(plan.lines()) == 1
    stuck = decide(nodes("up", "draining", "up"), ranges("123"), POLICY, LATE_MS)
    assert stuck.lines() == [
        "waiting: t 0: its replica on node 2 should go (node 2 is draining), but no other node can take it"
    ]
    assert decide(nodes(*UP3), ranges("123"), POLICY, LATE_MS).lines() == [
        "nothing to move: every range is where it should be"
    ]


def test_a_new_range_goes_over_racks_and_to_the_nodes_that_hold_least():
    six = nodes(*["up"] * 6, racks="aabbcc")
    assert set(place(six, ranges("135"), 3)) == {2, 4, 6}
    assert place(nodes(*UP3), ranges("123", "231"), 3)[0] == 3, "the first leads: the one that leads least"
    assert set(place(nodes("up", "draining", "up", "up"), [], 3)) == {1, 3, 4}
    assert place(nodes("away", "up", "up"), [], 3)[2] == 1, "a minority may be away"


@pytest.mark.parametrize(
    ("states", "factor"), [(("up", "up"), 3), (("up", "draining", "up"), 3), (("up", "away", "away"), 3)]
)
def test_there_may_be_no_place(states, factor):
    with pytest.raises(NoPlace, match="replicas are asked for"):
        place(nodes(*states), [], factor)


# -- properties


@st.composite
def clusters(draw):
    count = draw(st.integers(1, 6))
    views = [
        NodeView(
            number,
            draw(st.sampled_from([None, "a", "b", "c"])),
            draw(st.sampled_from(["up", "up", "up", "draining", "leaving", "away"])),
        )
        for number in range(1, count + 1)
    ]
    known = st.lists(st.integers(1, count + 1), min_size=1, max_size=4, unique=True)
    made = []
    for number in range(draw(st.integers(0, 8))):
        replicas = tuple(draw(known))
        leader = draw(st.sampled_from([None, *replicas]))
        made.append(RangeView(f"t {number}", replicas, leader, current=frozenset(replicas)))
    return views, made, Policy(replication_factor=draw(st.integers(1, 3)), max_leader_moves=3)


def applied(move, one):
    match move:
        case AddReplica():
            replicas = (*one.replicas, move.node)
            return replace(one, replicas=replicas, current=frozenset(replicas))
        case RemoveReplica():
            replicas = tuple(node for node in one.replicas if node != move.node)
            leader = None if one.leader == move.node else one.leader
            return replace(one, replicas=replicas, current=frozenset(replicas), leader=leader)
        case MoveLeader():
            assert one.leader == move.source
            assert move.target in one.replicas
            return replace(one, leader=move.target)


def settle(views, made, policy):
    """All moves until none is left: (rounds' moves, ranges)."""
    up = {node.id for node in views if node.state == "up"}
    done = []
    for _ in range(400):
        plan = decide(views, made, policy, LATE_MS)
        if not plan.moves:
            return done, made
        assert len({move.range for move in plan.moves}) == len(plan.moves), "two moves of one range at a time"
        assert sum(isinstance(move, AddReplica) for move in plan.moves) <= policy.max_replica_moves
        by_name = {one.name: one for one in made}
        for move in plan.moves:
            before = by_name[move.range]
            after = by_name[move.range] = applied(move, before)
            assert len(set(after.replicas)) == len(after.replicas), "two replicas on one node"
            if isinstance(move, AddReplica):
                assert move.node in up
            if isinstance(move, RemoveReplica):
                assert sum(node in up for node in after.replicas) > len(after.replicas) // 2
        made = list(by_name.values())
        done += plan.moves
    raise AssertionError("moves without an end")


@settings(max_examples=150)
@given(clusters())
def test_moves_come_to_an_end_and_leave_things_better(cluster):
    views, made, policy = cluster
    done, after = settle(views, made, policy)
    up = {node.id for node in views if node.state == "up"}
    # No oscillation: a replica that was added is never taken away again, nor the other way round.
    added = [(move.range, move.node) for move in done if isinstance(move, AddReplica)]
    removed = [(move.range, move.node) for move in done if isinstance(move, RemoveReplica)]
    assert len(set(removed)) == len(removed)
    replicas_before = sum(len(one.replicas) for one in made)
    assert len(added) <= replicas_before + policy.replication_factor * len(made)
    assert sum(isinstance(move, MoveLeader) for move in done) <= 4 * len(made) + len(added) + 8
    if len(up) >= policy.replication_factor and len(up) == len(views):
        for one in after:
            assert len(one.replicas) == policy.replication_factor
            assert set(one.replicas) <= up
        if len({node.rack or node.id for node in views}) == 1:
            held = Counter(node for one in after for node in one.replicas)
            counts = [held[node] for node in up]
            assert max(counts) - min(counts) <= 1
    for one in after:
        if one.leader is not None and set(one.replicas) & up:
            assert one.leader not in {node.id for node in views if node.state in ("draining", "leaving")}


@settings(max_examples=60)
@given(st.integers(3, 6), st.integers(1, 12))
def test_an_added_node_costs_no_more_moves_than_its_share(count, number_of_ranges):
    views = nodes(*["up"] * count)
    made = []
    for number in range(number_of_ranges):
        replicas = place(views, made, 3)
        made.append(RangeView(f"t {number}", replicas, replicas[0], current=frozenset(replicas)))
    placed = settle(views, made, POLICY)[0]
    assert not any(isinstance(move, AddReplica) for move in placed), "what was placed stays"
    grown = [*views, NodeView(count + 1)]
    done, after = settle(grown, made, POLICY)
    share = 3 * number_of_ranges // (count + 1)
    assert sum(isinstance(move, AddReplica) for move in done) <= share + 1
    # And when it goes again, what it holds moves, and little else.
    held = sum(count + 1 in one.replicas for one in after)
    back, _ = settle(views, after, POLICY)
    assert held <= sum(isinstance(move, AddReplica) for move in back) <= held + 2
