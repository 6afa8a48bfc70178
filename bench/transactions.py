"""begin..commit over some partitions, and the same records without a transaction, by librdkafka in one process.

One 1 KB record per partition and turn. "txn" is begin, send, commit; "plain" is send and flush by an idempotent
producer with acks=all. The two take turns, so that the machine's moods meet both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

RECORD = b"x" * 1024


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds per turn."""

    p50_ms: float
    p99_ms: float
    turns: int


@dataclass(frozen=True, slots=True)
class Row:
    """One width: the same work plain and in a transaction."""

    partitions: int
    plain: Latency
    txn: Latency

    @property
    def price(self) -> float:
        """What a transaction costs, as a multiple of the same records plain."""
        return self.txn.p50_ms / self.plain.p50_ms


def measure(address: str, widths: list[int], turns: int, progress: Callable[[], None]) -> list[Row]:
    """`turns` counted turns of each kind per width, after a tenth as many that are not counted."""
    base = {"bootstrap.servers": address, "linger.ms": 0, "acks": "all", "enable.idempotence": True}
    plain = Producer(base)
    txn = Producer({**base, "transactional.id": "bench", "transaction.timeout.ms": 60_000})
    txn.init_transactions(30)
    rows: list[Row] = []
    for width in widths:
        topic = _make_topic(address, width)

        def send(producer: Producer, topic: str = topic, width: int = width) -> None:
            for partition in range(width):
                producer.produce(topic, RECORD, partition=partition)

        def plain_turn() -> None:
            send(plain)
            if plain.flush(60):
                raise RuntimeError("records were left after a minute")

        def txn_turn() -> None:
            txn.begin_transaction()
            send(txn)
            txn.commit_transaction(60)

        taken: dict[Callable[[], None], list[float]] = {plain_turn: [], txn_turn: []}
        for turn in range(-max(1, turns // 10), turns):
            for work, times in taken.items():
                began = time.perf_counter()
                work()
                if turn >= 0:
                    times.append((time.perf_counter() - began) * 1000)
            progress()
        rows.append(Row(width, _latency(taken[plain_turn]), _latency(taken[txn_turn])))
    return rows


def _make_topic(address: str, partitions: int) -> str:
    name = f"bench-{partitions}-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def _latency(times: list[float]) -> Latency:
    times.sort()
    return Latency(times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)], len(times))
