"""Records, versions, and the operations of a batch.

A version is the sequence number (lsn) of the batch that last wrote the record. It is store-wide, only ever
grows, and survives restarts and snapshots, so a key that is deleted and written again never sees an old
version return. Like every other effect of a batch, a version is final once the batch is durable: what a crash
takes back never was.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

ANY = -1
"""No condition."""

ABSENT = 0
"""The key must have no record. As an actual version: it has none."""

WITHIN_BATCH = -2
"""Only in `Conflict.actual`: the key was written by an earlier operation of the same batch."""

Value: TypeAlias = Any
"""Plain msgpack data: None, bool, int (64 bit), float, str, bytes, list, dict. Never changed once applied.

Tuples and subclasses (enums, named tuples) are refused: they would come back from disk as another type.
"""


class Record(NamedTuple):
    value: Value
    version: int


class Put(NamedTuple):
    """Write `value` under `key` if its version is as expected (`ANY`, `ABSENT` or a version)."""

    key: str
    value: Value
    expect: int = ANY


class Delete(NamedTuple):
    """Remove the record of `key` if its version is as expected; with `ANY`, fine if there is none."""

    key: str
    expect: int = ANY


class PutSequential(NamedTuple):
    """Write `value` under a new key: `prefix` and a number of `SEQUENCE_DIGITS` digits.

    Numbers come from one store-wide counter: the order of keys is the order of their making, no number is
    given twice, not even after a delete or a restart, and those below one prefix are not dense.
    """

    prefix: str
    value: Value


class Check(NamedTuple):
    """Change nothing; the batch applies only if the key's version is as expected."""

    key: str
    expect: int


Op: TypeAlias = Put | Delete | PutSequential | Check

SEQUENCE_DIGITS = 16
"""The width of a sequential key's number, zero-padded."""


class Applied(NamedTuple):
    """What became of a batch: its sequence number, and the keys of its `PutSequential`, in order."""

    lsn: int
    keys: tuple[str, ...]


class Effect(NamedTuple):
    """The net change of one key by one batch: never two for a key, never one without a change."""

    key: str
    old: Record | None
    new: Record | None
