"""A replicated range as its group's log and machine: between `raftish.host` and `storage.replica`.

    FOLLOWING -> LEADING(term) -> FOLLOWING        as the group says who leads

Guarantees: what a turn appended is proposed together, so it shares one append and one flush; batches carry the term
that their entries have; high watermarks move with the group's commit index and by nothing else; the log is one, the
range's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.replication import lineage
from raftish import membership
from raftish.core import NotLeader, NotNow
from raftish.entries import Entry, HardState, Kind
from raftish.host import Done, Group, GroupFailed, Host
from raftish.membership import Membership
from raftish.messages import SnapshotRequest
from storage.replica import NotTaken, RangeReplica

Restore = Callable[[SnapshotRequest, Done], None]
"""Replaces the replica's files by the leader's and hands over the new replica: `RangeGroup.replaced`."""


class RangeGroup:
    """`raftish.host.GroupLog` and `LogMachine` of one range on one node. `join` makes it part of a host."""

    def __init__(
        self,
        node: int,
        replica: RangeReplica,
        restore: Restore | None = None,
        on_leader: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_leader`: the leader or the term is another one now."""
        self.replica = replica
        self.group: Group | None = None
        self._node = node
        self._restore = restore
        self._on_leader = on_leader
        self._term = 0
        """Of this node's last leadership."""
        self._told_term = 0
        self.lineage: tuple[int, ...] = ()
        """Of this node's last leadership (`broker.ranges.lineage`)."""

    def join(
        self, host: Host, number: int, hard_state: HardState, *, is_new: bool = False, may_stand: bool = True
    ) -> Group:
        """`hard_state` as a start found it, and flushed; so is the replica. The rest as `Raft` takes it."""
        self.group = host.add(
            number,
            self,
            hard_state,
            self.known_members(),
            self,
            commit=self.replica.commit_index,
            is_new=is_new,
            may_stand=may_stand,
        )
        return self.group

    def known_members(self) -> Iterable[tuple[int, Membership]]:
        return [(index, membership.decode(packed)) for index, packed in self.replica.members_known()]

    # The log.

    @property
    def first_index(self) -> int:
        return self.replica.first_index

    @property
    def last_index(self) -> int:
        return self.replica.last_index

    def term_at(self, index: int) -> int | None:
        return self.replica.term_at(index)

    def entries(self, first: int, last: int, max_bytes: int) -> Sequence[Entry]:
        return [
            Entry(stored.term, stored.index, Kind(stored.kind), stored.payload)
            for stored in self.replica.entries(first, last, max_bytes)
        ]

    def write(self, truncate_from: int | None, entries: Sequence[Entry]) -> None:
        self.replica.write(truncate_from, entries)

    def when_all_durable(self, callback: Done) -> None:
        self.replica.when_all_durable(callback)

    # The machine.

    def committed_to(self, index: int) -> None:
        self.replica.commit_to(index)

    def led_by(self, leader: int | None, term: int) -> None:
        self._told_term = term
        if leader == self._node:
            self._term = term
            self.lineage = lineage.of_leader(self, term)
            self.replica.begin_leading(term, self._propose)
        else:
            self.replica.follow(term)
        self._on_leader()

    @property
    def leads(self) -> bool:
        return self.replica.leads

    @property
    def knows_its_end(self) -> bool:
        """Whether the high watermarks are no lower than any leader has told before: its term has a commit."""
        return self.replica.term_at(self.replica.commit_index) == self._term

    @property
    def is_held(self) -> bool:
        """Whether another node is to lead, and nothing is taken meanwhile."""
        return self.replica.is_held

    def _propose(self, payloads: Sequence[bytes]) -> int:
        group = self.group
        assert group is not None
        if not group.raft.is_leader or group.raft.term != self._term:
            # It is told in this turn, or was never told of this term.
            raise NotTaken("another term has begun")
        try:
            return group.propose(payloads, _nobody_waits).first
        except (NotLeader, NotNow, GroupFailed) as refusal:
            raise NotTaken(str(refusal)) from refusal

    def restore(self, request: SnapshotRequest, done: Done) -> None:
        if self._restore is None:
            raise AssertionError("nobody drops this range's begin")
        self._restore(request, done)

    def replaced(self, replica: RangeReplica) -> None:
        """Files were fetched, and this was opened from them; the old one is closed."""
        self.replica = replica
        replica.follow(self._told_term)


def _nobody_waits(error: Exception | None) -> None:
    """Those who do wait for positions, at the replica."""
