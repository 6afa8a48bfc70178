"""Every client rides over a broker that is killed and started again on its data, and nothing open is lost.

These tests kill the broker, so they start their own. Against Apache Kafka (SEALOG_TEST_BOOTSTRAP set, without
SEALOG_TEST_BROKER=sealog) they start an Apache Kafka of their own as well, which takes its time to come back.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.client_adapters import CLIENTS
from tests.clients.features import shows
from tests.clients.fixtures import Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.scenario_tools import eventually, send_all, take, take_rest, transaction, values
from tests.support.broker_process import BrokerProcess, ServerProcess

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("restarted")
    with_kafka = "SEALOG_TEST_BOOTSTRAP" in os.environ and os.environ.get("SEALOG_TEST_BROKER") != "sealog"
    if with_kafka:
        from tests.support.kafka_process import KafkaProcess

        process: ServerProcess = KafkaProcess(folder / "data")
    else:
        process = BrokerProcess(folder / "data")
    with process:
        yield process


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def opened(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(request.param(server.address), stack)


def create(server: ServerProcess, name: str, partitions: int) -> str:
    with RawKafka(server.address) as raw:
        raw.create_topic(name, partitions)
    return name


def kill_and_start(server: ServerProcess, group: str) -> None:
    """Back when the broker serves again, so that no request of a test meets a missing one.

    Apache Kafka answers before it has loaded its groups, which not every client hides: wait for the group's.
    """
    server.sigkill()
    server.start()
    with RawKafka(server.address) as raw:

        def serves() -> bool:
            response = raw.call("offset_fetch", 8, groups=[{"group_id": group, "topics": None}])
            return response.groups[0].error_code is ErrorCode.none

        eventually(serves, "the group's coordinator")


@shows("riding over a kill")
def test_readers_and_writers_ride_over_a_kill(opened: Opened, server: ServerProcess, unique: Unique) -> None:
    """The reader sees a new leader epoch: it must be able to check its position against it (KIP-320)."""
    name = create(server, unique("topic"), 2)
    producer = opened.producer(idempotent=opened.can("idempotent"))
    group = unique("group")
    consumer = opened.consumer(group=group)
    consumer.subscribe(name)
    for number in range(2):
        for partition in (0, 1):
            send_all(producer, (name, partition), [b"%d" % number] * 5)
        producer.flush()
        records = take(consumer, 10)
        assert values(records) == [b"%d" % number] * 10
        consumer.commit({(name, 0): 5 + 5 * number, (name, 1): 5 + 5 * number})
        kill_and_start(server, group)
    assert consumer.committed((name, 0)) == consumer.committed((name, 1)) == 10
    send_all(producer, (name, 0), [b"last"])
    producer.flush()
    assert values(take(consumer, 1)) == [b"last"]


@shows("riding over a kill")
def test_an_open_transaction_outlives_a_kill(opened: Opened, server: ServerProcess, unique: Unique) -> None:
    """The process died, the kernel lived: what was acknowledged is there, and the transaction goes on."""
    name = create(server, unique("topic"), 1)
    partition = (name, 0)
    producer = opened.producer(transactional_id=unique("tx"))
    transaction(producer, {partition: [b"before"]})
    producer.begin()
    send_all(producer, partition, [b"one", b"two"])
    producer.flush()
    kill_and_start(server, unique("group"))
    consumer = opened.consumer()
    consumer.assign([partition])
    assert values(take(consumer, 1)) == [b"before"]
    send_all(producer, partition, [b"three"])
    producer.commit()
    assert values(take(consumer, 3)) == [b"one", b"two", b"three"]
    transaction(producer, {partition: [b"after"]})
    assert values(take(consumer, 1)) == [b"after"]


@shows("riding over a kill")
def test_what_was_decided_stays_decided(opened: Opened, server: ServerProcess, unique: Unique) -> None:
    name = create(server, unique("topic"), 1)
    partition, group = (name, 0), unique("group")
    transactional_id = unique("tx")
    producer = opened.producer(transactional_id=transactional_id)
    reader = opened.consumer(group=group)
    reader.assign([partition], from_committed=True)
    for number in range(3):
        transaction(producer, {partition: [b"kept %d" % number]})
        transaction(producer, {partition: [b"no"] * 3}, commit=False)
    producer.begin()
    producer.send(name, 0, b"with offsets")
    producer.send_offsets(reader, {partition: 1})
    producer.commit()
    producer.begin()
    producer.send(name, 0, b"left open")
    producer.flush()
    kill_and_start(server, group)

    second = opened.producer(transactional_id=transactional_id)
    transaction(second, {partition: [b"after"]})
    consumer = opened.consumer()
    consumer.assign([partition])
    expected = [b"kept 0", b"kept 1", b"kept 2", b"with offsets", b"after"]
    assert values(take(consumer, 5)) == expected
    eventually(lambda: reader.committed(partition) == 1, "the offset committed in a transaction")
    again = opened.consumer()
    again.assign([partition])
    assert values(take_rest(opened, again, partition)) == expected
