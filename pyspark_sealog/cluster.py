"""A small blocking Kafka client: where partitions live, which offsets they have, and calls that outlive a broker's
restart.

Guarantee: every call either answers or raises SealogError or KafkaError within the time that the settings allow; what
may pass (a broker that restarts, a leader that moved) is tried again until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from pyspark_sealog.connection import Connection
from pyspark_sealog.errors import SealogError
from pyspark_sealog.settings import ClientSettings
from wire import private_api
from wire.apis import ApiKey
from wire.errors import ErrorCode, KafkaError

EARLIEST: Final = -2
LATEST: Final = -1
_TRANSACTION: Final = 1
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0

Answer = TypeVar("Answer")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Cluster:
    """Connections to the brokers, opened when needed. Not for several threads."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._checked = False

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- topics and offsets

    def topics(self) -> list[str]:
        """The names of all topics."""
        answer = self.retrying("listing topics", lambda: self._metadata(None, create=False))
        return sorted(topic.name for topic in answer.topics if topic.error_code is ErrorCode.none)

    def partitions(self, topics: Iterable[str], *, create: bool = False) -> dict[str, int]:
        """How many partitions each of these topics has; topics that do not exist are missing."""
        names = sorted(set(topics))

        def ask() -> dict[str, int]:
            counts = {}
            for topic in self._metadata(names, create=create).topics:
                if topic.error_code is ErrorCode.none:
                    counts[topic.name] = len(topic.partitions)
                elif topic.error_code is not ErrorCode.unknown_topic_or_partition:
                    raise KafkaError(topic.error_code, f"topic {topic.name!r}")
                elif create:
                    raise KafkaError(topic.error_code, f"topic {topic.name!r} is being created")
            return counts

        return self.retrying("looking up topics", ask, give_up_on_unknown_topic=False) if names else {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic, unless it exists. Raises KafkaError."""

        def ask() -> None:
            topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
            answer = self.bootstrap().call(ApiKey.CREATE_TOPICS, topics=[topic], timeout=30_000)
            made = answer.topics[0]
            if made.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                raise KafkaError(made.error_code, made.error_message)

        self.retrying(f"creating topic {name!r}", ask)

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Offsets by timestamp in milliseconds, EARLIEST or LATEST; -1 where no record is that late.

        LATEST is the last stable offset under read_committed.
        """
        return self.retrying("listing offsets", lambda: self._list_offsets(wanted)) if wanted else {}

    def _list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for address, parts in self._by_leader(wanted).items():
            topics: dict[str, list[dict[str, int]]] = {}
            for part in parts:
                one = {"partition_index": part.partition, "timestamp": wanted[part]}
                topics.setdefault(part.topic, []).append(one)
            answer = self.connection(address).call(
                ApiKey.LIST_OFFSETS,
                replica_id=-1,
                isolation_level=self.settings.isolation_level,
                topics=[{"name": name, "partitions": of_topic} for name, of_topic in topics.items()],
            )
            for topic in answer.topics:
                for one in topic.partitions:
                    part = TopicPartition(topic.name, one.partition_index)
                    if one.error_code is not ErrorCode.none:
                        raise KafkaError(one.error_code, f"offsets of {part}")
                    found[part] = one.offset
        return found

    def delete_records(self, part: TopicPartition, offset: int) -> None:
        """Let the partition begin at this offset. Raises KafkaError."""

        def ask() -> None:
            asked = {"partition_index": part.partition, "offset": offset}
            answer = self.connection(self.leader(part)).call(
                ApiKey.DELETE_RECORDS, topics=[{"name": part.topic, "partitions": [asked]}], timeout=30_000
            )
            one = answer.topics[0].partitions[0]
            if one.error_code is not ErrorCode.none:
                raise KafkaError(one.error_code, f"deleting the records of {part} below {offset}")

        self.retrying(f"deleting records of {part}", ask)

    # -- where to ask

    def leader(self, part: TopicPartition) -> tuple[str, int]:
        """Address of the partition's leader; looked up once, and again after an error."""
        if part not in self._leaders:
            self._metadata([part.topic], create=False)
        if part not in self._leaders:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{part} does not exist")
        return self._brokers[self._leaders[part]]

    def _by_leader(self, parts: Iterable[TopicPartition]) -> dict[tuple[str, int], list[TopicPartition]]:
        missing = {part.topic for part in parts if part not in self._leaders}
        if missing:
            self._metadata(sorted(missing), create=False)
        by_leader: dict[tuple[str, int], list[TopicPartition]] = {}
        for part in parts:
            by_leader.setdefault(self.leader(part), []).append(part)
        return by_leader

    def coordinator(self, transactional_id: str) -> tuple[str, int]:
        answer = self.bootstrap().call(
            ApiKey.FIND_COORDINATOR, key_type=_TRANSACTION, coordinator_keys=[transactional_id]
        )
        found = answer.coordinators[0]
        if found.error_code is not ErrorCode.none:
            raise KafkaError(found.error_code, found.error_message)
        return found.host, found.port

    def _metadata(self, topics: Sequence[str] | None, *, create: bool) -> Any:
        answer = self.bootstrap().call(
            ApiKey.METADATA,
            topics=None if topics is None else [{"name": name} for name in topics],
            allow_auto_topic_creation=create,
        )
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            for one in topic.partitions:
                if one.leader_id in self._brokers:
                    self._leaders[TopicPartition(topic.name, one.partition_index)] = one.leader_id
        return answer

    # -- calls

    def ask(self, request: private_api.Request) -> Any:
        """One group transaction call, tried again while the broker is away: all of them may be repeated."""
        return self.retrying(
            f"group transaction of {getattr(request, 'sink', '')!r}",
            lambda: self.bootstrap().ask(ApiKey.SEALOG_GROUP_TRANSACTION, request),
        )

    def retrying(
        self, what: str, call: Callable[[], Answer], *, give_up_on_unknown_topic: bool = True
    ) -> Answer:
        """The answer of `call`, which is made again after errors that may pass, until the time is up."""
        deadline = time.monotonic() + self.settings.api_timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return call()
            except OSError as error:
                cause: Exception = error
            except KafkaError as error:
                unknown = error.code is ErrorCode.unknown_topic_or_partition
                if not error.retriable or (unknown and give_up_on_unknown_topic):
                    raise
                cause = error
            self.forget()
            if time.monotonic() + pause_s > deadline:
                raise SealogError(
                    f"{what}: no success within {self.settings.api_timeout_s:g} s "
                    f"(kafka.default.api.timeout.ms) at {self.settings.servers_text}: {cause}"
                ) from cause
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def forget(self) -> None:
        """Close everything and look everything up again when it is needed."""
        self.close()
        self._leaders.clear()

    def bootstrap(self) -> Connection:
        """Any broker that answers. Raises OSError when none does, SealogError when it is not sealog."""
        failures = []
        for address in (*self._connections, *self.settings.servers):
            try:
                connection = self.connection(address)
            except OSError as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
                continue
            if not self._checked:
                self._check(connection)
            return connection
        raise OSError("; ".join(failures))

    def _check(self, connection: Connection) -> None:
        answer = connection.call(ApiKey.API_VERSIONS)
        if all(api.api_key != ApiKey.SEALOG_GROUP_TRANSACTION for api in answer.api_keys):
            raise SealogError(
                f"the broker at {connection.address} is not sealog: use format('kafka') for Apache Kafka"
            )
        self._checked = True

    def connection(self, address: tuple[str, int]) -> Connection:
        """The open connection to a broker, or a new one. Raises OSError."""
        connection = self._connections.get(address)
        if connection is None:
            connection = Connection(
                *address, timeout_s=self.settings.request_timeout_s, client_id=self.settings.client_id
            )
            self._connections[address] = connection
        return connection
