"""What all clients in a simulation have in common: a process, randomness of their own, connections that break."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from tests.history import Event
from tests.simulation.loop import Future, Process
from tests.simulation.network import Connection, Gone
from tests.simulation.world import World
from wire.apis import ApiKey
from wire.batch import BATCH_HEADER_SIZE, TRANSACTIONAL_BIT, check_crc, parse_header
from wire.errors import ErrorCode
from wire.records import Record, build_batch, iterate_records

T = TypeVar("T")
OK = ErrorCode.none
PADDING = b"~"


class Link:
    """A connection of an actor that is made again when it broke."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._connection: Connection | None = None

    async def connection(self) -> Connection:
        """The one that is open, or a new one. Raises Gone where no broker listens."""
        if self._connection is None or not self._connection.open:
            world = self._actor.world
            await self._actor.process.sleep(world.network.delay())
            self._connection = world.network.connect(self._actor.process, world.machine)
        return self._connection

    async def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """One request and its answer. Raises Gone."""
        return await (await self.connection()).ask(key, version, **fields)


class Actor:
    """A client. `run` is its life, until the world is `ending`."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self.world = world
        self.name = name
        self.options = options
        self.random = random.Random(f"{world.plan.seed}/actor/{name}")
        self.process = Process(world.loop, name)
        self.link = Link(self)

    async def run(self) -> None:
        raise NotImplementedError

    @property
    def over(self) -> bool:
        return self.world.ending

    def note(self, event: Event) -> None:
        self.world.note(event)

    def pause(self, about_ms: float) -> Future[None]:
        return self.process.sleep(about_ms * (0.5 + self.random.random()))

    async def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """One request and its answer, on the actor's own link. Raises Gone."""
        return await self.link.ask(key, version, **fields)

    async def persist(self, call: Callable[[], Awaitable[T]], *, tries: int = 1_000) -> T:
        """Again until it is answered. Raises Gone after so many tries."""
        for number in range(tries):
            try:
                return await call()
            except Gone:
                if number + 1 == tries:
                    raise
                await self.pause(min(200.0, 10.0 * (number + 1)))
        raise Gone("never")

    def padded(self, value: str) -> bytes:
        """A record's value: what the history knows, and some bytes."""
        draw = self.random.random()
        size = 0 if draw < 0.7 else self.random.randrange(40 if draw < 0.95 else 1_500)
        return value.encode() + PADDING * size


def batch_of(
    records: Iterable[tuple[str | None, bytes]],
    timestamp: int,
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """(key, value) records as a producer sends them."""
    return build_batch(
        [
            Record(key.encode() if key is not None else None, value, timestamp=timestamp)
            for key, value in records
        ],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
    )


def produce_fields(
    topic: str, data: dict[int, bytes], *, transactional_id: str | None = None, acks: int = -1
) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 30_000,
        "topic_data": (
            {"name": topic, "partition_data": tuple({"index": p, "records": d} for p, d in data.items())},
        ),
    }


def fetch_fields(
    topic: str, offsets: dict[int, int], *, committed: bool, max_wait_ms: int, max_bytes: int
) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 22,
        "isolation_level": int(committed),
        "session_id": 0,
        "session_epoch": -1,
        "topics": (
            {
                "topic": topic,
                "partitions": tuple(
                    {
                        "partition": partition,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "log_start_offset": -1,
                        "partition_max_bytes": max_bytes,
                    }
                    for partition, offset in offsets.items()
                ),
            },
        ),
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def decode(records: Any, offset: int) -> tuple[list[tuple[int, str]], int]:
    """The (offset, value) records at or after an offset in what a fetch brought, and where a reader goes on.

    Raises KafkaError for a batch that is damaged, as a client would.
    """
    found: list[tuple[int, str]] = []
    view = memoryview(records or b"")
    while len(view) >= BATCH_HEADER_SIZE:
        header = parse_header(view)
        # Before anything of it counts, as the Java client does: a flipped bit can make it look like a control batch.
        check_crc(view[: header.size_bytes], header)
        if not header.is_control:
            for record in iterate_records(view):
                if record.offset >= offset:
                    value = record.value or b""
                    found.append((record.offset, value.partition(PADDING)[0].decode()))
        offset = max(offset, header.last_offset + 1)
        view = view[header.size_bytes :]
    return found, offset


async def create_topic(actor: Actor, name: str, partitions: int, configs: dict[str, str]) -> ErrorCode:
    """Again until it is there."""

    async def attempt() -> ErrorCode:
        answer = await actor.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=(
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "assignments": (),
                    "configs": tuple({"name": key, "value": value} for key, value in configs.items()),
                },
            ),
            timeout=30_000,
            validate_only=False,
        )
        code: ErrorCode = answer.topics[0].error_code
        return code

    return await actor.persist(attempt)
