"""One of the two servers as a case sees it: a raw connection that writes down what was asked and answered.

A case is a function that talks to one server. It runs on both, and the two transcripts are compared. It names things
with `name`, so requests are the same bytes on both sides but for what a server itself gave out (ids of producers,
topics and members), which is carried from its answers into its requests.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from uuid import UUID

from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.static.constants import EntityType

from tests.clients.raw_batches import CONTROL, batch, parse
from tests.clients.raw_kafka import ConnectionClosed, RawKafka, make
from tests.clients.raw_transactions import RawTransactions
from tests.compare.plain import Plain, field_names, nested, plain

HANG_S = 30.0

STARTING = frozenset({"coordinator_not_available", "coordinator_load_in_progress", "not_coordinator"})
OLD_RECORDS = {"retention.ms": "-1", "segment.ms": "1000000000000"}
"""Settings of every topic. The records of the cases have times of long ago, the markers of today: without these Apache
Kafka deletes the records, or begins a new segment with a marker, and a fetch reads of one segment alone."""

WRITING_MARKERS = frozenset({"concurrent_transactions"})
TRANSIENT = STARTING | WRITING_MARKERS
"""What Apache Kafka answers until something of its own has come about. Only there a request is sent again: sealog has
no such time (docs/compatibility.md), so from it such an answer is a difference."""


@cache
def _known_fields(api: str) -> frozenset[str]:
    found: set[str] = set()
    for version in schema_name_map[api]:
        found |= field_names(load_entity_schema(api, version, EntityType.request))
    return frozenset(found)


def fit(api: str, version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that this version of the request has fields for; a name that no version has is a mistake."""
    return _fit(api, load_entity_schema(api, version, EntityType.request), values)


def _fit(api: str, entity: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := set(values) - _known_fields(api):
        raise TypeError(f"{api} has no {sorted(unknown)} in any version")
    fitted: dict[str, Any] = {}
    kinds = nested(entity)
    for name, value in values.items():
        if name not in kinds:
            continue
        kind = kinds[name]
        if kind is not None and isinstance(value, list | tuple):
            value = [_fit(api, kind, each) if isinstance(each, Mapping) else each for each in value]
        elif kind is not None and isinstance(value, Mapping):
            value = _fit(api, kind, value)
        fitted[name] = value
    return fitted


def error_names(answer: Plain) -> set[str]:
    """Every error code in an answer."""
    if isinstance(answer, dict):
        found = {value for name, value in answer.items() if name.endswith("error_code")}
        return found.union(*(error_names(value) for value in answer.values()))
    if isinstance(answer, list):
        return set().union(*(error_names(each) for each in answer))
    return set()


class Step:
    """One request and its answer; both as plain data. `answer` is None until it came."""

    def __init__(self, api: str, version: int, request: Plain) -> None:
        self.api = api
        self.version = version
        self.request = request
        self.answer: Plain | None = None

    def __str__(self) -> str:
        return f"{self.api} v{self.version}"


class Side(RawKafka):
    """`call` writes a step down; everything under `quiet` is sent unwritten, to set a scene or to wait."""

    def __init__(self, server: str, bootstrap: str, case: str, *, log: "Side | None" = None) -> None:
        super().__init__(bootstrap, client_id="compare", timeout_s=HANG_S)
        self.server = server
        self.bootstrap = bootstrap
        self.case = case
        self.steps: list[Step] = [] if log is None else log.steps
        self.topics: dict[str, UUID] = {} if log is None else log.topics
        self.epochs: dict[str, list[int]] = {} if log is None else log.epochs
        """The leader epochs of topics, first to present."""
        self.ends: dict[tuple[str, int], int] = {} if log is None else log.ends
        """The offset behind the last record of the case per partition, as the answers to Produce told it."""
        self._others: list[Side] = []
        self._quiet: RawKafka | None = None

    @property
    def is_kafka(self) -> bool:
        return self.server == "kafka"

    @property
    def quiet(self) -> RawKafka:
        if self._quiet is None:
            self._quiet = RawKafka(self.bootstrap, client_id="quiet", timeout_s=HANG_S)
        return self._quiet

    def name(self, word: str) -> str:
        """A name that only this case uses, the same on both servers."""
        return f"{self.case}.{word}"

    def another(self) -> "Side":
        """One more connection that writes into the same transcript."""
        other = Side(self.server, self.bootstrap, self.case, log=self)
        self._others.append(other)
        return other

    def close(self) -> None:
        for other in (*self._others, *([self._quiet] if self._quiet else [])):
            other.close()
        super().close()

    def send(self, api: str, version: int, values: Mapping[str, Any]) -> Callable[[], Any]:
        values = fit(api, version, values)
        schema: Any = load_entity_schema(api, version, EntityType.request)
        step = Step(api, version, plain(make(schema, values)))
        self.steps.append(step)
        receive = super().send(api, version, values)

        def received() -> Any:
            try:
                answer = receive()
            except (TimeoutError, ConnectionClosed) as error:
                raise AssertionError(
                    f"{self.server}: no answer to step {len(self.steps) - 1}, {step}"
                ) from error
            step.answer = plain(answer)
            if api == "produce":
                self._note_ends(values, answer)
            return answer

        return received

    def _note_ends(self, values: Mapping[str, Any], answer: Any) -> None:
        written = {
            (number, part["index"]): part["records"]
            for number, data in enumerate(values["topic_data"])
            for part in data["partition_data"]
        }
        names = {str(topic_id): name for name, topic_id in self.topics.items()}
        for number, response in enumerate(answer.responses):
            name = getattr(response, "name", None) or names.get(str(getattr(response, "topic_id", "")), "")
            for part in response.partition_responses:
                if part.error_code is ErrorCode.none and (number, part.index) in written:
                    last = int.from_bytes(written[number, part.index][23:27], "big")
                    at = (name, int(part.index))
                    self.ends[at] = max(self.ends.get(at, 0), part.base_offset + last + 1)

    def call(self, api: str, version: int, **values: Any) -> Any:
        """One request and its answer, which is not one of Apache Kafka's passing ones."""
        return self.until(lambda _: True, api, version, **values)

    def until(self, condition: Callable[[Any], bool], api: str, version: int, **values: Any) -> Any:
        """Ask until the answer meets the condition; the last one is written down."""
        deadline = time.monotonic() + HANG_S
        while True:
            answer = self.send(api, version, values)()
            passing = self.is_kafka and error_names(self.steps[-1].answer) & TRANSIENT
            if condition(answer) and not passing:
                return answer
            assert time.monotonic() < deadline, f"{self.server}: {api} v{version} still answers {answer}"
            self.steps.pop()
            time.sleep(0.005)

    # -- scenes

    def topic(self, word: str = "topic", partitions: int = 1, **configs: str) -> str:
        """Create a topic of this case and wait until it can be written to; its id is in `topics`."""
        name = self.name(word)
        configs = OLD_RECORDS | configs
        request = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        response = self.quiet.call("create_topics", 7, topics=[request], timeout=15_000)
        assert response.topics[0].error_code is ErrorCode.none, response
        self.topics[name] = response.topics[0].topic_id
        for partition in range(partitions):
            self.wait_for_leader(name, partition)
        self.epochs[name] = [self.leader_epoch(name)]
        return name

    def wait_for_leader(self, topic: str, partition: int) -> None:
        deadline = time.monotonic() + HANG_S
        while self.quiet._list_offset(topic, partition, -1, False).error_code is not ErrorCode.none:
            assert time.monotonic() < deadline, f"no leader of {topic}-{partition}"
            time.sleep(0.01)

    def values(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Plain records, one batch each, unwritten."""
        for value in values:
            answer = self.quiet.produce(topic, {partition: batch([value])})[partition]
            assert answer.error_code is ErrorCode.none, answer

    def transactions(self, word: str = "txn", **options: Any) -> RawTransactions:
        return RawTransactions(self, self.name(word), **options)

    def settled(self, topic: str, partition: int = 0) -> None:
        """Wait until all that was written is decided and shows.

        Apache Kafka moves the last stable offset after its answer to EndTxn; sealog's high watermark is
        the durable end.
        """
        deadline = time.monotonic() + HANG_S
        while True:
            stable = self.quiet.list_offset(topic, partition, -1, committed=True)
            end = self.quiet.list_offset(topic, partition, -1)
            if stable == end >= self.ends.get((topic, partition), 0):
                return
            assert time.monotonic() < deadline, f"{topic}-{partition} stays undecided"
            time.sleep(0.005)

    def ended(self, transactional_id: str) -> None:
        """Wait until an end is over: Apache Kafka answers it before it has written the markers."""
        deadline = time.monotonic() + HANG_S
        while True:
            answer = self.quiet.call(
                "list_transactions",
                0,
                state_filters=["PrepareCommit", "PrepareAbort"],
                producer_id_filters=[],
            )
            if not any(each.transactional_id == transactional_id for each in answer.transaction_states):
                return
            assert time.monotonic() < deadline, f"{transactional_id} does not end"
            time.sleep(0.005)

    def leader_epoch(self, topic: str, partition: int = 0) -> int:
        answer = self.quiet._list_offset(topic, partition, -1, False)
        return int(answer.leader_epoch)

    def markers(self, topic: str, partition: int) -> list[int]:
        """The offsets of the transaction markers in a log, which sealog has none of."""
        if not self.is_kafka:
            return []
        if self.quiet._list_offset(topic, partition, -1, False).error_code is not ErrorCode.none:
            return []  # it is gone
        found: list[int] = []
        offset = self.quiet.list_offset(topic, partition, -2)
        end = self.quiet.list_offset(topic, partition, -1)
        while offset < end:
            for each in parse(self.quiet.fetch(topic, partition, offset, committed=False).records):
                if each.attributes & CONTROL:
                    found.append(each.base_offset)
                offset = each.last_offset + 1
        return found
