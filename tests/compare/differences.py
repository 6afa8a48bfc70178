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
    *(
        Difference(
            reason="there is no compaction yet, so keys are not required",
            api="produce",
            field=field,
            kafka=kafka,
            sealog=sealog,
            case="produce_without_a_key_to_a_compacted_topic.*",
        )
        for field, kafka, sealog in (("error_code", "invalid_record", "none"), ("base_offset", -1, 0))
    ),
    *(
        Difference(
            reason="every transactional batch is held to its transactional id, not the first of a transaction alone",
            api="produce",
            field=field,
            kafka=kafka,
            sealog=sealog,
            case="produce_under_another_name.*",
        )
        for field, kafka, sealog in ()
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

DIFFERENCES: tuple[Difference, ...] = _PRODUCE + _FETCH + _LIST_OFFSETS
