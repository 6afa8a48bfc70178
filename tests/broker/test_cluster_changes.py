"""What is refused before nodes come and go, what is said, and how progress is told."""

from __future__ import annotations

import pytest

from broker.cluster_progress import coming_in, going_out
from broker.cluster_view import RangeStatus
from broker.handlers.cluster_changes import check_add, check_remove
from broker.node_registry import NodeRecord
from wire.cluster import Add, Node, Range, Remove, Response
from wire.errors import ErrorCode, KafkaError

UP = {1: NodeRecord("UP", peer="a:1"), 2: NodeRecord("UP", peer="b:1"), 3: NodeRecord("UP", peer="c:1")}


def group(*voters):
    return RangeStatus("everything", voters, 1, 5)


@pytest.mark.parametrize(
    ("request_", "nodes", "error", "said"),
    [
        (Add(node=4, peer="nowhere"), UP, ErrorCode.invalid_request, "where is the node reached"),
        (Add(node=4, peer="h:0"), UP, ErrorCode.invalid_request, "names no port"),
        (Add(node=4, peer="b:1"), UP, ErrorCode.invalid_request, "node 2 is at b:1 already"),
        (
            Add(node=4, peer="h:1"),
            UP | {5: NodeRecord("JOINING")},
            ErrorCode.reassignment_in_progress,
            "node 5 is coming in: wait for it, or give it up: sealog cluster remove 5",
        ),
        (
            Add(node=4, peer="h:1"),
            UP | {3: NodeRecord("LEAVING")},
            ErrorCode.reassignment_in_progress,
            "3 is leaving",
        ),
    ],
)
def test_what_is_refused_of_a_node_that_would_come(request_, nodes, error, said):
    with pytest.raises(KafkaError, match=said) as refused:
        check_add(request_, nodes, group(1, 2, 3))
    assert refused.value.code is error


def test_an_even_number_is_said_to_be_no_better():
    add, remove = Add(node=4, peer="h:1"), Remove(node=3)
    assert "4 nodes go on after the loss of 1, no more than 3 would" in check_add(add, UP, group(1, 2, 3))[0]
    assert check_add(add, UP, group(1, 2, 3, 5)) == ("5 nodes go on after the loss of 2",)
    assert "2 nodes go on after the loss of none" in check_remove(remove, UP, group(1, 2, 3), [])[0]
    assert check_remove(remove, UP, group(1, 3), []) == ("1 node go on after the loss of none",)


def test_what_is_refused_of_a_node_that_would_go():
    with pytest.raises(KafkaError, match="node 1 is the last one"):
        check_remove(Remove(node=1), UP, group(1), [])
    with pytest.raises(
        KafkaError, match=r"\(1, 3\) a majority must be there; 3 is away: start or remove it first"
    ):
        check_remove(Remove(node=2), UP, group(1, 2, 3), [3])
    assert check_remove(Remove(node=3), UP, group(1, 2, 3), [3]), "the one that is away can go"
    with pytest.raises(KafkaError, match="node 3 is leaving"):
        check_remove(Remove(node=2), UP | {3: NodeRecord("LEAVING")}, group(1, 2, 3), [])
    coming = UP | {4: NodeRecord("JOINING")}
    assert check_remove(Remove(node=4), coming, group(1, 2, 3), []) == (), "so a coming one is given up"


def seen(*nodes, voters=(1, 2, 3), learners=(), leader=1, lag=None, joining=None):
    return Response(
        nodes=tuple(
            Node(id=node, peer=f"n{node}:1", state="JOINING" if node == joining else "UP") for node in nodes
        ),
        ranges=(
            Range(
                name="everything", replicas=voters, leader=leader, epoch=1, learners=learners, lag=lag or {}
            ),
        ),
    )


def test_the_stages_of_coming_and_going():
    assert coming_in(4, seen(1, 2, 3)) == ("node 4 was removed before it came in", True)
    assert "--peers 4@n4:1," in coming_in(4, seen(1, 2, 3, 4)).said
    learner = coming_in(4, seen(1, 2, 3, 4, learners=(4,), lag={4: 1234}))
    assert learner == ("node 4 gets what the others have, 1,234 entries are left", False)
    assert not coming_in(4, seen(1, 2, 3, 4, voters=(1, 2, 3, 4), joining=4)).is_done, (
        "the next one is refused yet"
    )
    assert coming_in(4, seen(1, 2, 3, 4, voters=(1, 2, 3, 4))) == (
        "node 4 takes part: the cluster has 4 nodes",
        True,
    )
    assert going_out(1, seen(1, 2, 3)) == ("node 1 hands its leadership over", False)
    assert going_out(2, seen(1, 2, 3)) == ("node 2 is being taken out", False)
    gone = going_out(2, seen(1, voters=(1,)))
    assert gone.is_done
    assert "the cluster has 1 node." in gone.said
