"""What the owner of a store declares once: its indexes, its sharding rule, its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txn.metastore.ops import Value

IndexKey = tuple[Any, ...]
"""Orders the entries of an index. Elements are int, str, bytes or bool, of the same types in every entry."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """An index over the records whose key starts with `prefix`.

    `key_of(key, value)` gives the record's index key, or None when the record is not in the index. It must be
    pure: the index is not stored but built anew at every start.
    """

    prefix: str
    key_of: Callable[[str, Value], IndexKey | None]


def whole_store(key: str) -> str:
    """The partition rule of a store that is never split: all keys together."""
    return ""


@dataclass(frozen=True, slots=True)
class Schema:
    """Declared by the owner; not stored.

    `partition_of(key)` names the group that a key belongs to. Keys of one group stay on one shard, so a batch
    whose keys are all of one group stays atomic when the store is sharded; the owner keeps to that. A single
    store only answers the question (`MetaStore.partition_of`): it stores nothing about groups and refuses no
    batch over them.
    """

    indexes: Mapping[str, IndexSpec] = field(default_factory=dict)
    partition_of: Callable[[str], str] = whole_store


@dataclass(frozen=True, slots=True)
class Options:
    """Limits and paces. Sizes are of the encoded form."""

    max_batch_bytes: int = 16 * 1024 * 1024
    max_key_bytes: int = 4096
    max_value_bytes: int = 4 * 1024 * 1024
    flush_linger_ms: float = 20
    """What nobody waits for becomes durable after this long, plus the flush."""
    written_is_durable: bool = False
    """What a killed process must not lose has to be durable: the next one goes on elsewhere, with nothing else."""
    mark_idle_ms: float = 1000
    """After this long without a batch, the log notes that it is durable: damage in it is refused then."""
    allocate_bytes: int = 4 * 1024 * 1024
    """The log grows by this much at a time."""
    snapshot_log_bytes: int = 64 * 1024 * 1024
    """A snapshot is due when the log since the last one is longer than this and than that snapshot itself."""
    snapshot_turn_records: int = 100
    """How many records a snapshot takes on in one turn of the loop, at most."""
    snapshot_turn_bytes: int = 256 * 1024
    """A snapshot's turn ends with the record that passes this."""
    snapshot_pause_ms: float = 2
    """The pause between two turns of a snapshot."""

    def __post_init__(self) -> None:
        for name in (
            "max_batch_bytes",
            "max_key_bytes",
            "max_value_bytes",
            "allocate_bytes",
            "snapshot_log_bytes",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        if self.snapshot_turn_records <= 0 or self.snapshot_turn_bytes <= 0:
            raise ValueError("a snapshot must get on by at least one record and one byte each turn")
        if self.max_batch_bytes + self.snapshot_turn_bytes > MAX_FRAME_BYTES:
            raise ValueError(
                f"max_batch_bytes and snapshot_turn_bytes must stay below {MAX_FRAME_BYTES} together"
            )


MAX_FRAME_BYTES = 128 * 1024 * 1024
"""The longest frame that recovery reads, whatever the options were when it was written."""
