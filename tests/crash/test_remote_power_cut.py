"""A power cut takes an open transaction: the clients of other languages hear so, and never of a success.

As in test_client_power_cut. Which of them aborts and goes on with the same producer is the client's to say.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.clients.adapter_base import Producer
from tests.clients.adapter_go import FranzGo, Sarama
from tests.clients.adapter_kafkajs import KafkaJs
from tests.clients.driver_process import DriverRefused
from tests.clients.fixtures import Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.remote import RemoteClient
from tests.crash.rounds import PoweredMachine
from tests.crash.test_client_power_cut import TOPIC, committed, cut_power, let_the_disk_know, machine

__all__ = ("machine",)

# Sarama, and kafkajs for an error of EndTxn, take what the first protocol can say of it for the producer's end.
GO_ON = {("franz-go", "commit"), ("franz-go", "produce"), ("kafkajs", "produce")}

LOST = "|".join(
    (
        "TRANSACTION_ABORTABLE",
        "INVALID_PRODUCER_EPOCH",
        "producer id which is not currently assigned to its transactional id",
    )
)
"""Some call the errors of the protocol by their names, some by their texts."""


@pytest.fixture(params=[FranzGo, Sarama, KafkaJs], ids=lambda client: client.name)
def opened(machine: PoweredMachine, request: pytest.FixtureRequest) -> Iterator[Opened]:
    client: type[RemoteClient] = request.param
    with ExitStack() as stack:
        yield Opened(client(machine.broker.address), stack)


def begun(producer: Producer, value: bytes) -> None:
    producer.begin()
    producer.send(TOPIC, 0, value)


@pytest.mark.parametrize("first_call", ["commit", "produce"])
def test_it_hears_of_it_and_goes_on(machine: PoweredMachine, opened: Opened, first_call: str) -> None:
    with RawKafka(machine.broker.address) as raw:
        raw.create_topic(TOPIC, 1)
    producer = opened.producer(transactional_id="p")
    begun(producer, b"one")
    producer.commit()
    begun(producer, b"lost")
    producer.flush()
    let_the_disk_know()
    cut_power(machine)
    if first_call == "produce":
        producer.send(TOPIC, 0, b"more")
    with pytest.raises(DriverRefused, match=LOST):
        producer.commit()
    if (opened.client.name, first_call) in GO_ON:
        producer.abort()
    else:
        with pytest.raises(DriverRefused):
            producer.abort()
        producer = opened.producer(transactional_id="p")
    begun(producer, b"two")
    producer.commit()
    assert committed(machine.broker.address) == [b"one", b"two"]
