"""Waiting and counting, shared by the scenarios. Deadlines only catch a hang: nothing here measures time."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tests.clients.adapter_base import Consumer, Partition, Producer, Record
from tests.clients.fixtures import Opened

HANG_S = 60.0
END_KEY = b"end of a scenario's records"
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def eventually(
    condition: Callable[[], bool], what: str | Callable[[], str], *, step: Callable[[], object] | None = None
) -> None:
    """Repeat `step` (or a short sleep) until the condition holds; fails after a minute."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what if isinstance(what, str) else what()}"
        if step is None:
            time.sleep(0.02)
        else:
            step()


def take(consumer: Consumer, count: int) -> list[Record]:
    """Poll until `count` records came. More than that is a failure of the scenario, and left to it to see."""
    found: list[Record] = []

    def missing() -> str:
        came = Counter((record.topic, record.partition) for record in found)
        return f"{count} records; came {dict(came)}, assigned {consumer.assignment()}"

    eventually(lambda: len(found) >= count, missing, step=lambda: found.extend(polled(consumer)))
    return found


def polled(consumer: Consumer) -> list[Record]:
    """What a short poll gives, but for what take_rest wrote."""
    return [record for record in consumer.poll(0.2) if record.key != END_KEY]


def take_until(consumer: Consumer, targets: dict[Partition, int]) -> list[Record]:
    """Poll until the consumer's own position has reached each target offset; what came on the way."""
    found: list[Record] = []
    eventually(
        lambda: all(consumer.position(tp) >= offset for tp, offset in targets.items()),
        f"positions {targets}",
        step=lambda: found.extend(consumer.poll(0.2)),
    )
    return found


def take_rest(clients: Opened, consumer: Consumer, partition: Partition) -> list[Record]:
    """What is left in a partition up to its present end, seen to be passed by the consumer's position.

    Where a client does not tell its position, a record is written behind the end: whoever reads it has passed the end.
    """
    if clients.can("position"):
        return take_until(consumer, {partition: consumer.begin_and_end(partition)[1]})
    producer = clients.producer()
    producer.send(*partition, b"behind the end", key=END_KEY)
    producer.flush()
    end = consumer.begin_and_end(partition)[1]
    found: list[Record] = []
    eventually(
        lambda: any(record.offset == end - 1 for record in found),
        "the record behind the end",
        step=lambda: found.extend(consumer.poll(0.2)),
    )
    return [record for record in found if record.key != END_KEY]


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def send_all(producer: Producer, partition: Partition, items: Sequence[bytes]) -> None:
    for item in items:
        producer.send(partition[0], partition[1], item)


def transaction(producer: Producer, sends: dict[Partition, Sequence[bytes]], *, commit: bool = True) -> None:
    """Begin, send, and end. Flushed before the end, so that an aborted transaction has data in the log."""
    producer.begin()
    for partition, items in sends.items():
        send_all(producer, partition, items)
    producer.flush()
    if commit:
        producer.commit()
    else:
        producer.abort()
