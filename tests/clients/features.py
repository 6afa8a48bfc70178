"""Which client showed which feature: gathered while the scenarios run, printed at their end, kept in the documents.

A scenario says what it shows by `@shows(feature)`; whose feature it is tells the client that it opened, or `client=`.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.systems.kafka import POM as KAFKA_POM
from tests.clients.fixtures import Opened

HERE = Path(__file__).parent
STREAMS = "Kafka Streams"

FEATURES = (
    "plain produce and fetch",
    "compression",
    "idempotent produce",
    "transactional produce",
    "read_committed",
    "fencing",
    "transactions v2 (KIP-890)",
    "consumer groups",
    "static members",
    "cooperative rebalancing",
    "groups of KIP-848",
    "offsets in transactions",
    "exactly-once loop",
    "riding over a kill",
)
PASSED, LACKS, FAILED, ABSENT = "passed", "lacks", "failed", "absent"
CANNOT = "left out: a client cannot do this"
"""The heading under which scenarios are left out for what their client lacks."""

_YES, _PART, _NO, _FAILED, _NOTHING = "yes", "in part", "lacks it", "FAILED", ""


def shows(feature: str, *, client: str | None = None) -> pytest.MarkDecorator:
    """`client`: for a scenario of one client that opens it in a way of its own."""
    assert feature in FEATURES, feature
    return pytest.mark.feature(feature, client=client)


class Table:
    """Outcomes per (client, feature)."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], set[str]] = defaultdict(set)

    def note(self, client: str, feature: str, outcome: str) -> None:
        self.outcomes[client, feature].add(outcome)

    def cell(self, client: str, feature: str) -> str:
        found = self.outcomes.get((client, feature), set())
        if FAILED in found:
            return _FAILED
        if PASSED in found:
            return _PART if LACKS in found else _YES
        return _NO if LACKS in found else _NOTHING

    def ran(self, client: str) -> bool:
        """Whether any scenario of it did, and its programs were there."""
        found = [outcomes for (one, _), outcomes in self.outcomes.items() if one == client]
        return any(PASSED in each for each in found) and not any(ABSENT in each for each in found)

    def rows(self, clients: Iterable[str]) -> Iterator[list[str]]:
        for feature in FEATURES:
            yield [feature, *(self.cell(client, feature) for client in clients)]


def note(table: Table, item: pytest.Item, report: pytest.TestReport) -> None:
    """Take down what the end of a test says of a client."""
    if not (report.when == "call" or (report.when == "setup" and not report.passed)):
        return
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
    if report.skipped and CANNOT not in reason and "program is missing" not in reason:
        return  # a deliberate difference: it says nothing of the client
    client = _client_of(item)
    for mark in item.iter_markers("feature"):
        name = mark.kwargs["client"] or (client and base_name(client))
        feature = (client is not None and client.shows) or mark.args[0]
        if name is None:
            continue
        if not report.skipped:
            table.note(name, feature, PASSED if report.passed else FAILED)
        elif CANNOT not in reason:
            table.note(name, feature, ABSENT)
        elif client is None or (feature, _lack(reason)) not in client.elsewhere:
            table.note(name, feature, LACKS)


def _lack(reason: str) -> str:
    return reason.split(f"{CANNOT}: ")[-1].split(":")[0]


def _client_of(item: pytest.Item) -> Any:
    for name in ("clients", "opened", "java"):
        opened = getattr(item, "funcargs", {}).get(name)
        if isinstance(opened, Opened):
            return opened.client
        kind = getattr(getattr(item, "callspec", None), "params", {}).get(name)
        if isinstance(kind, type):
            return kind
    return None


def base_name(client: Any) -> str:
    """The name of the client itself, of which there are variants for some scenarios."""
    from tests.clients.client_adapters import CLIENTS

    kind = client if isinstance(client, type) else type(client)
    return next(each.name for each in CLIENTS if issubclass(kind, each))


def client_names() -> list[str]:
    from tests.clients.client_adapters import CLIENTS

    return [*(client.name for client in CLIENTS), STREAMS]


def declared(table: Table) -> None:
    """What a client lacks so much that no scenario of it is there."""
    from tests.clients.client_adapters import CLIENTS

    for client in CLIENTS:
        for lacking in set(client.lacks) & set(FEATURES):
            table.note(client.name, lacking, LACKS)


def versions() -> dict[str, str]:
    """The version of each client that is tested, from where it is pinned."""
    go = dict(re.findall(r"^\s(\S+) v(\S+)$", (HERE / "drivers/go/go.mod").read_text(), re.MULTILINE))
    node = json.loads((HERE / "drivers/node/package.json").read_text())["dependencies"]
    java = re.findall(r"<version>(\d+\.\d+\.\d+)</version>", KAFKA_POM.read_text())[0]
    return {
        **{
            name: importlib.metadata.version(name) for name in ("kafka-python", "aiokafka", "confluent-kafka")
        },
        "kafka-clients": java,
        "franz-go": go["github.com/twmb/franz-go"],
        "sarama": go["github.com/IBM/sarama"],
        "kafka-go": go["github.com/segmentio/kafka-go"],
        "kafkajs": node["kafkajs"],
        STREAMS: java,
    }


def markdown(rows: Iterable[list[str]]) -> str:
    """The table of docs/compatibility.md: a line per feature, a column per client."""
    of = versions()
    names = client_names()
    lines = ["| feature | " + " | ".join(f"{name} {of[name]}" for name in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def documented(text: str) -> dict[tuple[str, str], str]:
    """The cells of the table in a document, by client and feature."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| feature | "))
    found = {}
    for line in lines[start + 2 : start + 2 + len(FEATURES)]:
        feature, *cells = (each.strip() for each in line.strip("|").split("|"))
        found |= {(name, feature): cell for name, cell in zip(client_names(), cells, strict=True)}
    return found


def disagreements(table: Table, text: str) -> Iterator[str]:
    """Where a document says otherwise of clients than what ran."""
    said = documented(text)
    for name in filter(table.ran, client_names()):
        for feature in FEATURES:
            ran, written = table.cell(name, feature), said[name, feature]
            if ran != written:
                yield f"{name}, {feature}: ran {ran!r}, documented {written!r}"
