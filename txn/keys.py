"""Where each control record lives in the metadata store (design, section 3), and the indexes over them.

One place spells every path, so that a record is never looked for under another name than it was written.
Numbers in keys are zero-padded: key order is numeric order. Names that may hold "/" (transactional ids, group
ids) come last in a key or are escaped.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from txn.metastore import IndexSpec, Schema

NODE = "/node"
NODES = "/nodes/"
PRODUCER_IDS = "/producer-ids"
SEGMENT_IDS = "/segment-ids"
BROKER_CONFIGS = "/broker-config/"

TXIDS = "/txid/"
TXNS = "/txn/"
TXN_OPS = "/txn-op/"
TOPICS = "/topic/"
LAYOUTS = "/layout/"
RANGES = "/range/"
GROUP_NUMBERS = "/group-numbers"
LOG_STARTS = "/log-start/"
DURABLE_ENDS = "/durable-end/"
RESOLVED = "/resolved/"
ABORTED = "/aborted/"
GROUPS = "/group/"
LAST = "\U0010ffff"
"""Behind a prefix: above every key that has it."""
TXN_GROUPS = "/txn-group/"
SINKS = "/sink/"

TxnKey = tuple[int, int, int]
"""(producer id, epoch, txn_seq): what names a transaction, in the store and in every batch it wrote."""


def first_seq(term: int) -> int:
    """The first txn_seq of a coordinator's term. The term is the upper half: a number is never used twice, also where a
    crash took its transaction's header."""
    return (term << 32) + 1


def term_of(txn_seq: int) -> int:
    """The coordinator's term in which the transaction began."""
    return txn_seq >> 32


def broker_config(level: str) -> str:
    return BROKER_CONFIGS + level


def cluster_node(node_id: int) -> str:
    """What is known of one node of the cluster; NODE is what this node knows of itself."""
    return f"{NODES}{node_id:010d}"


def parse_cluster_node(path: str) -> int:
    return int(path[len(NODES) :])


def txid(transactional_id: str) -> str:
    return TXIDS + transactional_id


@lru_cache(maxsize=4_096)  # a transaction's records are named half a dozen times within a moment
def _txn_path(key: TxnKey) -> str:
    return f"{key[0]:019d}/{key[1]:05d}/{key[2]:020d}"


def txn(key: TxnKey) -> str:
    return TXNS + _txn_path(key)


def txn_op(key: TxnKey, number: int) -> str:
    return f"{TXN_OPS}{_txn_path(key)}/{number:06d}"


def txn_ops(key: TxnKey) -> str:
    """The prefix of all op records of one transaction."""
    return f"{TXN_OPS}{_txn_path(key)}/"


def parse_txn(path: str) -> TxnKey:
    """The transaction named by a `/txn/` or `/txn-op/` path."""
    _, _, producer_id, epoch, txn_seq = path.split("/")[:5]
    return int(producer_id), int(epoch), int(txn_seq)


def topic(name: str) -> str:
    return TOPICS + name


def layout(name: str) -> str:
    return LAYOUTS + name


def replicated_range(group: int) -> str:
    """A range that is replicated by a group of its own."""
    return f"{RANGES}{group:020d}"


SEGMENTS_PER_RANGE = 1 << 32
"""Segments have one number each in the whole cluster: a range's are those from its group's number times this on."""


def range_of(segment_id: int) -> int:
    """The group in whose log the segment was begun; ranges that took partitions over from it may have it as well."""
    return segment_id // SEGMENTS_PER_RANGE


def parse_range(path: str) -> int:
    return int(path[len(RANGES) :])


def log_starts(name: str) -> str:
    return LOG_STARTS + name


def durable_ends(topic: str) -> str:
    return DURABLE_ENDS + topic


def resolved(segment_id: int) -> str:
    return f"{RESOLVED}{segment_id:020d}"


def aborted(segment_id: int, partition: int, first_offset: int) -> str:
    return f"{aborted_in(segment_id, partition)}{first_offset:020d}"


def aborted_in(segment_id: int, partition: int | None = None) -> str:
    """The prefix of all aborted ranges of one segment, or of one partition in it."""
    prefix = f"{ABORTED}{segment_id:020d}/"
    return prefix if partition is None else f"{prefix}{partition:010d}/"


def parse_aborted(path: str) -> tuple[int, int, int]:
    """(segment id, partition, first offset)."""
    _, _, segment_id, partition, first = path.split("/")
    return int(segment_id), int(partition), int(first)


def txn_group(sink: str, batch: int) -> str:
    return f"{TXN_GROUPS}{quote(sink, safe='')}/{batch:019d}"


def parse_txn_group(path: str) -> tuple[str, int]:
    """(sink, batch)."""
    _, _, escaped, batch = path.split("/")
    return unquote(escaped), int(batch)


def sink(name: str) -> str:
    return f"{SINKS}{quote(name, safe='')}"


def group_state(group_id: str) -> str:
    return f"{GROUPS}{quote(group_id, safe='')}/state"


def group_offsets(group_id: str) -> str:
    """The prefix of all committed offsets of one group."""
    return f"{GROUPS}{quote(group_id, safe='')}/offset/"


def group_offset(group_id: str, topic_name: str, partition: int) -> str:
    return f"{group_offsets(group_id)}{topic_name}/{partition:010d}"


MEMBER = "member"
ASSIGNMENT = "assignment"
OFFSET_PART = "offset/"


def group_members(group_id: str, kind: str) -> str:
    """The prefix of all records of that kind, MEMBER or ASSIGNMENT, of one group."""
    return f"{GROUPS}{quote(group_id, safe='')}/{kind}/"


def group_member(group_id: str, kind: str, member_id: str) -> str:
    """MEMBER: what a member of a consumer group of the new protocol wants; ASSIGNMENT: what it has and should have."""
    return group_members(group_id, kind) + quote(member_id, safe="")


def parse_group_member(rest: str) -> tuple[str, str]:
    """(MEMBER or ASSIGNMENT, member id) of what `parse_group` found behind a group id; other records have no member."""
    kind, _, escaped = rest.partition("/")
    return kind, unquote(escaped)


def parse_group(path: str) -> tuple[str, str]:
    """(group id, what follows it) of any path below `/group/`."""
    escaped, rest = path[len(GROUPS) :].split("/", 1)
    return unquote(escaped), rest


def _open_by_deadline(key: str, value: Any) -> tuple[Any, ...] | None:
    return (value["deadline_ms"], key) if value["state"] == "OPEN" else None


def _sinks_by_age(key: str, value: Any) -> tuple[Any, ...] | None:
    return (value["done_ms"], key)


def _partition_of(key: str) -> str:
    """Records of one producer id stay together, and so do those of one topic, segment or group.

    A commit's batch names one producer id (its header and ops), so a sharded store keeps it on one shard.
    """
    return "/".join(key.split("/")[1:3])


OPEN_BY_DEADLINE = "open-by-deadline"
SINKS_BY_AGE = "sinks-by-age"

SCHEMA = Schema(
    indexes={
        OPEN_BY_DEADLINE: IndexSpec(TXNS, _open_by_deadline),
        SINKS_BY_AGE: IndexSpec(SINKS, _sinks_by_age),
    },
    partition_of=_partition_of,
)
