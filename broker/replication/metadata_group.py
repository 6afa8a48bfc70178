"""The metadata store's group on this node: a `raftish.host.Machine` over `txn.metastore.replicated`.

    FOLLOWING -> CATCHING_UP -> LEADING -> FOLLOWING        it leads once its term's first entry is applied

    <folder>/log/                   the group's log (`raft_log.FileLog`)
    <folder>/snapshot-0000000001    the state as of some entry; its note: [term, index of the members' entry, members]

Guarantees: `on_lead` comes with a store when everything that any leader before may have told as committed is in it;
`on_follow` comes before anybody hears what became of a batch that was not committed when this node stopped leading.
A start is the snapshot and the entries behind it, as the group commits them. The log keeps what no durable snapshot
has, and `keep_bytes` more for nodes that come back; who is farther behind fetches the snapshot (`metadata_fetch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from broker.replication.metadata_fetch import DEFAULT_PART_BYTES, SnapshotFetch, SnapshotSource
from broker.replication.raft_log import CorruptRaftLog, FileLog
from broker.replication.replica import LogLimits
from broker.replication.store import Fatal
from broker.replication.transfer import FetchFailed, Send
from raftish import membership
from raftish.core import NotLeader, NotNow
from raftish.entries import Entry, HardState, Kind
from raftish.host import Done, Group, GroupFailed, Host, Lost
from raftish.membership import Membership
from raftish.messages import SnapshotRequest
from storage.clock import Scheduler
from storage.disk import Disk
from txn.metastore import Diverged, MetaStore, NotLeading, Op, Options, Schema, StoreFailed, TryAgain
from txn.metastore.loading import Image
from txn.metastore.replicated import Replicated

METADATA_GROUP: Final = 2
"""The number of the group, beside that of the leader's disk (`replica.GROUP`)."""


class Role(Enum):
    FOLLOWING = "following"
    CATCHING_UP = "catching up"
    LEADING = "leading"


TRANSITIONS: Final = {
    Role.FOLLOWING: {Role.CATCHING_UP},
    Role.CATCHING_UP: {Role.LEADING, Role.FOLLOWING},
    Role.LEADING: {Role.FOLLOWING},
}


class _Proposer:
    """A `txn.metastore.leading.Proposer` of one term."""

    def __init__(self, group: Group, term: int) -> None:
        self._group = group
        self._term = term
        self.is_held = False
        """Another node is to lead: only what belongs to that is taken."""

    def next_lsn(self) -> int:
        raft = self._group.raft
        if self._group.failure is not None or raft.leadership is None or raft.term != self._term:
            raise NotLeading(raft.leader if raft.leader != raft.node_id else None)
        if raft.leadership.transfer_target is not None:
            raise TryAgain(f"leadership is being handed to node {raft.leadership.transfer_target}")
        if self.is_held:
            raise TryAgain("leadership is about to be handed over")
        if raft.leadership.is_nearly_full:
            raise TryAgain("too much waits to be committed")
        return raft.log.last_index + 1

    def propose(self, payload: bytes, lost: Callable[[], None]) -> int:
        def done(error: Exception | None) -> None:
            if isinstance(error, Lost):
                lost()

        try:
            return self._group.propose([payload], done).last
        except NotNow as refusal:
            raise TryAgain(str(refusal)) from refusal
        except (NotLeader, GroupFailed) as refusal:
            raise NotLeading(self._group.leader) from refusal


class MetadataGroup:
    """Blocks while it reads what is there. Raises OSError, `CorruptRaftLog`, `txn.metastore.CorruptStore`."""

    group: Group

    def __init__(
        self,
        node_id: int,
        disk: Disk,
        scheduler: Scheduler,
        directory: str,
        schema: Schema,
        *,
        send: Send,
        on_lead: Callable[[MetaStore, int], None],
        on_follow: Callable[[], None],
        fatal: Callable[[Exception], None],
        options: Options | None = None,
        limits: LogLimits = LogLimits(),  # noqa: B008 - frozen
        part_bytes: int = DEFAULT_PART_BYTES,
    ) -> None:
        """`send` takes notes to another node's `heard`, or loses them. `on_lead(store, term)`: batches are taken, until
        `on_follow()`. `fatal` hears why this node cannot go on."""
        self.role = Role.FOLLOWING
        self._node_id = node_id
        self._disk = disk
        self._scheduler = scheduler
        self._send = send
        self._on_lead = on_lead
        self._on_follow = on_follow
        self._fatal = fatal
        self._limits = limits
        self.replicated = Replicated.open(disk, directory, schema, scheduler, options)
        self.log = FileLog(disk, scheduler, f"{directory}/log", part_bytes=limits.part_bytes)
        self._applied_term = 0
        self._members: tuple[int, Membership] | None = None
        self._take_note()
        self._check_log()
        snapshots = self.replicated.snapshots
        snapshots.when_log_durable = self.log.when_all_durable
        snapshots.published = lambda lsn: self.log.trim(lsn, limits.keep_bytes)
        snapshots.failed = self._fail
        self._source = SnapshotSource(snapshots, scheduler, send, part_bytes=part_bytes, failed=self._fail)
        self._fetch: SnapshotFetch | None = None
        self._leading_term = 0
        self._store: MetaStore | None = None
        self._proposer: _Proposer | None = None
        self._is_closed = False

    def join(
        self, host: Host, hard_state: HardState, first: Membership, number: int = METADATA_GROUP
    ) -> None:
        """Take part. `first`: whom the group began with, where nothing here knows better."""
        if self._members is None:
            self._members = (0, first)
        known = [self._members, *self.log.members_after(self._members[0])]
        self.group = host.add(number, self.log, hard_state, known, self)

    @property
    def view(self) -> MetaStore:
        """For reads and watches, as long as this node runs."""
        return self.replicated.view

    @property
    def store(self) -> MetaStore:
        """What takes batches while this node leads; otherwise `view`, whose `apply` names the leader."""
        return self._store if self._store is not None else self.replicated.view

    def confirm(self, done: Done) -> None:
        """`done(None)`: what was read of `store` in this turn was the newest there was, and is committed.

        `done(error)`: nobody knows; `NotLeading` where this node does not lead.
        """
        store = self._store
        if store is None:
            self._scheduler.call_soon(done, NotLeading(self.group.leader))
        elif store.lsn > store.durable_lsn:
            # Nobody else can have committed anything in between if this is committed, where it is.
            store.when_durable(store.lsn, done)
        else:
            try:
                self.group.read(done)
            except (NotLeader, NotNow, GroupFailed) as error:
                self._scheduler.call_soon(done, error)

    # Handing over (`broker.ranges.metadata_handover`).

    def hold(self) -> None:
        """The store takes nothing more in this leadership (`TryAgain`) but by `apply_held`, until `release`."""
        if self._proposer is not None:
            self._proposer.is_held = True

    def apply_held(self, ops: Sequence[Op]) -> int:
        """The lsn. Raises StoreFailed."""
        store, proposer = self.store, self._proposer
        if proposer is None:
            return store.apply(ops).lsn
        proposer.is_held = False
        try:
            return store.apply(ops).lsn
        finally:
            proposer.is_held = True

    def release(self) -> None:
        if self._proposer is not None:
            self._proposer.is_held = False

    def close(self) -> None:
        """This life in the group is over; whatever still comes is of no concern."""
        if self._is_closed:
            return
        self._end_leadership(None)
        self._is_closed = True
        self._source.close()
        if self._fetch is not None:
            self._fetch.close()
        self.replicated.fail(StoreFailed("this node takes no part any more"))

    # What the host calls.

    def committed(self, entries: Sequence[Entry]) -> None:
        if self._is_closed:
            return
        replicated = self.replicated
        try:
            for entry in entries:
                if entry.index <= replicated.applied_lsn:
                    continue
                own = self.role is Role.LEADING and entry.term == self._leading_term
                if not own and self.role is Role.LEADING:
                    # Another leader's entries come before the news of it.
                    self._end_leadership(None)
                if entry.kind is Kind.NORMAL:
                    replicated.committed(entry.index, entry.payload, own=own)
                else:
                    replicated.passed(entry.index, own=own)
                    if entry.kind is Kind.MEMBERSHIP:
                        self._members = (entry.index, membership.decode(entry.payload))
                self._applied_term = entry.term
        except Diverged as error:
            self._fail(error)
            return
        if replicated.snapshots.is_due:
            self.snapshot()
        self._lead_if_caught_up()

    def led_by(self, leader: int | None, term: int) -> None:
        if self._is_closed:
            return
        if self.group.failure is not None:
            self._fail(Fatal(f"the metadata's log has failed on this node: {self.group.failure}"))
            return
        if self._fetch is not None and self._fetch.source != leader:
            self._fetch.give_up(f"node {self._fetch.source} does not lead any more")
        if leader != self._node_id:
            self._end_leadership(leader)
            return
        if self._leading_term != term:
            self._end_leadership(None)
            self._leading_term = term
            self._move(Role.CATCHING_UP)
        self._lead_if_caught_up()

    def restore(self, request: SnapshotRequest, done: Done) -> None:
        """The log restarts at what was asked for. The state may be of later: what lies between is skipped."""

        def fetched(image: Image | None, error: Exception | None) -> None:
            self._fetch = None
            if image is None:
                if isinstance(error, FetchFailed):
                    self._scheduler.call_soon(done, error)
                else:
                    self._fail(error or Fatal("no reason"))
                return
            self.replicated.snapshots.take_fetched(
                image, lambda error: self._install(image, request, done, error)
            )

        if not self._is_closed:
            self._fetch = SnapshotFetch(
                self.replicated.snapshots,
                self._scheduler,
                self._send,
                self._disk.start_flush,
                request.source,
                request.index,
                fetched,
            )

    def heard(self, peer: int, note: Sequence[Any]) -> None:
        """What another node's `send` was given."""
        if self._is_closed:
            return
        kind, *rest = note
        if kind == "meta-snapshot?":
            self._source.asked_snapshot(peer)
        elif kind == "meta-part?":
            self._source.asked_part(peer, *rest)
        elif kind == "meta-snapshot" and self._fetch is not None:
            self._fetch.heard_snapshot(peer, *rest)
        elif kind == "meta-part" and self._fetch is not None:
            self._fetch.heard_part(peer, *rest)

    # Leading.

    def _lead_if_caught_up(self) -> None:
        if self.role is Role.CATCHING_UP and self._applied_term == self._leading_term:
            self._move(Role.LEADING)
            self._proposer = _Proposer(self.group, self._leading_term)
            self._store = self.replicated.lead(self._proposer)
            self._scheduler.call_soon(self._begin, self._store, self._leading_term)

    def _begin(self, store: MetaStore, term: int) -> None:
        if store is self._store:
            self._on_lead(store, term)

    def _end_leadership(self, leader: int | None) -> None:
        self._leading_term = 0
        self._store = self._proposer = None
        # What is not committed is taken back here; whoever waits for it hears of it in a later turn.
        self.replicated.follow(leader)
        if self.role is Role.FOLLOWING:
            return
        began = self.role is Role.LEADING
        self._move(Role.FOLLOWING)
        if began:
            self._on_follow()

    def _move(self, role: Role) -> None:
        if role not in TRANSITIONS[self.role]:
            raise AssertionError(f"a node that is {self.role.value} is not {role.value} next")
        self.role = role

    # Snapshots.

    def snapshot(self) -> None:
        """Begin one now, unless one is being written."""
        index, members = self._members or (0, None)
        packed = membership.encode(members) if members is not None else b""
        self.replicated.snapshot([self._applied_term, index, packed])

    def _take_note(self) -> None:
        """What the snapshot that the state is of says of the group."""
        if self.replicated.note is not None:
            self._applied_term, index, packed = self.replicated.note
            self._members = (index, membership.decode(packed))

    def _check_log(self) -> None:
        """A log that ends before the snapshot, or has another history behind it, needs nothing done: raft goes on
        with it as with any, and what the state has already is skipped when it is committed."""
        lsn = self.replicated.applied_lsn
        if self.log.first_index > lsn + 1:
            raise CorruptRaftLog(
                f"the log begins with entry {self.log.first_index}, and the snapshot ends with {lsn}"
            )

    def _install(self, image: Image, request: SnapshotRequest, done: Done, error: Exception | None) -> None:
        """The snapshot is durable under its name."""

        def log_is_quiet(error: Exception | None) -> None:
            if self._is_closed:
                return
            try:
                if error is not None:
                    raise error
                if image.lsn > self.replicated.applied_lsn:
                    self.replicated.restore(image)
                    self._take_note()
                self.log.restart_at(request.index, request.index_term)
            except Exception as failure:  # noqa: BLE001 - an index's function may raise anything
                self._fail(failure)
                return
            done(None)

        if self._is_closed:
            return
        if error is not None:
            self._fail(error)
            return
        self.log.when_all_durable(log_is_quiet)

    def _fail(self, error: Exception) -> None:
        self.close()
        self._fatal(error)
