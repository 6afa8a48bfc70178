"""This node's part in the cluster's group: applies what is committed, writes checkpoints, says when it leads.

    FOLLOWING -> CATCHING_UP -> LEADING -> FOLLOWING        it leads once it has applied its term's first entry

Guarantee: `on_lead` comes when everything that any leader before it may have told as committed is applied here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from broker.replication.disk import ReplicatedDisk
from broker.replication.ops import BadChange, Code, decode
from broker.replication.raft_log import FileLog
from broker.replication.store import Fatal, Store
from raftish import membership
from raftish.core import NotNow
from raftish.entries import Entry, Kind
from raftish.host import Done, Group
from raftish.messages import SnapshotRequest
from storage.clock import Scheduler

GROUP: Final = 1
"""The number of the one group that there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    part_bytes: int = 64 << 20
    """Of a file of the log."""
    keep_bytes: int = 256 << 20
    """Of what a checkpoint covers, for nodes that come back. What is farther behind fetches the state."""
    checkpoint_bytes: int = 64 << 20
    """So much is written between two checkpoints."""


def places_in_log(log: FileLog, index: int) -> dict[int, str]:
    """Where nodes are reached (HOST:PORT), by what stands before each change of members behind `index`."""
    found: dict[int, str] = {}
    for at, _ in log.members_after(index):
        if at - 1 >= log.first_index:
            (entry,) = log.entries(at - 1, at - 1, 1)
            changes = decode(entry.payload) if entry.kind is Kind.NORMAL else []
            found |= {change[1]: change[2] for change in changes if change[0] is Code.PEER}
    return found


class Role(Enum):
    FOLLOWING = "following"
    CATCHING_UP = "catching up"
    LEADING = "leading"


class Replica:
    """A `raftish.host.Machine`. `fatal` hears why this node cannot go on."""

    group: Group

    def __init__(
        self,
        node_id: int,
        store: Store,
        log: FileLog,
        scheduler: Scheduler,
        *,
        on_lead: Callable[[int], None],
        on_follow: Callable[[], None],
        on_far_behind: Callable[[], None],
        fatal: Callable[[Exception], None],
        limits: LogLimits,
    ) -> None:
        self.store = store
        self.role = Role.FOLLOWING
        self.is_closed = False
        """This life in the group is over; whatever still comes is of no concern."""
        self.leader: int | None = None
        self.disk: ReplicatedDisk | None = None
        """Of this node's leadership."""
        self._node_id = node_id
        self._log = log
        self._scheduler = scheduler
        self._on_lead = on_lead
        self._on_follow = on_follow
        self._on_far_behind = on_far_behind
        self._fatal = fatal
        self._limits = limits
        self._leading_term = 0
        self._is_checkpointing = False

    # What the host calls.

    def committed(self, entries: Sequence[Entry]) -> None:
        store = self.store
        if self.is_closed:
            return
        try:
            for entry in entries:
                if entry.index <= store.index:
                    continue
                changes = decode(entry.payload) if entry.kind is Kind.NORMAL else []
                if entry.kind is Kind.MEMBERSHIP:
                    store.members = (entry.index, membership.decode(entry.payload))
                store.apply(entry.index, entry.term, changes)
                # Another leader's entries come before the news of it: they are none of this leadership's disk.
                if changes and self.disk is not None and entry.term == self._leading_term:
                    self.disk.committed(changes)
        except (Fatal, BadChange, OSError) as error:
            self._fatal(error)
            return
        if store.applied_bytes >= self._limits.checkpoint_bytes:
            self.checkpoint(lambda: None)
        self._lead_if_caught_up()

    def led_by(self, leader: int | None, term: int) -> None:
        if self.is_closed:
            return
        if self.group.failure is not None:
            self._fatal(Fatal(f"the cluster's log has failed on this node: {self.group.failure}"))
            return
        self.leader = leader
        if leader == self._node_id:
            if self._leading_term != term:
                self._end_leadership()
                self._leading_term = term
                self.role = Role.CATCHING_UP
            self._lead_if_caught_up()
        else:
            self._end_leadership()

    def restore(self, request: SnapshotRequest, done: Done) -> None:
        """The state is fetched outside the group, which is begun anew with it: `done` is never called."""
        self._scheduler.call_soon(self._on_far_behind)

    # Leading.

    def _lead_if_caught_up(self) -> None:
        if self.role is Role.CATCHING_UP and self.store.term == self._leading_term:
            self.role = Role.LEADING
            self._scheduler.call_soon(self._begin, self._leading_term)

    def _begin(self, term: int) -> None:
        if self.role is Role.LEADING and self._leading_term == term:
            self._on_lead(term)

    def _end_leadership(self) -> None:
        self._leading_term = 0
        if self.role is Role.FOLLOWING:
            return
        self.role = Role.FOLLOWING
        self.disk = None
        self._on_follow()

    def propose(self, payloads: Sequence[bytes], done: Done) -> bool:
        """For the leader's disk. Raises where this node does not lead, or its log has failed."""
        try:
            self.group.propose(payloads, done)
        except NotNow:
            return False
        return True

    def close(self) -> None:
        self.is_closed = True
        self.leader = None
        self._end_leadership()

    # Checkpoints.

    def checkpoint(self, done: Callable[[], None]) -> None:
        """At most one at a time; where one is being written, `done` comes without another."""
        if self._is_checkpointing:
            self._scheduler.call_soon(done)
            return
        self._is_checkpointing = True
        capture = self.store.capture()

        def written(error: OSError | None) -> None:
            self._is_checkpointing = False
            if error is not None:
                self._fatal(Fatal(f"no checkpoint can be written: {error}"))
                return
            self._log.trim(capture.index, self._limits.keep_bytes)
            done()

        def log_is_durable(error: Exception | None) -> None:
            if error is not None:
                self._is_checkpointing = False
                self._fatal(error)
                return
            self.store.checkpoint(capture, written)

        # So that no checkpoint is ahead of its own log.
        self._log.when_all_durable(log_is_durable)
