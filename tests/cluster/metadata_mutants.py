"""Metadata groups that are wrong on purpose. Each is a patch, and a word on what it breaks."""

from __future__ import annotations

from unittest.mock import patch

from broker.replication.metadata_group import MetadataGroup, Role
from raftish.host import Group
from txn.metastore import leading
from txn.metastore.errors import BatchLost
from txn.metastore.indexes import SecondaryIndex
from txn.metastore.leading import LeaderJournal
from txn.metastore.replicated import Replicated
from txn.metastore.replicated_snapshots import ReplicatedSnapshots
from txn.metastore.snapshot_file import SnapshotFile
from txn.metastore.state import State
from txn.metastore.watches import Watches


def keeps_what_is_not_committed():
    """No rollback at a step down."""
    return patch.object(Replicated, "_take_back", lambda self: self._uncommitted.clear())


def takes_back_in_the_order_of_applying():
    undo = State.undo

    def mutant(self, batches, *before):
        undo(self, list(reversed(batches)), *before)

    return patch.object(State, "undo", mutant)


def applies_before_the_commit():
    """What a follower has in its log is applied there."""
    apply = Group._apply
    return patch.object(Group, "_apply", lambda self, commit: apply(self, self.raft.log.last_index))


def counts_batches_in_place_of_entries():
    """Followers know of no gaps between lsns."""
    plan_given = State.plan_given
    return patch.object(State, "plan_given", lambda self, lsn, *given: plan_given(self, self.lsn + 1, *given))


def snapshot_without_the_applied_index():
    """It holds that of the batch before the last one."""
    init = SnapshotFile.__init__

    def mutant(self, *args, lsn, **kwargs):
        init(self, *args, lsn=max(0, lsn - 1), **kwargs)

    return patch.object(SnapshotFile, "__init__", mutant)


def snapshot_with_what_is_not_committed():
    freeze = State.freeze
    return patch.object(State, "freeze", lambda self, without=(): freeze(self))


def forgets_to_take_back_the_index():
    return patch.object(SecondaryIndex, "revert", lambda self, change: None)


def watches_lost_at_a_restore():
    return patch.object(Watches, "restart", lambda self, settled: None)


def watches_begin_with_what_is_not_committed():
    return patch.object(LeaderJournal, "untold", property(lambda self: ()))


def leads_before_it_has_caught_up():
    """No barrier: what earlier leaders had committed may be missing."""
    lead_if_caught_up = MetadataGroup._lead_if_caught_up

    def mutant(self):
        if self.role is Role.CATCHING_UP:
            self._applied_term = self._leading_term
        lead_if_caught_up(self)

    return patch.object(MetadataGroup, "_lead_if_caught_up", mutant)


def calls_lost_what_is_not_known():
    return patch.object(leading, "OutcomeUnknown", BatchLost)


def calls_durable_what_is_proposed():
    when_durable = LeaderJournal.when_durable

    def mutant(self, lsn, callback):
        self._durable_lsn = max(lsn, self._durable_lsn)
        when_durable(self, lsn, callback)

    return patch.object(LeaderJournal, "when_durable", mutant)


def confirms_reads_by_itself():
    return patch.object(
        MetadataGroup, "confirm", lambda self, done: done(None) if self.role is Role.LEADING else None
    )


def drops_the_log_before_the_snapshot_is_durable():
    begin = ReplicatedSnapshots.begin

    def mutant(self, lsn, *rest):
        begin(self, lsn, *rest)
        self.published(lsn)

    return patch.object(ReplicatedSnapshots, "begin", mutant)


MUTANTS = {
    keeps_what_is_not_committed: 5,
    takes_back_in_the_order_of_applying: 20,
    applies_before_the_commit: 5,
    counts_batches_in_place_of_entries: 5,
    snapshot_without_the_applied_index: 5,
    snapshot_with_what_is_not_committed: 20,
    forgets_to_take_back_the_index: 5,
    watches_lost_at_a_restore: 20,
    watches_begin_with_what_is_not_committed: 20,
    leads_before_it_has_caught_up: 20,
    calls_lost_what_is_not_known: 5,
    calls_durable_what_is_proposed: 5,
    confirms_reads_by_itself: 20,
    drops_the_log_before_the_snapshot_is_durable: 20,
}
"""With the number of seeds in which each is found."""
