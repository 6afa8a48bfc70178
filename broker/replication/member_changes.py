"""Carries out what the records of nodes ask for: on the leader, one change of the cluster's members at a time.

    JOINING   not heard                     wait for it
              says that it has nothing      note where all are reached, then ADD_LEARNER
              a learner                     PROMOTE as soon as it has caught up
              a voter                       the record becomes UP
    LEAVING   it still holds ranges         wait: they are moved away (where ranges have groups of their own)
              it leads                      hand over: whoever leads then goes on
              a voter, or a learner         REMOVE, if a majority of the others is there
              no member                     the record becomes REMOVED, and the node hears that it is out

What is to be done is decided from the records and the group's members alone (`next_step`), so a new leader goes on
where the last one was. A node whose folder is not empty is never taken in: it may be another cluster's.
Where ranges have groups of their own some of it is done in another way: `broker.ranges.member_changes`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from broker.cluster_view import Broker
from broker.node_registry import NodeRecord, NodeRegistry, Standing
from broker.replication.neighbours import Neighbours
from broker.replication.ops import Code, encode
from raftish.core import NotLeader, NotNow
from raftish.host import Done, Group, GroupFailed
from raftish.membership import Change, ChangeRefused, Membership, Step
from storage.clock import Periodic, Scheduler
from txn.metastore import MetaStoreError
from wire.errors import KafkaError

log = logging.getLogger("sealog")

LOOK_MS: Final = 200


class Do(Enum):
    ADD = "add a learner"
    PROMOTE = "promote"
    STARTED = "note that it takes part"
    HAND_OVER = "hand over"
    REMOVE = "remove"
    LEAVES = "note that it leaves"
    EMPTIED = "note that it is out"


class Next(NamedTuple):
    do: Do
    node: int


def next_step(
    records: Mapping[int, NodeRecord],
    membership: Membership,
    leader: int,
    here: Collection[int],
    empty: Callable[[int], bool],
    holds: Callable[[int], bool] = lambda node: False,
) -> Next | None:
    """None: nothing can be done, or is to be. `here`: nodes that were heard lately, this one too; `holds`: whether a
    node has something that is to be moved away before it goes."""
    for node, record in sorted(records.items()):
        match record.standing:
            case Standing.JOINING:
                if node in membership.voters:
                    return Next(Do.STARTED, node)
                if node in membership.learners:
                    if has_majority(membership.voters | {node}, here):
                        return Next(Do.PROMOTE, node)
                elif empty(node):
                    return Next(Do.ADD, node)
            case Standing.LEAVING:
                if node not in membership:
                    return Next(Do.EMPTIED, node)
                if holds(node):
                    continue
                if node == leader:
                    return Next(Do.HAND_OVER, node)
                if has_majority(membership.voters - {node}, here):
                    return Next(Do.REMOVE, node)
            case Standing.UP | Standing.DRAINING:
                if node not in membership:
                    # A recovery without a majority (`recover-unsafe`) left it out.
                    return Next(Do.LEAVES, node)
            case Standing.REMOVED:
                if node in membership.learners:
                    return Next(Do.REMOVE, node)
    return None


def has_majority(voters: Collection[int], here: Collection[int]) -> bool:
    return 2 * len(set(voters).intersection(here)) > len(voters)


class Surroundings(Protocol):
    """The member that leads."""

    node_id: int

    def here(self) -> Collection[int]: ...

    def brokers(self) -> Sequence[Broker]: ...

    def hand_over(self, target: int) -> None: ...


class MemberChanges:
    """On the scheduler of one leadership, with which it ends."""

    def __init__(
        self,
        member: Surroundings,
        group: Group,
        neighbours: Neighbours,
        registry: NodeRegistry,
        scheduler: Scheduler,
    ) -> None:
        self._member = member
        self._group = group
        self._neighbours = neighbours
        self._registry = registry
        self._is_changing = False
        self._periodic = Periodic(scheduler, LOOK_MS, self.look)

    def look(self) -> None:
        try:
            self._note()
            self._look()
        except MetaStoreError as error:
            log.info("nodes are not noted: %s", error)
        except (NotLeader, NotNow, ChangeRefused, GroupFailed, KafkaError) as error:
            log.info("members are not changed now: %s", error)

    def _note(self) -> None:
        """What voters said of themselves."""
        known = self._registry.all()
        for one in self._member.brokers():
            if one.id in self._group.raft.membership.voters:
                said = {"address": f"{one.host}:{one.port}", "rack": one.rack or ""}
                record = known.get(one.id)
                if record is None or record.standing is not Standing.REMOVED:
                    self._registry.change(one.id, "found" if record is None else "start", **said)

    def _look(self) -> None:
        raft = self._group.raft
        records, membership = self._registry.all(), raft.membership
        here = self._member.here()
        self._speak_with(records, membership, here)
        if self._is_changing or raft.memberships.index > raft.commit:
            return
        step = next_step(records, membership, self._member.node_id, here, self._is_empty, self._holds)
        if step is not None:
            self._do(step, records)

    def _speak_with(
        self, records: Mapping[int, NodeRecord], membership: Membership, here: Collection[int]
    ) -> None:
        """Also with nodes that are to come, and with those that do not know yet that they are out."""
        also: dict[int, str] = {}
        for node in {*records, *here}.difference(membership):
            record = records.get(node)
            standing = record.standing if record is not None else None
            peer = record.peer if record is not None else ""
            address = peer or self._neighbours.places([node]).get(node)
            if standing is Standing.JOINING:
                also[node] = peer
                self._meet(node, records[node], membership)
            elif standing in self._strangers and node in here and address:
                also[node] = address
                self._neighbours.say(node, ["gone", self._group.raft.commit])
        self._neighbours.also = also

    # What another kind of cluster does in another way.

    _strangers: Collection[Standing | None] = (Standing.REMOVED, None)
    """Who is told that it is out. None, without a record: of a group that was recovered by a node that had heard of
    nobody yet."""

    def _is_empty(self, node: int) -> bool:
        return self._neighbours.is_empty(node)

    def _holds(self, node: int) -> bool:
        return False

    def _meet(self, node: int, record: NodeRecord, membership: Membership) -> None:
        self._neighbours.say(node, ["met", self._neighbours.places(membership)])

    # One step.

    def _do(self, step: Next, records: Mapping[int, NodeRecord]) -> None:
        node = step.node
        match step.do:
            case Do.ADD:
                log.warning("node %d comes in", node)
                self._introduce(records)
                self._change(Change(Step.ADD_LEARNER, node))
            case Do.PROMOTE:
                self._change(Change(Step.PROMOTE, node))
                log.warning("node %d has caught up and becomes a voter", node)
            case Do.REMOVE:
                self._introduce(records)
                self._change(Change(Step.REMOVE, node))
                log.warning("node %d is removed", node)
            case Do.HAND_OVER:
                self._hand_over(records)
            case Do.STARTED:
                self._registry.change(node, "start")
            case Do.LEAVES:
                self._registry.change(node, "remove")
            case Do.EMPTIED:
                self._registry.change(node, "emptied")

    def _introduce(self, records: Mapping[int, NodeRecord]) -> None:
        """Where all are reached goes into the log, right before the change (`places_in_log`)."""
        coming = {node for node, record in records.items() if record.standing is Standing.JOINING}
        places = self._neighbours.places({*self._group.raft.membership, *coming})
        self._group.propose([encode([(Code.PEER, *place) for place in places.items()])], lambda _: None)

    def _change(self, change: Change) -> None:
        done: Done = self._changed
        self._group.change_members(change, done)
        self._is_changing = True

    def _changed(self, error: Exception | None) -> None:
        self._is_changing = False
        if error is not None:
            log.info("members were not changed: %r", error)

    def _hand_over(self, records: Mapping[int, NodeRecord]) -> None:
        """To the voter that has most, of those that are there and stay."""
        leadership, here = self._group.raft.leadership, self._neighbours.here()
        if leadership is None:
            return
        able = [
            (progress.match, node)
            for node, progress in leadership.progress.items()
            if node in self._group.raft.membership.voters
            and node in here
            and (node not in records or records[node].standing is not Standing.LEAVING)
        ]
        if able:
            self._member.hand_over(max(able)[1])
