"""A transactional id that nobody used expires; each client hears so at once, and its successor starts anew.

redpanda issue 15766: a librdkafka producer whose id has expired is stuck for ever. Apache Kafka would give the old
identity a new epoch; sealog does not (txn/id_expiry.py), so the producer has come to its end, and says that.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.adapter_base import CALL_TIMEOUT_S
from tests.clients.client_adapters import CLIENTS
from tests.clients.fixtures import Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.scenario_tools import eventually, send_all, take, transaction, values
from tests.support.broker_process import BrokerProcess

Unique = Callable[[str], str]

CONFIG = """
transactional_id_expiration_ms = 3000
transaction_remove_expired_transaction_cleanup_interval_ms = 100
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("expiring")
    (folder / "config.toml").write_text(CONFIG)
    with BrokerProcess(folder / "data", args=["--config", str(folder / "config.toml")]) as process:
        yield process


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def opened(request: pytest.FixtureRequest, server: BrokerProcess) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(request.param(server.address), stack)


def test_an_expired_id(opened: Opened, server: BrokerProcess, unique: Unique) -> None:
    name, transactional_id = unique("topic"), unique("tx")
    partition = (name, 0)
    with RawKafka(server.address) as raw:
        raw.create_topic(name, 1)

        def known() -> set[str]:
            answer = raw.call("list_transactions", 0, state_filters=[], producer_id_filters=[])
            return {one.transactional_id for one in answer.transaction_states}

        producer = opened.producer(transactional_id=transactional_id)
        transaction(producer, {partition: [b"one"]})
        eventually(lambda: transactional_id not in known(), "its expiry")

    def go_on() -> None:
        producer.begin()
        send_all(producer, partition, [b"lost"])
        producer.flush()
        producer.commit()

    def abort_and_go_on() -> None:
        producer.abort()
        go_on()

    with pytest.raises(Exception):  # noqa: B017 - each client has its own
        go_on()
    began = time.monotonic()
    with pytest.raises(Exception):  # noqa: B017 - the end of this producer
        abort_and_go_on()
    assert time.monotonic() - began < CALL_TIMEOUT_S, "told, and not by a timeout"
    successor = opened.producer(transactional_id=transactional_id)
    transaction(successor, {partition: [b"two"]})
    consumer = opened.consumer()
    consumer.assign([partition])
    assert values(take(consumer, 2)) == [b"one", b"two"]
