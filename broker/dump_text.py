"""Objects of `sealog dump` as lines for people. Nothing that was in a file reaches the terminal unescaped."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from broker.dump_segment import Item

SHOWN_CHARACTERS = 200
LISTED_RANGES = 10


def line(item: Item) -> str:
    """One object as one line."""
    return _LINES[item["kind"]](item)


def _time(ms: int) -> str:
    if not 0 <= ms < 253_402_300_800_000:  # year 10000
        return f"{ms} ms"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def safe(value: Any) -> str:
    """Bytes or text as it can be printed: quoted, escaped, and not longer than a line or two."""
    if value is None:
        return "null"
    text = json.dumps(value if isinstance(value, str) else value.get("base64", ""))
    if len(text) > SHOWN_CHARACTERS:
        text = f'{text[:SHOWN_CHARACTERS]}..." ({len(text)} characters)'
    return text if isinstance(value, str) else f"base64:{text}"


def _segment(item: Item) -> str:
    name = f"topic {item['topic']}" if item["topic"] is not None else f"topic id {item['topic_id']}"
    state = "sealed, settled" if item["settled"] else item["state"].lower()
    generation = f" generation {item['generation']}" if item["generation"] else ""
    parents = ", ".join(map(str, item["parents"])) or "none"
    place = f", {_place(item['log'])}" if item["log"] is not None else ""
    return (
        f"{item['path']}: {name}, segment {item['segment']}{generation}, partitions {item['first']}-{item['last']}, "
        f"{state}, {item['size_bytes']} bytes, term {item['term']}, made {_time(item['created_ms'])}, "
        f"parents {parents}{place}"
    )


def _place(log: Item) -> str:
    """In the log of a replicated range."""
    last = f" to {log['last_index']}" if log["last_index"] is not None else " on"
    return f"entries {log['first_index']}{last} after term {log['previous_term']}, {_members(log['members'])}"


def _members(members: Item | None) -> str:
    if members is None:
        return "members unknown"
    learners = f" and learners {members['learners']}" if members["learners"] else ""
    return f"voters {members['voters']}{learners}"


def _entry(item: Item) -> str:
    says = item["says"]
    if says == "members":
        says = _members(item["members"])
    elif says == "roll":
        says = f"goes on in segment {item['child']}"
    return f"  @{item['position']} entry {item['index']} term {item['term']}: {says}"


def _partition(item: Item) -> str:
    aborted = item["aborted"]
    outcomes = "outcomes unknown"
    if aborted is not None:
        ranges = [f"{first}-{last} of {producer}" for producer, first, last in aborted[:LISTED_RANGES]]
        more = [f"{len(aborted) - LISTED_RANGES} more"] if len(aborted) > LISTED_RANGES else []
        outcomes = f"aborted {', '.join(ranges + more) or 'none'}"
    return (
        f"  partition {item['partition']}: offsets {item['start_offset']} to {item['end_offset']} (excluded), "
        f"{item['size_bytes']} bytes in {item['runs']} runs, terms {item['terms']}, "
        f"{item['producers']} producers, latest {_time(item['max_timestamp_ms'])}, {outcomes}"
    )


def _batch(item: Item) -> str:
    parts = [
        f"  @{item['position']} partition {item['partition']} offsets {item['base_offset']}-{item['last_offset']}",
        f"{item['records']} records",
        f"{item['size_bytes']} bytes",
        _time(item["max_timestamp_ms"]),
        f"term {item['term']}",
    ]
    if item["compression"] != "none":
        parts.append(item["compression"])
    if item["producer_id"] >= 0:
        parts.append(
            f"producer {item['producer_id']} epoch {item['producer_epoch']} sequence {item['base_sequence']}"
        )
    if item["index"] is not None:
        parts.append(f"entry {item['index']}")
    if item["outcome"] is not None:
        parts.append(f"transaction {item['txn_seq']}: {item['outcome']}")
    return ", ".join(parts)


def _record(item: Item) -> str:
    headers = "".join(f" {safe(name)}={safe(value)}" for name, value in item["headers"])
    return (
        f"    {item['offset']} {_time(item['timestamp_ms'])} key {safe(item['key'])} value {safe(item['value'])}"
        + (f" headers{headers}" if headers else "")
    )


def _outcomes(item: Item) -> str:
    lines = [
        f"{item['path']}: outcomes of topic {item['topic']}, segment {item['segment']}, "
        f"generation {item['generation']}"
    ]
    for number, found in item["partitions"].items():
        ranges = ", ".join(f"{first}-{last} of {producer}" for producer, first, last in found["aborted"])
        lines.append(
            f"  partition {number}: offsets {found['first']} to {found['end']}, aborted {ranges or 'none'}"
        )
    return "\n".join(lines)


def _metadata(item: Item) -> str:
    return f"{item['path']}: {item['file']} {item['number']} of the metadata store"


def _put(item: Item) -> str:
    return f"  @{item['position']} {item['lsn']} put {json.dumps(item['key'])} {json.dumps(item['value'])}"


def _delete(item: Item) -> str:
    return f"  @{item['position']} {item['lsn']} delete {json.dumps(item['key'])}"


def _problem(item: Item) -> str:
    return f"{item['path']} at byte {item['position']}: {item['reason']}"


_LINES = {
    "segment": _segment,
    "partition": _partition,
    "batch": _batch,
    "record": _record,
    "entry": _entry,
    "outcomes": _outcomes,
    "metadata": _metadata,
    "put": _put,
    "delete": _delete,
    "problem": _problem,
}
