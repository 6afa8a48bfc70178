"""A power cut takes an open transaction: each client hears so, aborts, and goes on with the same producer.

Where a client's version of a request knows no error for that, it hears an error that ends the producer; never success.
EndTxn is such a request for kafka-python and aiokafka, which take every error of it for the end, and so are aiokafka's
requests of offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.structs import OffsetAndMetadata

from tests.clients.adapter_java import Java
from tests.clients.driver_process import DriverRefused
from tests.crash.rounds import PoweredMachine

TOPIC = "t"


@pytest.fixture
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PoweredMachine]:
    made = PoweredMachine(tmp_path / "data", module=getattr(request, "param", "broker"))
    made.broker.start()
    try:
        yield made
    finally:
        made.end()


def cut_power(machine: PoweredMachine) -> None:
    """Nothing that was not flushed is left, and the kernel booted anew."""
    machine.broker.sigkill()
    machine.power.cut(None)
    machine.power.switch_on()
    machine.broker.env |= machine.power.env
    machine.broker.start()


def let_the_disk_know() -> None:
    """Long enough for the broker's lingering flush: the header of the open transaction outlives the power cut.

    A cut before that takes every trace, and the first protocol's EndTxn could be the last commit's repeat: fatal then.
    """
    time.sleep(1)


whichever_request_hears_first = pytest.mark.parametrize(
    "machine",
    ["broker", "tests.crash.offsets_added"],
    ids=["AddOffsetsToTxn", "TxnOffsetCommit"],
    indirect=True,
)


def committed(address: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "the end was never reached"
            if message.error():
                return found
            value = message.value()
            assert value is not None
            found.append(value)
    finally:
        consumer.close()


@pytest.mark.parametrize("first_call", ["commit", "produce"])
def test_librdkafka_goes_on(machine: PoweredMachine, first_call: str) -> None:
    producer = Producer({"bootstrap.servers": machine.broker.address, "transactional.id": "p"})
    producer.init_transactions(30)

    def transaction(value: bytes) -> None:
        producer.begin_transaction()
        producer.produce(TOPIC, value, partition=0)

    transaction(b"one")
    producer.commit_transaction(30)
    transaction(b"lost")
    producer.flush(30)
    let_the_disk_know()
    cut_power(machine)
    if first_call == "produce":
        producer.produce(TOPIC, b"more", partition=0)
        producer.poll(0)
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(30)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(30)
    transaction(b"two")
    producer.commit_transaction(30)
    assert committed(machine.broker.address) == [b"one", b"two"]


@pytest.mark.parametrize("first_call", ["commit", "produce"])
def test_kafka_python_goes_on_after_a_send_and_never_hears_success(
    machine: PoweredMachine, first_call: str
) -> None:
    producer = KafkaProducer(bootstrap_servers=machine.broker.address, transactional_id="p")
    producer.init_transactions()

    def transaction(value: bytes) -> None:
        producer.begin_transaction()
        producer.send(TOPIC, value, partition=0).get(30)

    transaction(b"one")
    producer.commit_transaction()
    transaction(b"lost")
    let_the_disk_know()
    cut_power(machine)
    if first_call == "commit":
        with pytest.raises(Exception, match="InvalidProducerIdMapping"):
            producer.commit_transaction()
        producer.close(timeout=5)
        producer = KafkaProducer(bootstrap_servers=machine.broker.address, transactional_id="p")
        producer.init_transactions()
    else:
        with pytest.raises(Exception, match="can only abort"):
            producer.send(TOPIC, b"more", partition=0).get(30)
        producer.abort_transaction()
    transaction(b"two")
    producer.commit_transaction()
    producer.close(timeout=5)
    assert committed(machine.broker.address) == [b"one", b"two"]


@pytest.mark.parametrize("first_call", ["commit", "produce"])
def test_aiokafka_goes_on_after_a_send_and_never_hears_success(
    machine: PoweredMachine, first_call: str
) -> None:
    async def scenario() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=machine.broker.address, transactional_id="p")
        await producer.start()

        async def transaction(value: bytes) -> None:
            await producer.begin_transaction()
            await producer.send_and_wait(TOPIC, value, partition=0)

        await transaction(b"one")
        await producer.commit_transaction()
        await transaction(b"lost")
        cut_power(machine)
        if first_call == "commit":
            with pytest.raises(Exception):  # noqa: B017 - a bare KafkaError that names nothing
                await producer.commit_transaction()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(producer.stop(), 10)
            producer = AIOKafkaProducer(bootstrap_servers=machine.broker.address, transactional_id="p")
            await producer.start()
        else:
            with pytest.raises(Exception, match="InvalidProducerIdMapping"):
                await producer.send_and_wait(TOPIC, b"more", partition=0)
            await producer.abort_transaction()
        await transaction(b"two")
        await producer.commit_transaction()
        await producer.stop()

    asyncio.run(scenario())
    assert committed(machine.broker.address) == [b"one", b"two"]


@pytest.mark.parametrize("first_call", ["commit", "produce", "offsets"])
def test_kafka_clients_goes_on(machine: PoweredMachine, first_call: str) -> None:
    java = Java(machine.broker.address)
    producer, consumer = java.producer(transactional_id="p"), java.consumer(group="g")
    consumer.assign([(TOPIC, 0)])
    producer.init_transactions()

    def transaction(value: bytes) -> None:
        producer.begin()
        producer.send(TOPIC, 0, value)
        producer.flush()

    transaction(b"one")
    producer.send_offsets(consumer, {(TOPIC, 0): 1})
    producer.commit()
    transaction(b"lost")
    cut_power(machine)
    if first_call == "produce":
        producer.send(TOPIC, 0, b"more")
        with pytest.raises(DriverRefused, match="InvalidProducerEpoch"):
            producer.flush()
    elif first_call == "offsets":
        with pytest.raises(DriverRefused, match="TransactionAbortable"):
            producer.send_offsets(consumer, {(TOPIC, 0): 2})
    with pytest.raises(DriverRefused, match=r"InvalidProducerEpoch|TransactionAbortable"):
        producer.commit()
    producer.abort()
    transaction(b"two")
    producer.commit()
    assert consumer.committed((TOPIC, 0)) == 1
    producer.close()
    consumer.close()
    assert committed(machine.broker.address) == [b"one", b"two"]


@whichever_request_hears_first
def test_librdkafka_goes_on_after_offsets(machine: PoweredMachine) -> None:
    address = machine.broker.address
    producer = Producer({"bootstrap.servers": address, "transactional.id": "p"})
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    producer.init_transactions(30)

    def transaction(value: bytes) -> None:
        producer.begin_transaction()
        producer.produce(TOPIC, value, partition=0)

    def send_offset(offset: int) -> None:
        position = TopicPartition(TOPIC, 0, offset)
        producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 30)

    transaction(b"one")
    producer.commit_transaction(30)
    transaction(b"lost")
    producer.flush(30)
    cut_power(machine)
    with pytest.raises(KafkaException) as caught:
        send_offset(2)
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(30)
    transaction(b"two")
    send_offset(3)
    producer.commit_transaction(30)
    assert consumer.committed([TopicPartition(TOPIC, 0)], 30)[0].offset == 3
    consumer.close()
    assert committed(address) == [b"one", b"two"]


@whichever_request_hears_first
def test_kafka_python_goes_on_after_offsets(machine: PoweredMachine) -> None:
    address = machine.broker.address
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="p")
    consumer = KafkaConsumer(bootstrap_servers=address, group_id="g", enable_auto_commit=False)
    at = KafkaPythonPartition(TOPIC, 0)
    producer.init_transactions()

    def transaction(value: bytes) -> None:
        producer.begin_transaction()
        producer.send(TOPIC, value, partition=0).get(30)

    def send_offset(offset: int) -> None:
        position = {at: OffsetAndMetadata(offset, "", -1)}
        producer.send_offsets_to_transaction(position, consumer.group_metadata())

    transaction(b"one")
    producer.commit_transaction()
    transaction(b"lost")
    cut_power(machine)
    with pytest.raises(Exception, match=r"metadata mismatch|InvalidProducerIdMapping"):
        send_offset(2)
    producer.abort_transaction()
    transaction(b"two")
    send_offset(3)
    producer.commit_transaction()
    assert consumer.committed(at) == 3
    consumer.close()
    producer.close(timeout=5)
    assert committed(address) == [b"one", b"two"]


@whichever_request_hears_first
def test_aiokafka_never_hears_success_after_offsets(machine: PoweredMachine) -> None:
    """No code that it knows there makes it tell the broker that it aborts, so its successor goes on."""
    address = machine.broker.address

    async def started() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id="p")
        await producer.start()
        return producer

    async def scenario() -> None:
        producer = await started()

        async def transaction(value: bytes) -> None:
            await producer.begin_transaction()
            await producer.send_and_wait(TOPIC, value, partition=0)

        async def send_offset(offset: int) -> None:
            await producer.send_offsets_to_transaction({AioPartition(TOPIC, 0): offset}, "g")

        await transaction(b"one")
        await producer.commit_transaction()
        await transaction(b"lost")
        cut_power(machine)
        with pytest.raises(KafkaError):
            await send_offset(2)
        with pytest.raises(Exception):  # noqa: B017 - an assertion of its own
            await producer.commit_transaction()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(producer.stop(), 10)
        producer = await started()
        await transaction(b"two")
        await send_offset(3)
        await producer.commit_transaction()
        await producer.stop()

    asyncio.run(scenario())
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    assert consumer.committed([TopicPartition(TOPIC, 0)], 30)[0].offset == 3
    consumer.close()
    assert committed(address) == [b"one", b"two"]
