"""Moves of replicas that are wrong on purpose; `python -m tests.cluster.move_mutants 20` says in which of so many seeds
each is found.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from unittest import mock

from broker.ranges import replica_moves, view
from broker.ranges.member_changes import MetadataMembers
from broker.ranges.moves import settled
from broker.ranges.moving import Moving
from broker.ranges.records import RangeRecord
from tests.cluster.planted import Planted, survey
from tests.cluster.sim_moves import run


@contextlib.contextmanager
def leaves_at_once() -> Iterator[None]:
    """The folder is removed when the target does not name the node, before the group has dropped the member."""
    only_target = property(lambda record: frozenset(record.goal))
    with (
        mock.patch.object(RangeRecord, "holders", only_target),
        mock.patch.object(Moving, "_leave", lambda moves, hosted: moves._hosting.depart(hosted.number)),
    ):
        yield


@contextlib.contextmanager
def learner_counts() -> Iterator[None]:
    """A move is taken for done when the new node is a learner."""

    def is_done(goal, members):  # type: ignore[no-untyped-def]
        return members.voters | members.learners == set(goal)

    def settles(record, step, voters):  # type: ignore[no-untyped-def]
        return settled(record, step, record.target)

    with (
        mock.patch.object(view.moves, "is_done", is_done),
        mock.patch.object(replica_moves, "settled", settles),
    ):
        yield


@contextlib.contextmanager
def removed_with_replicas() -> Iterator[None]:
    """A node leaves the metadata's group while it holds ranges."""
    with mock.patch.object(MetadataMembers, "_holds", return_value=False):
        yield


WITHIN = 6
PLANTED = [
    Planted(leaves_at_once, 0),
    Planted(learner_counts, 0),
    Planted(removed_with_replicas, 0),
]


if __name__ == "__main__":
    survey(run, PLANTED, int(sys.argv[1]))
