"""Nodes come and go where ranges have groups of their own: the members of the metadata's group.

What differs from `broker.replication.member_changes`: a newcomer's number is on record before it is a member, so that
one that lost its folder is known again; where nodes are reached is in their records, not in the log; a node that
leaves is a member until no range names it.
"""

from __future__ import annotations

from broker.node_registry import NodeRecord, NodeRegistry, Standing
from broker.ranges.arrival import Arrival
from broker.ranges.moves import may_hold
from broker.ranges.records import RangeRecord
from broker.replication.member_changes import MemberChanges, Surroundings
from broker.replication.neighbours import Neighbours
from raftish.host import Group
from raftish.membership import Membership
from storage.clock import Scheduler
from txn import keys
from txn.metastore import MetaStore


class MetadataMembers(MemberChanges):
    """On the scheduler of one leadership, with which it ends. `store` is the one that this leadership changes."""

    _strangers = (Standing.REMOVED,)

    def __init__(
        self,
        member: Surroundings,
        group: Group,
        neighbours: Neighbours,
        registry: NodeRegistry,
        scheduler: Scheduler,
        store: MetaStore,
        arrival: Arrival,
    ) -> None:
        super().__init__(member, group, neighbours, registry, scheduler)
        self._store = store
        self._arrival = arrival

    def _note(self) -> None:
        """Where nodes are is noted by the controller; here, by which number each is known."""
        for node, record in self._registry.all().items():
            number = self._arrival.heard.get(node)
            if number is None or not self._neighbours.is_empty(node):
                continue
            if not record.folder and record.standing is Standing.JOINING:
                self._registry.change(node, "arrive", folder=str(number))
            elif record.folder:
                # As long as it says that it has nothing, a member or not; one with another number hears that, too.
                self._meet(node, record, self._group.raft.membership)

    def _is_empty(self, node: int) -> bool:
        record = self._registry.all().get(node)
        said = str(self._arrival.heard.get(node))
        return record is not None and record.folder == said and self._neighbours.is_empty(node)

    def _holds(self, node: int) -> bool:
        """One that is there has told, too, that it has dropped what it had: nobody else could (`moves.forgotten`)."""
        records = [RangeRecord.of(one.value) for _, one in self._store.scan(keys.RANGES)]
        is_here = node in self._member.here()
        return any(
            may_hold(one, node) or (is_here and node in one.left and node not in one.dropped)
            for one in records
        )

    def _meet(self, node: int, record: NodeRecord, membership: Membership) -> None:
        """So that it says who it is, and hears whom the cluster takes it for."""
        number = int(record.folder) if record.folder else None
        words = self._arrival.founding.words()
        self._neighbours.say(node, ["met", *words, number, self._neighbours.places(membership)])

    def _introduce(self, records: object) -> None:
        """It is in the records, which are in this log before the change."""
