"""The metadata store: an ordered, durable map of path keys to small records (design, section 3).

A library in itself: nothing in it knows what its records mean.

    ops, schema, errors     what callers say and get
    state, indexes, view    the state in memory; pure (sorted_set is what it is made of)
    watches, waiters        who is told of changes, and of their durability
    frames, files           the bytes on disk
    log, snapshot,          what is written, and when
      snapshot_file
    loading, recovery       what is read at the start
    journal, settled        what a store stands on: its own log, or a group's
    store                   `MetaStore`, the whole
    leading, replicated,    `Replicated`: the store of one node in a group, whose batches the group commits
      replicated_snapshots
"""

from txn.metastore.errors import (
    BatchLost,
    Conflict,
    CorruptStore,
    Diverged,
    InvalidOperation,
    LimitExceeded,
    MetaStoreError,
    NotLeading,
    OutcomeUnknown,
    StoreFailed,
    TryAgain,
    UnknownFormat,
)
from txn.metastore.loading import TornTail
from txn.metastore.ops import (
    ABSENT,
    ANY,
    WITHIN_BATCH,
    Applied,
    Check,
    Delete,
    Op,
    Put,
    PutSequential,
    Record,
    Value,
)
from txn.metastore.recovery import RecoveryReport
from txn.metastore.replicated import Replicated
from txn.metastore.schema import IndexKey, IndexSpec, Options, Schema
from txn.metastore.store import MetaStore, Stats
from txn.metastore.watches import Change, Entry, Event, Snapshot, Watch

__all__ = [
    "ABSENT",
    "ANY",
    "WITHIN_BATCH",
    "Applied",
    "BatchLost",
    "Change",
    "Check",
    "Conflict",
    "CorruptStore",
    "Delete",
    "Diverged",
    "Entry",
    "Event",
    "IndexKey",
    "IndexSpec",
    "InvalidOperation",
    "LimitExceeded",
    "MetaStore",
    "MetaStoreError",
    "NotLeading",
    "Op",
    "Options",
    "OutcomeUnknown",
    "Put",
    "PutSequential",
    "Record",
    "RecoveryReport",
    "Replicated",
    "Schema",
    "Snapshot",
    "Stats",
    "StoreFailed",
    "TornTail",
    "TryAgain",
    "UnknownFormat",
    "Value",
    "Watch",
]
