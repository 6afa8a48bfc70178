"""What Apache Kafka's own Java client does that the scenarios of all clients leave out.

It alone of the clients here uses transactions v2 (KIP-890), rebalances cooperatively (KIP-429) and fences by group
metadata what it does not fence by transactional id (KIP-447). Like all tests here these hold on Apache Kafka too.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.adapter_java import Java
from tests.clients.api_recorder import ApiRecorder
from tests.clients.driver_process import DriverRefused
from tests.clients.features import shows
from tests.clients.fixtures import Broker, Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.remote import RemoteConsumer
from tests.clients.scenario_tools import take, transaction, values
from tests.clients.test_client_groups import PARTITIONS, fill, next_offsets, settle
from tests.support.broker_process import BrokerProcess, ServerProcess, free_port

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]

PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 0, 24, 25, 26, 28


@pytest.fixture
def java(broker: Broker) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(Java(broker.bootstrap), stack)


@shows("transactions v2 (KIP-890)", client=Java.name)
def test_it_uses_transactions_v2(tmp_path: Path) -> None:
    """No partition is added by a request of its own, and every end gives the next epoch."""
    port = free_port()
    with ExitStack() as stack:
        recorder = stack.enter_context(ApiRecorder(port))
        process: ServerProcess
        if "SEALOG_TEST_BOOTSTRAP" in os.environ and os.environ.get("SEALOG_TEST_BROKER") != "sealog":
            from tests.support.kafka_process import KafkaProcess

            settings = {"advertised.listeners": f"PLAINTEXT://{recorder.address}"}
            process = KafkaProcess(tmp_path / "data", port=port, settings=settings)
        else:
            config = tmp_path / "sealog.toml"
            config.write_text(f'advertised_listener = "{recorder.address}"')
            process = BrokerProcess(tmp_path / "data", port=port, args=["--config", str(config)])
        stack.enter_context(process)
        with RawKafka(process.address) as raw:
            raw.create_topic("t")
        java = Opened(Java(recorder.address), stack)
        producer = java.producer(transactional_id="p")
        consumer = java.consumer(group="g")
        consumer.assign([("t", 0)])

        def epoch() -> int:
            with RawKafka(process.address) as raw:
                (found,) = raw.call("describe_transactions", 0, transactional_ids=["p"]).transaction_states
            return int(found.producer_epoch)

        epochs = []
        for number, value in enumerate([b"one", b"no", b"two"]):
            producer.begin()
            producer.send("t", 0, value)
            producer.flush()
            epochs.append(epoch())
            if value == b"no":
                producer.abort()
            else:
                producer.send_offsets(consumer, {("t", 0): number})
                producer.commit()
        assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2]
        assert values(take(consumer, 2)) == [b"one", b"two"]
        assert recorder.versions(END_TXN) == {5}
        assert recorder.versions(TXN_OFFSET_COMMIT) == {5}
        assert min(recorder.versions(PRODUCE)) >= 12
        # From version 4 on it is a request between brokers: Apache Kafka's sends it to itself, through here too.
        assert all(version >= 4 for version in recorder.versions(ADD_PARTITIONS))
        assert not recorder.versions(ADD_OFFSETS)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(DriverRefused) as refused:
        call()
    return refused.value.class_name


def test_a_fenced_producer_hears_so_when_it_aborts(java: Opened, topic: TopicFactory, unique: Unique) -> None:
    """What a fenced write is told, it might be told after a timeout too: only the abort knows."""
    name, transactional_id = topic(), unique("tx")
    first = java.producer(transactional_id=transactional_id)
    java.producer(transactional_id=transactional_id)
    first.begin()
    first.send(name, 0, b"zombie")
    assert refusal(first.flush) == "InvalidProducerEpochException"
    assert refusal(first.abort) == "ProducerFencedException"


@pytest.mark.parametrize("first_call", ["abort", "send", "commit"])
def test_work_goes_on_after_a_timeout(
    broker: Broker, java: Opened, topic: TopicFactory, unique: Unique, first_call: str
) -> None:
    name, transactional_id = topic(), unique("tx")
    producer = java.producer(transactional_id=transactional_id, transaction_timeout_ms=1_000)
    producer.begin()
    producer.send(name, 0, b"too slow")
    producer.flush()
    plain = java.producer()
    plain.send(name, 0, b"behind it")
    plain.flush()
    consumer = java.consumer()
    consumer.assign([(name, 0)])
    assert values(take(consumer, 1)) == [b"behind it"]
    if first_call == "send":
        producer.send(name, 0, b"more of it")
        assert refusal(producer.flush) == "InvalidProducerEpochException"
    if first_call == "commit":
        # A commit that comes too late is the end of this producer, though not of its id. (KAFKA-20785)
        late = "ProducerFencedException" if broker.is_sealog else "InvalidTxnStateException"
        assert refusal(producer.commit) == late
        assert refusal(producer.abort) == (
            "ProducerFencedException" if broker.is_sealog else "KafkaException"
        )
        producer = java.producer(transactional_id=transactional_id)
    else:
        producer.abort()
    transaction(producer, {(name, 0): [b"in time"]})
    assert values(take(consumer, 1)) == [b"in time"]


GROUPS = {
    "classic": {},
    "cooperative": {
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    },
    "new": {"group.protocol": "consumer"},
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_member_that_was_replaced_commits_no_offsets(
    java: Opened, topic: TopicFactory, unique: Unique, kind: str
) -> None:
    """Each member has a transactional id of its own; what fences one is that its group went on without it (KIP-447)."""
    name, output, group = topic(partitions=PARTITIONS), topic(), unique("group")
    fill(java, name, 5)
    slow = java.consumer(group=group, config={"max.poll.interval.ms": "1500", **GROUPS[kind]})
    slow.subscribe(name)
    records = take(slow, 5 * PARTITIONS)
    producer = java.producer(transactional_id=unique("tx"))
    producer.begin()
    for _ in records:
        producer.send(output, 0, b"of the slow one")
    producer.flush()

    quick = java.consumer(group=group, config=GROUPS[kind])
    quick.subscribe(name)
    again = take(quick, 5 * PARTITIONS)
    assert quick.assignment() == {(name, partition) for partition in range(PARTITIONS)}
    assert refusal(lambda: producer.send_offsets(slow, next_offsets(records))) == "CommitFailedException"
    producer.abort()

    other = java.producer(transactional_id=unique("tx"))
    other.begin()
    for record in again:
        assert record.value is not None
        other.send(output, 0, b"out " + record.value)
    other.send_offsets(quick, next_offsets(again))
    other.commit()
    # The slow one comes back, and its producer may go on.
    settle([slow, quick], [2, 2])
    transaction(producer, {(output, 0): [b"of the next round"]})
    reader = java.consumer()
    reader.assign([(output, 0)])
    wanted = {b"out %d.%d" % (partition, number) for partition in range(PARTITIONS) for number in range(5)}
    found = values(take(reader, len(wanted) + 1))
    assert set(found) == wanted | {b"of the next round"}
    assert len(found) == len(wanted) + 1


def told(consumer: Any) -> list[tuple[str, int]]:
    """What the consumer's rebalance listener heard: (what, of how many partitions), without the empty calls."""
    assert isinstance(consumer, RemoteConsumer)
    return [(what, len(pairs)) for what, pairs in consumer.handle.call("rebalances") if pairs]


@pytest.mark.parametrize(
    ("kind", "revoked"), [("classic", PARTITIONS), ("cooperative", 2), ("new", 2)], ids=list(GROUPS)
)
def test_what_a_member_gives_away_when_another_comes(
    java: Opened, topic: TopicFactory, unique: Unique, kind: str, revoked: int
) -> None:
    """All of it, of the eager protocol; what the other gets and nothing else, of the cooperative ones (KIP-429)."""
    name, group = topic(partitions=PARTITIONS), unique("group")
    first = java.consumer(group=group, config=GROUPS[kind])
    first.subscribe(name)
    settle([first], [PARTITIONS])
    assert told(first) == [("assigned", PARTITIONS)]
    second = java.consumer(group=group, config=GROUPS[kind])
    second.subscribe(name)
    settle([first, second], [2, 2])
    heard = told(first)
    assert heard[0] == ("revoked", revoked)
    assert heard[1:] == ([("assigned", 2)] if revoked == PARTITIONS else [])
    second.close()
    settle([first], [PARTITIONS])
    expected = [("revoked", 2), ("assigned", PARTITIONS)] if kind == "classic" else [("assigned", 2)]
    assert told(first) == expected
