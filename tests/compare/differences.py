"""Where sealog answers otherwise than Apache Kafka on purpose, and why. One that no case meets fails the run."""

import re
from dataclasses import dataclass
from typing import Any

from tests.compare.compared import MISSING, Found


class _Any:
    def __repr__(self) -> str:
        return "ANY"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


ANY = _Any()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`field`: the end of the path, without what is in brackets; `case`: a pattern for the names of cases."""

    reason: str
    api: str
    field: str
    kafka: Any
    sealog: Any
    case: str = ".*"

    def covers(self, found: Found) -> bool:
        path = re.sub(r"\[[^]]*\]", "", found.path)
        return (
            found.api == self.api
            and (path == self.field or path.endswith(f".{self.field}"))
            and re.fullmatch(self.case, found.case) is not None
            and bool(self.kafka == found.kafka)
            and bool(self.sealog == found.sealog)
        )


_PRODUCE = (
    Difference(
        reason="the append time of a repeated batch: its own largest timestamp there, under every setting; here what "
        "the first answer said, none under CreateTime",
        api="produce",
        field="log_append_time",
        kafka="<moment>",
        sealog=None,
    ),
    Difference(
        reason="which records of a batch are at fault is not told one by one; the batch's error is the same",
        api="produce",
        field="record_errors",
        kafka=ANY,
        sealog=MISSING,
    ),
    Difference(
        reason="a batch of a producer without an epoch is malformed before it is stale",
        api="produce",
        field="error_code",
        kafka="invalid_producer_epoch",
        sealog="invalid_record",
        case="produce_idempotent.*",
    ),
    Difference(
        reason="bytes that are cut off, or a batch of no records, are corrupt; no batch is only what is empty",
        api="produce",
        field="error_code",
        kafka="invalid_record",
        sealog="corrupt_message",
        case="produce_broken_batches.*",
    ),
    Difference(
        reason="a compression that does not exist is no fault of the server",
        api="produce",
        field="error_code",
        kafka="unknown_server_error",
        sealog="unsupported_compression_type",
        case="produce_broken_batches.*",
    ),
    Difference(
        reason="a transactional batch without a producer id is malformed, whoever sends it",
        api="produce",
        field="error_code",
        kafka="transactional_id_authorization_failed",
        sealog="invalid_record",
        case="produce_broken_batches.*",
    ),
    Difference(
        reason="what is malformed is refused before any log is asked, so that none has a start to tell",
        api="produce",
        field="log_start_offset",
        kafka=0,
        sealog=-1,
        case="produce_(broken_batches|idempotent|without_a_key).*",
    ),
    *(
        Difference(
            reason="what stands behind a batch and is none is refused, not dropped without a word",
            api="produce",
            field=field,
            kafka=kafka,
            sealog=sealog,
            case="produce_with_dirt_behind.*",
        )
        for field, kafka, sealog in (
            ("error_code", "none", "invalid_record"),
            ("base_offset", 0, -1),
            ("log_start_offset", 0, -1),
        )
    ),
)

_TRANSACTIONS = (
    *(
        Difference(
            reason="who comes with an identity had a transactional id that expired, and maybe a successor of the same "
            "name: it has to start anew, as one that was fenced (KAFKA-18019)",
            api="init_producer_id",
            field=field,
            kafka=kafka,
            sealog=sealog,
            case="init_with_the_identity_of_a_forgotten_id.*",
        )
        for field, kafka, sealog in (
            ("error_code", "none", "invalid_producer_epoch"),
            ("error_code", "none", "producer_fenced"),
            ("producer_id", ANY, -1),
            ("producer_epoch", 0, -1),
        )
    ),
    *(
        Difference(
            reason="offsets of a group that was not added to the transaction are refused: there no end reaches them",
            api="txn_offset_commit",
            field="partitions.error_code",
            kafka="none",
            sealog=sealog,
            case="offsets_in_the_wrong_state.*",
        )
        for sealog in ("invalid_txn_state", "transaction_abortable")
    ),
    Difference(
        reason="under transactions v2 the first commit that nothing came for is asked to come again: the Java client's "
        "sender may let it overtake its records, and takes INVALID_TXN_STATE for its producer's end",
        api="end_txn",
        field="error_code",
        kafka="invalid_txn_state",
        sealog="coordinator_load_in_progress",
        case="end_of_nothing.*",
    ),
    Difference(
        reason="a commit after an abort of the broker's own fences, as in later versions of Kafka (KAFKA-20785)",
        api="end_txn",
        field="error_code",
        kafka="invalid_txn_state",
        sealog="producer_fenced",
        case="ends_and_repeats.*",
    ),
)

_FETCH = (
    Difference(
        reason="there are no fetch sessions: every fetch is a full one",
        api="fetch",
        field="session_id",
        kafka=ANY,
        sealog=0,
        case="fetch_sessions.*",
    ),
    *(
        Difference(
            reason="the leader is the one broker there is, so that a stale client has nobody else to go to",
            api="fetch",
            field=field,
            kafka=ANY,
            sealog=sealog,
            case="fetch_with_leader_epochs.*",
        )
        for field, sealog in (
            ("current_leader.leader_id", -1),
            ("current_leader.leader_epoch", -1),
            ("node_endpoints", MISSING),
        )
    ),
)

_LIST_OFFSETS = tuple(
    Difference(
        reason="the largest timestamp is one of records that are there; there it is a deleted one's",
        api="list_offsets",
        field=field,
        kafka=ANY,
        sealog=-1,
        case="deleted_records.*",
    )
    for field in ("timestamp", "offset", "leader_epoch")
)

_GROUPS = (
    Difference(
        reason="the address without the slash that Java puts before it",
        api="describe_groups",
        field="members.client_host",
        kafka="/127.0.0.1",
        sealog="127.0.0.1",
    ),
)

_API_VERSIONS = (
    Difference(
        reason="APIs that only one of them has",
        api="api_versions",
        field="api_keys",
        kafka=ANY,
        sealog=MISSING,
    ),
    Difference(
        reason="sealog's own APIs: group transactions, and the layout of topics",
        api="api_versions",
        field="api_keys",
        kafka=MISSING,
        sealog=ANY,
    ),
    Difference(
        reason="InitProducerId 6 (two-phase commit) is not released there",
        api="api_versions",
        field="api_keys.max_version",
        kafka=5,
        sealog=6,
    ),
    Difference(
        reason="DescribeLogDirs 5 asks for log folders that are cordoned off; there are none",
        api="api_versions",
        field="api_keys.max_version",
        kafka=5,
        sealog=4,
    ),
    *(
        Difference(
            reason="features that are not there (share groups, Streams groups, KRaft)",
            api="api_versions",
            field=field,
            kafka=ANY,
            sealog=MISSING,
        )
        for field in ("supported_features", "finalized_features")
    ),
)

_METADATA = (
    *(
        Difference(
            reason="a topic without a name or an id is unknown, not a fault of the server",
            api="metadata",
            field=field,
            kafka=ANY,
            sealog=ANY,
            case="metadata_by_no_id.*",
        )
        for field in ("brokers", "cluster_id", "controller_id", "error_code", "topics")
    ),
    Difference(
        reason="a topic without a name is unknown, not a fault of the server",
        api="describe_topic_partitions",
        field="topics.error_code",
        kafka="unknown_server_error",
        sealog="unknown_topic_or_partition",
    ),
)

_TOPICS = (
    Difference(
        reason="settings of replication and of tiered storage do not exist",
        api="create_topics",
        field="topics.configs",
        kafka=ANY,
        sealog=MISSING,
    ),
    Difference(
        reason="a topic that is not created has no id",
        api="create_topics",
        field="topics.topic_id",
        kafka=ANY,
        sealog=None,
        case="created_topics_in_appearance.*",
    ),
)

_SETTINGS = tuple(
    Difference(
        reason=reason, api="create_topics", field=f"topics.configs.{field}", kafka=kafka, sealog=sealog
    )
    for field, kafka, sealog, reason in (
        ("value", "60000", "0", "files of what was deleted go at once"),
        ("value", "false", "true", "segments are preallocated"),
        ("value", "604800000", "-1", "by default nothing is deleted by age"),
        ("config_source", 3, 5, "min.insync.replicas is a default, not a setting of the cluster"),
    )
)

_BROKER_SETTINGS = (
    Difference(
        reason="an operation that does not exist is no fault of the server",
        api="incremental_alter_configs",
        field="responses.error_code",
        kafka="unknown_server_error",
        sealog="invalid_request",
        case="incrementally_altered_configs.*",
    ),
    Difference(
        reason="a setting that can be changed here while the broker runs",
        api="describe_configs",
        field="results.configs.read_only",
        kafka=True,
        sealog=False,
        case="described_settings_of_the_broker.*",
    ),
    Difference(
        reason="data is kept for ever unless somebody sets how long; Apache Kafka's default is log.retention.hours",
        api="describe_configs",
        field="results.configs.value",
        kafka=None,
        sealog="-1",
        case="described_settings_of_the_broker.*",
    ),
    Difference(
        reason="log.retention.ms has a default of its own (see above)",
        api="describe_configs",
        field="results.configs.synonyms",
        kafka=MISSING,
        sealog=ANY,
        case="described_settings_of_the_broker.*",
    ),
)

_LOG_DIRS = tuple(
    Difference(
        reason="the room on the disk is not told",
        api="describe_log_dirs",
        field=field,
        kafka="<bytes>",
        sealog=-1,
    )
    for field in ("results.total_bytes", "results.usable_bytes")
)

_PRODUCERS = tuple(
    Difference(
        reason=reason, api="describe_producers", field=f"active_producers.{field}", kafka=kafka, sealog=sealog
    )
    for field, kafka, sealog, reason in (
        (
            "last_timestamp",
            ANY,
            ANY,
            "when the producer wrote last, by the broker's clock; there its record's",
        ),
        ("producer_epoch", 1, 0, "no marker of the end is written, which would carry the next epoch"),
        ("last_sequence", -1, 0, "no marker of the end is written, so the last record's sequence stands"),
        ("coordinator_epoch", 0, -1, "there are no markers, whose coordinator this would be"),
    )
)

_CONSUMER_GROUPS = (
    *(
        Difference(
            reason="a classic member that a group of the new protocol refuses hears its own id again, and what is "
            "wrong with its subscription",
            api="join_group",
            field=field,
            kafka=kafka,
            sealog=sealog,
            case="a_group_of_the_new_protocol_seen_by_others.*",
        )
        for field, kafka, sealog in (
            ("error_code", "unknown_server_error", "inconsistent_group_protocol"),
            ("member_id", "", ANY),
        )
    ),
    Difference(
        reason="a topic pattern is resolved by the heartbeat that brings it, there in the background",
        api="consumer_group_heartbeat",
        field="member_epoch",
        kafka=1,
        sealog=2,
        case="first_heartbeats_that_are_refused-v1",
    ),
    Difference(
        reason="few members are asked to come often; the configured interval is the longest",
        api="consumer_group_heartbeat",
        field="heartbeat_interval",
        kafka=5000,
        sealog=500,
    ),
    Difference(
        reason="the address without the slash that Java puts before it",
        api="consumer_group_describe",
        field="members.client_host",
        kafka="/127.0.0.1",
        sealog="127.0.0.1",
    ),
)

DIFFERENCES: tuple[Difference, ...] = (
    *_PRODUCE,
    *_TRANSACTIONS,
    *_FETCH,
    *_LIST_OFFSETS,
    *_GROUPS,
    *_CONSUMER_GROUPS,
    *_API_VERSIONS,
    *_METADATA,
    *_TOPICS,
    *_SETTINGS,
    *_BROKER_SETTINGS,
    *_LOG_DIRS,
    *_PRODUCERS,
)


def on_purpose(found: Found) -> list[Difference]:
    """The deliberate differences that cover what was found; none, where it is not one."""
    return [difference for difference in DIFFERENCES if difference.covers(found)]
