"""kafka-go as the reader of transactions that another client writes: it has none of its own.

It pays no attention to the control bit: Apache Kafka's markers, and aborted records, reach its applications as data.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.adapter_confluent import Confluent
from tests.clients.adapter_go import KafkaGo
from tests.clients.features import shows
from tests.clients.fixtures import Broker, Opened
from tests.clients.scenario_tools import take, transaction

ABORT = b"\0\0\0\0"
"""The key of an abort marker: version 0, type 0."""


@pytest.fixture
def opened(broker: Broker) -> Iterator[tuple[Opened, Opened]]:
    """The writer's client, and the reader's."""
    with ExitStack() as stack:
        yield Opened(Confluent(broker.bootstrap), stack), Opened(KafkaGo(broker.bootstrap), stack)


@shows("read_committed", client="kafka-go")
def test_it_reads_committed_records_alone_and_gets_past_an_aborted_tail(
    opened: tuple[Opened, Opened],
    topic: Callable[..., str],
    unique: Callable[[str], str],
    sealog_only: Callable[[str], None],
) -> None:
    sealog_only("kafka-go hands Apache Kafka's markers and aborted records to its application")
    writer, reader = opened
    partition = (topic(), 0)
    producer = writer.producer(transactional_id=unique("tx"))
    transaction(producer, {partition: [b"one", b"two"]})
    transaction(producer, {partition: [b"no"] * 3}, commit=False)
    transaction(producer, {partition: [b"three"]})
    consumer = reader.consumer()
    consumer.assign([partition])
    assert [(r.offset, r.value) for r in take(consumer, 3)] == [(0, b"one"), (1, b"two"), (5, b"three")]

    # Nothing visible follows: one control record stands for the run, and takes the reader's position along.
    transaction(producer, {partition: [b"no"] * 4}, commit=False)
    assert [(r.offset, r.key) for r in take(consumer, 1)] == [(9, ABORT)]
    assert consumer.position(partition) == 10
    transaction(producer, {partition: [b"later"]})
    assert [(r.offset, r.value) for r in take(consumer, 1)] == [(10, b"later")]


@shows("read_committed", client="kafka-go")
def test_it_sees_no_undecided_record(
    opened: tuple[Opened, Opened],
    topic: Callable[..., str],
    unique: Callable[[str], str],
    sealog_only: Callable[[str], None],
) -> None:
    sealog_only("kafka-go hands Apache Kafka's markers and aborted records to its application")
    writer, reader = opened
    partition = (topic(), 0)
    producer = writer.producer(transactional_id=unique("tx"))
    producer.begin()
    producer.send(*partition, b"open")
    producer.flush()
    consumer = reader.consumer()
    consumer.assign([partition])
    assert consumer.poll(0.5) == []
    producer.commit()
    assert [record.value for record in take(consumer, 1)] == [b"open"]
