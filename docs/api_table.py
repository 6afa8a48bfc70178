"""Prints the table of APIs for docs/compatibility.md from the one that the broker serves by."""

from __future__ import annotations

from wire.apis import APIS

NOTES = {
    "Produce": "records of message format 2; one batch per partition and request",
    "Fetch": "every fetch is a full one: sessions are answered with session id 0",
    "ListOffsets": "earliest, latest by isolation level, by time, of the largest timestamp",
    "CreateTopics": "replication factor 1",
    "JoinGroup": "the classic protocol; static members, cooperative rebalancing",
    "AddPartitionsToTxn": "the first transaction protocol",
    "EndTxn": "from version 5 on transactions v2 (KIP-890)",
    "TxnOffsetCommit": "from version 5 on without AddOffsetsToTxn",
    "DescribeConfigs": "topics and the broker",
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
