"""The store of one node in a group: what the group commits is applied, in order, to the same state on every node.

Guarantees: `view` shows on every node all that is committed and applied here, and its watches hear of it in order, each
change once; `lead` gives a store that takes batches until `follow` ends it. What that one applied and is
not committed by then is taken back in the same call, so the state is the committed one again: per uncommitted batch
the records that it replaced are kept, which is at most the state once more and what the group lets be uncommitted.

The lsn of a batch is the index of its entry in the group's log; other entries have indexes, too (`passed`). The group
itself, its messages, its log and who leads are the owner's (`broker/replication/metadata_group.py`).
"""

from __future__ import annotations

from collections import deque

import msgpack

from storage.clock import Scheduler
from storage.disk import Disk
from txn.metastore.errors import Diverged, InvalidOperation, NotLeading, StoreFailed
from txn.metastore.files import Folder
from txn.metastore.leading import FollowerJournal, LeaderJournal, Proposer
from txn.metastore.loading import Image
from txn.metastore.ops import Value
from txn.metastore.replicated_snapshots import ReplicatedSnapshots, load_newest
from txn.metastore.schema import Options, Schema
from txn.metastore.settled import Settled
from txn.metastore.state import Batch, State
from txn.metastore.store import MetaStore, no_collection
from txn.metastore.watches import Watches

_NONE: deque[Batch] = deque()


class Replicated:
    """Made by `open`."""

    def __init__(
        self, folder: Folder, schema: Schema, scheduler: Scheduler, options: Options, image: Image
    ) -> None:
        self.applied_lsn = image.lsn
        """Of the last entry of the group that is applied here, batch or not."""
        self.note: Value = image.note
        """What the owner left in the snapshot that this began with, or was restored from; None: with nothing."""
        self._schema = schema
        self._options = options
        self._scheduler = scheduler
        self._committed_lsn = image.lsn
        self._committed_sequence = image.next_sequence
        self._state = State(
            schema,
            max_key_bytes=options.max_key_bytes,
            records=image.records,
            lsn=image.lsn,
            next_sequence=image.next_sequence,
        )
        self._watches = Watches(scheduler)
        self._leading: LeaderJournal | None = None
        self.snapshots = ReplicatedSnapshots(folder, scheduler, options, self._state, image.snapshot_bytes)
        self._following = FollowerJournal(scheduler, image.lsn, lambda: self._uncommitted)
        self.view = self._store(self._following)
        """As long as this node runs: what is read through it while the node leads may not be committed yet."""

    @classmethod
    def open(
        cls, disk: Disk, directory: str, schema: Schema, scheduler: Scheduler, options: Options | None = None
    ) -> Replicated:
        """The state of the newest snapshot, or the empty one. Blocks.

        Raises `CorruptStore`, `UnknownFormat`, OSError, and what an index's key function raises.
        """
        folder = Folder(disk, directory)
        with no_collection():
            return cls(folder, schema, scheduler, options or Options(), load_newest(folder))

    def _store(self, journal: FollowerJournal | LeaderJournal) -> MetaStore:
        return MetaStore(
            self._schema,
            self._options,
            self._state,
            journal,
            self._watches,
            self.snapshots,
            tells_at_once=False,
        )

    @property
    def _uncommitted(self) -> deque[Batch]:
        return self._leading.uncommitted if self._leading is not None else _NONE

    # What the group says.

    def committed(self, lsn: int, payload: bytes, *, own: bool) -> None:
        """The batch at `lsn` is. `own`: it is of the leadership that `lead` began and `follow` has not ended.

        Raises `Diverged`; nothing is applied then.
        """
        if lsn <= self.applied_lsn:
            return
        if own:
            assert self._leading is not None
            batch = self._leading.uncommitted.popleft()
            if batch.lsn != lsn:
                raise Diverged(f"batch {lsn} is committed where this leader's {batch.lsn} is due")
        else:
            self._take_back()
            batch = self._decode(lsn, payload)
            self._state.commit(batch)
        self._committed_lsn = lsn
        self._committed_sequence = batch.next_sequence
        self.snapshots.grew(len(payload))
        if self._watches:
            self._watches.publish(lsn, batch.effects, batch.index_changes)
        self._advance(lsn)

    def passed(self, lsn: int, *, own: bool) -> None:
        """The entry at `lsn` is committed and is no batch."""
        if lsn > self.applied_lsn:
            if not own:
                self._take_back()
            self._advance(lsn)

    def _advance(self, lsn: int) -> None:
        self.applied_lsn = lsn
        self._following.applied(lsn)
        if self._leading is not None:
            self._leading.committed(lsn)

    def _decode(self, lsn: int, payload: bytes) -> Batch:
        try:
            next_sequence, flat, deletes = msgpack.unpackb(payload, strict_map_key=False)
            puts = dict(zip(flat[::2], flat[1::2], strict=True))
            return self._state.plan_given(lsn, next_sequence, puts, deletes)
        except (ValueError, TypeError, msgpack.UnpackException, InvalidOperation) as error:
            raise Diverged(f"the committed batch {lsn} does not fit here: {error}") from error

    # Leading.

    def lead(self, proposer: Proposer) -> MetaStore:
        """All that any leader before may have told as committed is applied here: take batches."""
        assert self._leading is None, "this node leads already"
        self._leading = LeaderJournal(self._scheduler, proposer, self.applied_lsn)
        return self._store(self._leading)

    def follow(self, leader: int | None) -> None:
        """This node does not lead; harmless when repeated."""
        self._following.leader = leader
        if self._leading is not None:
            self._take_back()
            self._leading.end(NotLeading(leader))
            self._leading = None

    def _take_back(self) -> None:
        """Another's entries are committed, or this node does not lead: its own are no part of the state any more."""
        uncommitted = self._uncommitted
        if uncommitted:
            self._state.undo(uncommitted, self._committed_lsn, self._committed_sequence)
            uncommitted.clear()

    # Snapshots.

    def snapshot(self, note: Value) -> None:
        """Begin to write one of what is committed and applied here, unless one is being written."""
        self.snapshots.begin(self.applied_lsn, self._committed_sequence, self._uncommitted, note)

    def restore(self, image: Image) -> None:
        """Take on a state that another node's snapshot holds, unless the one here is as new.

        Watches are told what there is now, in place of all before. Raises what an index's key function raises.
        """
        if image.lsn <= self.applied_lsn:
            return
        self.follow(self._following.leader)
        self.snapshots.drop()
        self._state.replace(image.records, image.lsn, image.next_sequence)
        self._committed_lsn = image.lsn
        self._committed_sequence = image.next_sequence
        self.note = image.note
        self._watches.restart(Settled(self._state, (), image.lsn))
        self._advance(image.lsn)

    # The end.

    def fail(self, failure: StoreFailed) -> None:
        """This node takes no part in the group any more; reads go on."""
        self.follow(None)
        self._following.end(failure)
        self.snapshots.stop()
