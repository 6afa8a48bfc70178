"""What every client can do without transactions: produce, in every compression, and read it back."""

from collections.abc import Callable

import pytest

from tests.clients.features import shows
from tests.clients.fixtures import Opened
from tests.clients.scenario_tools import COMPRESSIONS, send_all, take, take_rest, values


@pytest.mark.parametrize(
    "compression",
    [
        pytest.param(each, marks=shows("plain produce and fetch" if each == "none" else "compression"))
        for each in COMPRESSIONS
    ],
)
def test_records_come_back_as_they_were_sent(
    clients: Opened, topic: Callable[..., str], compression: str
) -> None:
    name = topic(partitions=2)
    sent: dict[int, list[tuple[bytes | None, bytes | None]]] = {0: [], 1: []}
    producer = clients.producer(compression=compression)
    for number in range(200):
        key = None if number % 3 == 0 else b"key %d" % number
        value = b"value %d " % number * (number % 7 + (0 if clients.can("empty_value") else 1))
        sent[number % 2].append((key, value))
        producer.send(name, number % 2, value, key=key, headers=[("number", b"%d" % number), ("empty", b"")])
    large = bytes(range(256)) * 1000
    sent[0].append((b"large", large))
    producer.send(name, 0, large, key=b"large")
    producer.flush()

    consumer = clients.consumer()
    consumer.assign([(name, 0), (name, 1)])
    records = take(consumer, 201)
    for partition in (0, 1):
        got = [record for record in records if record.partition == partition]
        assert [(record.key, record.value) for record in got] == sent[partition]
        assert [record.offset for record in got] == list(range(len(sent[partition])))
    with_headers = next(
        record for record in records if record.value is not None and b"value 1 " in record.value
    )
    assert with_headers.headers == (("number", b"1"), ("empty", b""))


@shows("idempotent produce")
def test_idempotent_records_come_back_once(clients: Opened, topic: Callable[..., str]) -> None:
    name = topic(partitions=3)
    producer = clients.producer(idempotent=True)
    for round_number in range(5):
        for number in range(60):
            producer.send(name, number % 3, b"%d.%d" % (round_number, number))
        producer.flush()
    consumer = clients.consumer()
    consumer.assign([(name, partition) for partition in range(3)])
    records = take(consumer, 300)
    for partition in range(3):
        expected = [b"%d.%d" % (r, n) for r in range(5) for n in range(60) if n % 3 == partition]
        assert values(record for record in records if record.partition == partition) == expected


@shows("plain produce and fetch")
def test_every_offset_can_be_sought(clients: Opened, topic: Callable[..., str]) -> None:
    """Also the last offset of a batch: a broker that leaves that batch out loses a record per resume."""
    name = topic()
    producer = clients.producer()
    for size in (1, 4, 2):
        send_all(producer, (name, 0), [b"x"] * size)
        producer.flush()
    consumer = clients.consumer()
    consumer.assign([(name, 0)])
    assert [record.offset for record in take(consumer, 7)] == list(range(7))
    for offset in range(7):
        consumer.seek((name, 0), offset)
        assert [record.offset for record in take(consumer, 7 - offset)] == list(range(offset, 7))


@shows("plain produce and fetch")
def test_reader_waits_at_the_end_and_gets_what_comes(clients: Opened, topic: Callable[..., str]) -> None:
    name = topic()
    consumer = clients.consumer(max_wait_ms=1_000)
    consumer.assign([(name, 0)])
    assert consumer.poll(0.3) == []
    producer = clients.producer()
    for number in range(3):
        producer.send(name, 0, b"%d" % number)
        producer.flush()
        assert values(take(consumer, 1)) == [b"%d" % number]
    assert consumer.begin_and_end((name, 0)) == (0, 3)
    assert take_rest(clients, consumer, (name, 0)) == []
