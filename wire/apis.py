"""The table of the APIs served: their keys, names and version ranges.

Guarantee: this is the one place that says which versions exist here. Connection, codec and the ApiVersions
answer all read it; an API is served if and only if it has a row.

Source: "Supported API versions" of Kafka 4.2, and docs/design.md for what real clients ask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class ApiKey(IntEnum):
    """Kafka's numbers for the APIs served."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75
    SEALOG_GROUP_TRANSACTION = 20_000
    """Not Kafka's: `wire.group_transactions`. Its own number, far from Kafka's, which count up from 0."""
    SEALOG_LAYOUT = 20_001
    """Not Kafka's: `wire.layouts`."""
    SEALOG_CLUSTER = 20_002
    """Not Kafka's: `wire.cluster`."""


class ApiSpec(NamedTuple):
    """One API. Versions from `min_version` to `max_version` are advertised, from `min_served` on answered."""

    key: int
    name: str
    """As in Kafka's documentation, without "Request" or "Response"."""
    min_version: int
    max_version: int
    first_flexible: int
    """The first version with compact types and tagged fields (KIP-482)."""
    min_served: int

    @property
    def is_private(self) -> bool:
        """Whether it is sealog's own: its messages are not of Kafka's schemas."""
        return self.key >= ApiKey.SEALOG_GROUP_TRANSACTION

    @property
    def module(self) -> str:
        """The name in lower case with underscores, as the message schemas use it."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    def serves(self, version: int) -> bool:
        return self.min_served <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Whether a request of this version has the flexible header (version 2)."""
        return version >= self.first_flexible

    def response_header_is_flexible(self, version: int) -> bool:
        """Whether the response's header ends in tagged fields (version 1).

        Never for ApiVersions: a client that asked too high a version must be able to read the answer
        (KIP-511).
        """
        return version >= self.first_flexible and self.key != ApiKey.API_VERSIONS


def _spec(
    key: ApiKey,
    name: str,
    min_version: int,
    max_version: int,
    first_flexible: int,
    min_served: int | None = None,
) -> ApiSpec:
    served = min_version if min_served is None else min_served
    return ApiSpec(int(key), name, min_version, max_version, first_flexible, served)


_NEVER: Final = 1 << 15
"""As the first flexible version: there is none."""

_SPECS: Final = (
    # Some versions of librdkafka refuse a broker that does not advertise Produce 0, and never use it.
    _spec(ApiKey.PRODUCE, "Produce", 0, 13, 9, min_served=3),
    _spec(ApiKey.FETCH, "Fetch", 4, 18, 12),
    _spec(ApiKey.LIST_OFFSETS, "ListOffsets", 1, 11, 6),
    _spec(ApiKey.METADATA, "Metadata", 0, 13, 9),
    _spec(ApiKey.OFFSET_COMMIT, "OffsetCommit", 2, 10, 8),
    _spec(ApiKey.OFFSET_FETCH, "OffsetFetch", 1, 10, 6),
    _spec(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
    _spec(ApiKey.JOIN_GROUP, "JoinGroup", 0, 9, 6),
    _spec(ApiKey.HEARTBEAT, "Heartbeat", 0, 4, 4),
    _spec(ApiKey.LEAVE_GROUP, "LeaveGroup", 0, 5, 4),
    _spec(ApiKey.SYNC_GROUP, "SyncGroup", 0, 5, 4),
    _spec(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5),
    _spec(ApiKey.LIST_GROUPS, "ListGroups", 0, 5, 3),
    _spec(ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3),
    _spec(ApiKey.CREATE_TOPICS, "CreateTopics", 2, 7, 5),
    _spec(ApiKey.DELETE_TOPICS, "DeleteTopics", 1, 6, 4),
    _spec(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
    _spec(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 6, 2),
    _spec(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
    _spec(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3),
    _spec(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, 3),
    _spec(ApiKey.END_TXN, "EndTxn", 0, 5, 3),
    _spec(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2, 1),
    _spec(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, 3),
    _spec(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
    _spec(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
    _spec(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 4, 2),
    _spec(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
    _spec(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
    _spec(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
    _spec(ApiKey.OFFSET_DELETE, "OffsetDelete", 0, 0, _NEVER),
    _spec(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
    _spec(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
    _spec(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0),
    _spec(ApiKey.LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0),
    _spec(ApiKey.CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", 0, 1, 0),
    _spec(ApiKey.CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", 0, 1, 0),
    _spec(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0),
    _spec(ApiKey.SEALOG_GROUP_TRANSACTION, "SealogGroupTransaction", 0, 0, _NEVER),
    _spec(ApiKey.SEALOG_LAYOUT, "SealogLayout", 0, 0, _NEVER),
    _spec(ApiKey.SEALOG_CLUSTER, "SealogCluster", 0, 0, _NEVER),
)

APIS: Final[Mapping[int, ApiSpec]] = MappingProxyType({spec.key: spec for spec in _SPECS})
"""Every API served, by key, in the order of keys."""
