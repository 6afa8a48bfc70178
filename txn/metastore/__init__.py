"""The metadata store: an ordered, durable map of path keys to small records (design, section 3).

A library in itself: nothing in it knows what its records mean.

    ops, schema, errors     what callers say and get
    state, indexes, view    the state in memory; pure (sorted_set is what it is made of)
    watches, waiters        who is told of changes, and of their durability
    frames, files           the bytes on disk
    log, snapshot           what is written, and when
    loading, recovery       what is read at the start
    store                   `MetaStore`, the whole
"""

from txn.metastore.errors import (
    Conflict,
    CorruptStore,
    InvalidOperation,
    LimitExceeded,
    MetaStoreError,
    StoreFailed,
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
from txn.metastore.schema import IndexKey, IndexSpec, Options, Schema
from txn.metastore.store import MetaStore, Stats
from txn.metastore.watches import Change, Entry, Event, Snapshot, Watch

__all__ = [
    "ABSENT",
    "ANY",
    "WITHIN_BATCH",
    "Applied",
    "Change",
    "Check",
    "Conflict",
    "CorruptStore",
    "Delete",
    "Entry",
    "Event",
    "IndexKey",
    "IndexSpec",
    "InvalidOperation",
    "LimitExceeded",
    "MetaStore",
    "MetaStoreError",
    "Op",
    "Options",
    "Put",
    "PutSequential",
    "Record",
    "RecoveryReport",
    "Schema",
    "Snapshot",
    "Stats",
    "StoreFailed",
    "TornTail",
    "UnknownFormat",
    "Value",
    "Watch",
]
