"""The broker's configuration: a TOML file, typed, every unknown name refused.

Names follow Kafka's broker configs where one means the same. Sizes in bytes, times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]

MIB = 1024 * 1024


class ConfigError(Exception):
    """A configuration that cannot be used; the message names the file and the setting."""


class Limits(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Table `[limits]`: everything that grows has one; at a limit a client hears a Kafka error that says so."""

    connections: Positive = 4_000
    request_bytes: Positive = 100 * MIB
    large_requests_bytes: Positive = 1024 * MIB
    """Of all requests of more than 4 MiB that arrive or are worked on together; the one above it is not read."""
    connection_queued_bytes: Positive = 16 * MIB
    """Requests taken in and answers not yet sent, per connection; above it the socket is not read."""
    connection_pending_requests: Positive = 1_000
    fetch_bytes: Positive = 55 * MIB
    fetch_answer_bytes: Positive = 4 * MIB
    """Where a fetch's answer ends though its client would take more, unless `fetch.min.bytes` asks for it: what passes
    through memory in small pieces stays in the processor's caches, and the next fetch brings the rest."""
    read_ahead_bytes: NotNegative = 64 * MIB
    """What is read, for all clients together, before they ask for it."""
    partitions: Positive = 20_000
    partitions_per_topic: Positive = 10_000
    open_transactions: Positive = 20_000
    transactional_ids: Positive = 1_000_000
    producers_per_topic: Positive = 200_000
    ranges_per_topic: Positive = 256
    """Each range is a file and a flusher of its own."""
    compaction_keys: Positive = 1_000_000
    """One compaction learns so many keys and takes the rest next time: about 150 bytes each, in its own process."""
    groups: Positive = 10_000
    group_members: Positive = 2_000
    offset_metadata_bytes: Positive = 4_096


class BrokerConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Everything `sealog serve` can be told. The defaults serve one machine."""

    data: str = "sealog-data"
    listen: str = "127.0.0.1:9092"
    advertised_listener: str | None = None
    """HOST:PORT that clients are sent to; the listening address if not given."""
    node_id: NotNegative = 1
    broker_rack: str = ""
    """Where this node stands: replicas are spread over racks, and consumers of a rack read there. Empty: nowhere."""
    default_replication_factor: Positive = 3
    """Of topics that are created without one; where there are fewer nodes, as many as there are."""
    peers: list[str] = msgspec.field(default_factory=list)
    """ID@HOST:PORT of every node of the cluster, this one too, where they reach each other. Empty: a broker alone."""
    groups: Literal["disk", "ranges"] = "disk"
    """What a cluster replicates: the leader's disk through one group, or each range through a group of its own, with
    leaders on all nodes (opt-in: docs/raft.md, section 8, says what it does not do yet). The same on all nodes."""
    cluster_secret_file: str = ""
    """What all nodes of a cluster know and nobody else does; empty: it is in $SEALOG_CLUSTER_SECRET."""
    election_timeout_ms: Positive = 1_000
    """A leader that was not heard for one to two of these is replaced. The same on all nodes."""
    num_partitions: Positive = 1
    auto_create_topics: bool = True
    message_max_bytes: Positive = 1_048_588
    segment_bytes: Annotated[int, Meta(ge=1 << 16, le=(1 << 31) - 1)] = 1 << 30
    retention_ms: Annotated[int, Meta(ge=-1)] = -1
    """This and the next seven: of topics that set nothing else. -1: no limit."""
    retention_bytes: Annotated[int, Meta(ge=-1)] = -1
    """Per partition; a topic's sealed segments together may have so much for each of its partitions."""
    segment_ms: Positive = 604_800_000
    """The age at which a segment is sealed."""
    cleanup_policy: Annotated[list[Literal["delete", "compact"]], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: ["delete"]
    )
    delete_retention_ms: NotNegative = 86_400_000
    min_cleanable_dirty_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.5
    min_compaction_lag_ms: NotNegative = 0
    max_compaction_lag_ms: Positive = (1 << 63) - 1
    flush_linger_ms: NotNegative = 20
    """How long written bytes that nobody waits for may stay unflushed."""
    flush_threads: Positive = 16
    """At most so many files are flushed at once; threads start as they are needed."""
    transaction_max_timeout_ms: Positive = 900_000
    transaction_two_phase_commit: bool = False
    """Let producers ask for two-phase commit (KIP-939): no deadline ends their transactions."""
    transactional_id_expiration_ms: Positive = 604_800_000
    """How long a transactional id is remembered that nobody uses."""
    transaction_remove_expired_transaction_cleanup_interval_ms: Positive = 3_600_000
    """How often such ids are looked for."""
    sink_expiration_ms: Positive = 2_592_000_000
    """How long the last batch of a sink (group transactions) is remembered after its commit; looked for as often."""
    producer_id_expiration_ms: Positive = 86_400_000
    group_min_session_timeout_ms: Positive = 1_000
    group_max_session_timeout_ms: Positive = 1_800_000
    group_initial_rebalance_delay_ms: NotNegative = 0
    group_consumer_session_timeout_ms: Positive = 45_000
    """The `group_consumer_` settings are of groups of the new protocol (KIP-848)."""
    group_consumer_heartbeat_interval_ms: Positive = 5_000
    """The longest; while there are few members they are asked to come more often."""
    group_consumer_assignment_interval_ms: NotNegative = 1_000
    """The longest between two assignments of one group; a small one is assigned anew at once."""
    group_consumer_assignors: Annotated[list[Literal["uniform", "range"]], Meta(min_length=1)] = (
        msgspec.field(default_factory=lambda: ["uniform", "range"])
    )
    """The first is that of groups whose members name none."""
    group_consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"] = (
        "bidirectional"
    )
    """Which way a group with members may change its protocol."""
    offsets_retention_minutes: Positive = 10_080
    """How long a group's offsets outlive its last member."""
    offsets_retention_check_interval_ms: Positive = 600_000
    layout_automatic: bool = False
    """Let the policy split and merge the ranges of topics; without it, it only advises (`sealog layout --plan`)."""
    layout_check_interval_ms: Positive = 5_000
    retention_check_interval_ms: Positive = 300_000
    """How often it is looked for segments to delete or to seal by their age."""
    compaction_interval_ms: Positive = 15_000
    """How often it is looked for topics to compact (cleanup.policy=compact)."""
    snapshot_log_bytes: Positive = 4 * MIB
    """The metadata store writes a snapshot when its log has grown by this much."""
    limits: Limits = Limits()


def load(path: str | None, **overrides: object) -> BrokerConfig:
    """Read a TOML file (or none) and lay command-line values that are not None over it.

    Raises:
        ConfigError: the file cannot be read, or a name or a value in it is wrong.
    """
    values: dict[str, object] = {}
    if path is not None:
        try:
            values = msgspec.toml.decode(Path(path).read_bytes(), type=dict[str, object])
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        config = msgspec.convert(values, BrokerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path or 'command line'}: {error}") from error
    if config.group_consumer_heartbeat_interval_ms >= config.group_consumer_session_timeout_ms:
        raise ConfigError(
            f"{path or 'command line'}: group_consumer_heartbeat_interval_ms must be below "
            "group_consumer_session_timeout_ms"
        )
    parse_address(config.listen)
    parse_peers(config.peers)
    if config.groups == "ranges" and not config.peers:
        raise ConfigError(f'{path or "command line"}: groups = "ranges" is of a cluster, which needs peers')
    if config.advertised_listener is not None:
        parse_address(config.advertised_listener)
    return config


def parse_peers(peers: Iterable[str]) -> dict[int, tuple[str, int]]:
    """{id: (host, port)} of "id@host:port" each.

    Raises:
        ConfigError: one is not of that form, or is named twice.
    """
    found: dict[int, tuple[str, int]] = {}
    for peer in peers:
        number, at, address = peer.strip().replace("=", "@", 1).partition("@")
        if not at or not number.isdigit():
            raise ConfigError(f"{peer!r} is not ID@HOST:PORT")
        if int(number) in found:
            raise ConfigError(f"node {number} is named twice among the peers")
        found[int(number)] = parse_address(address)
    return found


def parse_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port"; an IPv6 host stands in brackets.

    Raises:
        ConfigError: it is not of that form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{address!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
