"""Prints the table of APIs for docs/compatibility.md from the one that the broker serves by."""

from __future__ import annotations

from wire.apis import APIS

NOTES = {
    "Produce": "records of message format 2; one batch per partition and request",
    "Fetch": "every fetch is a full one: sessions are answered with session id 0",
    "ListOffsets": "earliest, latest by isolation level, by time, of the largest timestamp",
    "JoinGroup": "the classic protocol, also in groups of the new one; static members, cooperative rebalancing",
    "DescribeGroups": "classic groups",
    "ListGroups": "filters by state and type; groups that only hold offsets too",
    "CreateTopics": "replication factor 1",
    "DeleteRecords": "answered when the new log start is durable; the bytes stay until their segment goes",
    "OffsetForLeaderEpoch": "a leader epoch is a start of the broker",
    "AddPartitionsToTxn": "the first transaction protocol",
    "EndTxn": "from version 5 on transactions v2 (KIP-890)",
    "WriteTxnMarkers": "abort alone: ends the producer's whole transaction, no marker is written",
    "TxnOffsetCommit": "from version 5 on without AddOffsetsToTxn",
    "DescribeConfigs": "topics and the broker, with synonyms",
    "AlterConfigs": "topics and the broker",
    "DescribeLogDirs": "one folder; bytes of entries per partition; no free space",
    "CreatePartitions": "the new partitions are a range of their own",
    "DeleteGroups": "with the group's offsets",
    "IncrementalAlterConfigs": "topics and the broker",
    "OffsetDelete": "topics that no member of the group reads",
    "DescribeCluster": "one broker, its own controller",
    "DescribeProducers": "coordinator epoch -1: there are no markers",
    "DescribeTransactions": "partitions of the open transaction; no topic of group offsets",
    "ListTransactions": "the filter by duration gives running transactions alone",
    "ConsumerGroupHeartbeat": "the new group protocol (KIP-848); patterns from version 1 on",
    "ConsumerGroupDescribe": "groups of the new protocol",
    "DescribeTopicPartitions": "at most 2000 partitions per answer",
    "SealogLayout": "sealog's own: the ranges of a topic, seen, split, merged and sealed (design, section 11)",
    "SealogCluster": "sealog's own: the nodes of a cluster, seen and changed ([cluster.md](cluster.md))",
    "SealogGroupTransaction": "sealog's own: many producers' transactions end as one (design, section 7)",
}


def api_table() -> str:
    """Markdown, a line per API."""
    lines = ["| key | API | advertised | answered | note |", "|---|---|---|---|---|"]
    for api in APIS.values():
        advertised = f"{api.min_version}-{api.max_version}"
        answered = f"{api.min_served}-{api.max_version}"
        lines.append(f"| {api.key} | {api.name} | {advertised} | {answered} | {NOTES.get(api.name, '')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(api_table())
