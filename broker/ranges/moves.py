"""The moves of a range's replicas, as its record has them, and the next change that its group needs. Pure.

    AT REST --add n--> ADDING n --done--> AT REST         the target is one more; n gets the log as a learner first
                       ADDING n --remove n--> GIVING UP n --done--> AT REST    the target is what there was
            --remove n--> REMOVING n --done--> AT REST    the target is one less

One move at a time. A move is done when the leader that acts on this step says that what its group has, committed, is
the target and nothing else: no learner, nobody that goes. What is removed is not made up for by another target before
that is so: the group may have let it go already.

A node that was given up is not named any more, though the group may have it for a moment yet.

Guarantee: a node that had a vote in the group comes back to it only when no replica is left, anywhere, by whose log it
still has one: all that left have dropped what they had, and all that are members have the last change. Its own log is
gone; by its word a member of an old membership could be elected once more, without what was committed since. For the
same reason it does not stand for election before it is a voter by its own log (`Raft.may_stand`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from broker.placement import AddReplica, Move, RemoveReplica
from broker.ranges.records import RangeRecord
from raftish.membership import Change, Membership, Step


def may_hold(record: RangeRecord, node: int) -> bool:
    """Whether the group may have that node as a member, so far as the record says."""
    return node in record.holders or (bool(record.target) and node in record.left)


def dropped(record: RangeRecord, node: int) -> RangeRecord | None:
    """The record when that node says that nothing of the range is left on it; None: that is no news."""
    if node not in record.left or node in record.dropped:
        return None
    return replace(record, dropped=(*record.dropped, node))


def forgotten(record: RangeRecord, step: int, *, is_whole: bool) -> RangeRecord | None:
    """The record when nobody is left who knows of a vote of those that left; None: that is not so, or no news.
    `is_whole`: all members have the last change of members, durably."""
    if record.target or not record.left or step != record.step or not is_whole:
        return None
    if not set(record.left) <= set(record.dropped):
        return None
    return replace(record, left=(), dropped=())


def ordered(record: RangeRecord, move: Move) -> RangeRecord | None:
    """The record with a move of placement begun; None: it cannot be, or not now."""
    if record.becomes:
        return None  # its children are what moves (`lineage`)
    if isinstance(move, AddReplica):
        if record.target or move.node in record.replicas or move.node in record.left:
            return None
        return _towards(record, (*record.replicas, move.node))
    if not isinstance(move, RemoveReplica):
        return None
    rest = tuple(node for node in record.replicas if node != move.node)
    if not record.target:
        return _towards(record, rest) if move.node in record.replicas and rest else None
    if move.node in record.target and move.node not in record.replicas:
        given_up = _towards(record, record.replicas)
        return replace(given_up, left=(*record.left, move.node))
    return None


def _towards(record: RangeRecord, target: tuple[int, ...]) -> RangeRecord:
    return replace(record, began=record.founders, target=target, step=record.step + 1)


def settled(record: RangeRecord, step: int, voters: Collection[int]) -> RangeRecord | None:
    """The record when the leader says that `step` is done, and has these voters; None: that is not so, or no news."""
    if not record.target or step != record.step or set(voters) != set(record.target):
        return None
    gone = record.holders.difference(record.target)
    return replace(record, replicas=record.target, target=(), left=(*record.left, *sorted(gone)))


def next_change(goal: Collection[int], members: Membership) -> Change | None:
    """What the group does next to have the goal. Whom it has too few of comes before whom it has too many."""
    wanted = set(goal)
    for node in sorted(members.learners - wanted):
        return Change(Step.REMOVE, node)
    for node in sorted(members.learners):
        return Change(Step.PROMOTE, node)
    for node in sorted(wanted - members.voters):
        return Change(Step.ADD_LEARNER, node)
    for node in sorted(members.voters - wanted):
        return Change(Step.REMOVE, node)
    return None


def is_done(goal: Collection[int], committed: Membership) -> bool:
    return committed.voters == set(goal) and not committed.learners
