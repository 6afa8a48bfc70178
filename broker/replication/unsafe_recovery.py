"""After the loss of a majority: one node goes on alone with what it has. Nothing else gives up what was acknowledged.

The folder of a node that is stopped gets an entry at the end of its log that makes it the only member, in a term above
all that it knows. When it starts it leads, and what its log holds, committed before or not, becomes committed.

Lost is what the others acknowledged without this node. Whatever of them comes back in the old group, with its folder,
must not be let: two of three would go on, too, without this one. As far as it reaches them, the new leader tells them
that they are out.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.replication.folder import MARKER, REMOVED
from broker.replication.hard_state import HardStateFile
from broker.replication.raft_log import FileLog
from broker.replication.store import Store
from raftish import membership as members
from raftish.entries import Entry, HardState, Kind
from raftish.membership import Membership
from storage.clock import Scheduler
from storage.disk import Disk

RECOVERED = "RECOVERED"
"""A file in the folder that says what was done, a line each time."""


class CannotRecover(Exception):
    """The folder is not one with which a node can go on; says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a stopped node's folder has."""

    node: int
    voters: tuple[int, ...]
    """Of the group, so far as it knows."""
    last_term: int
    last_index: int
    """Of its log's last entry: of several nodes that are left, the one with the highest (term, index) has most."""
    applied_index: int
    """Of its checkpoint: what was committed for certain."""

    @property
    def others(self) -> str:
        return ", ".join(str(node) for node in self.voters if node != self.node)


class Recovery:
    """Opens a folder that nobody serves, without changing it; `carry_out` changes it.

    Raises:
        CannotRecover, OSError, Fatal, CorruptRaftLog.
    """

    def __init__(self, disk: Disk, scheduler: Scheduler, raft_folder: str) -> None:
        self._disk = disk
        node = _node_of(disk)
        if disk.exists(REMOVED):
            raise CannotRecover(f"node {node} was removed from its cluster: the others went on without it")
        store = Store(disk)
        if store.must_fetch:
            raise CannotRecover(
                "the node was fetching the others' state when it stopped: its files are of no use"
            )
        if not disk.exists(raft_folder):
            raise CannotRecover("the node has never taken part in a group")
        self._hard_states = HardStateFile(disk, scheduler, f"{raft_folder}/hard-state")
        self._log = FileLog(disk, scheduler, f"{raft_folder}/log")
        known = self._log.members_after(store.members[0] if store.members is not None else 0)
        if store.members is None and not known:
            raise CannotRecover("it is not known who the members were: start the node once in the old way")
        current = known[-1][1] if known else store.members[1] if store.members is not None else None
        assert current is not None
        if node not in current.voters:
            raise CannotRecover(f"node {node} was no voter: it may lack what was acknowledged long ago")
        log = self._log
        self.found = Found(
            node,
            tuple(sorted(current.voters)),
            log.term_at(log.last_index) or 0,
            log.last_index,
            store.index,
        )
        if self.found.voters == (node,):
            raise CannotRecover(f"node {node} is the only member already")

    def carry_out(self, when: str) -> str:
        """What was done, as it is written into the folder. Blocks until all is durable. Raises OSError."""
        found = self.found
        term = max(self._hard_states.current.term, found.last_term) + 1
        self._hard_states.write_now(HardState(term, found.node))
        alone = members.encode(Membership(frozenset({found.node})))
        self._log.write(None, [Entry(term, found.last_index + 1, Kind.MEMBERSHIP, alone)])
        self._log.flush()
        line = (
            f"{when}: node {found.node} goes on alone, without {found.others}, from entry {found.last_index} of term "
            f"{found.last_term}; what others had acknowledged without it is lost"
        )
        self._note(line)
        return line

    def _note(self, line: str) -> None:
        is_new = not self._disk.exists(RECOVERED)
        file = self._disk.open(RECOVERED, create=is_new)
        file.pwritev([line.encode() + b"\n"], file.size())
        file.flush()
        file.close()
        self._disk.flush_dir("")

    def close(self) -> None:
        self._log.close()
        self._hard_states.close()


def notes(disk: Disk) -> list[str]:
    """What `carry_out` ever did with this folder."""
    if not disk.exists(RECOVERED):
        return []
    file = disk.open_readonly(RECOVERED)
    try:
        return file.pread(file.size(), 0).decode("utf-8", "replace").splitlines()
    finally:
        file.close()


def _node_of(disk: Disk) -> int:
    if disk.exists(MARKER):
        file = disk.open_readonly(MARKER)
        try:
            words = file.pread(128, 0).decode("ascii", "replace").split()
        finally:
            file.close()
        if words[-2:-1] == ["node"] and words[-1].isdigit():
            return int(words[-1])
    raise CannotRecover("it is no folder of a cluster's node")
