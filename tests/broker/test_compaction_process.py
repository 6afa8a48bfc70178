"""Compaction by a real process beside a real broker, under stock clients that read on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from broker.cli import main
from broker.client import LayoutClient
from tests.support.broker_process import BrokerProcess

KEYS = 50
ROUNDS = 12


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerProcess]:
    config = tmp_path / "sealog.toml"
    config.write_text("compaction_interval_ms = 100\n")
    with BrokerProcess(tmp_path / "data", args=["--config", str(config)]) as process:
        yield process


def read_with_librdkafka(address: str) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition("table", 0, 0)])
    found: list[tuple[bytes | None, bytes | None]] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None, "the end was never reached"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append((message.key(), message.value()))
    finally:
        consumer.close()


def read_with_kafka_python(address: str) -> list[tuple[bytes | None, bytes | None]]:
    consumer = KafkaConsumer(bootstrap_servers=address, isolation_level="read_committed")
    partition = KafkaPythonPartition("table", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    end = consumer.end_offsets([partition])[partition]
    found: list[tuple[bytes | None, bytes | None]] = []
    deadline = time.monotonic() + 60
    while consumer.position(partition) < end:
        assert time.monotonic() < deadline, f"stuck at {consumer.position(partition)} of {end}"
        for records in consumer.poll(timeout_ms=500).values():
            found += [(record.key, record.value) for record in records]
    consumer.close()
    return found


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_table_of_the_last_values(server: BrokerProcess, compression: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    for future in admin.create_topics([NewTopic("table", 1, config=config)]).values():
        future.result(30)
    producer = Producer(
        {"bootstrap.servers": server.address, "transactional.id": "p", "compression.type": compression}
    )
    producer.init_transactions(30)
    with LayoutClient(server.address) as layout:
        for number in range(ROUNDS):
            producer.begin_transaction()
            for key in range(KEYS):
                producer.produce("table", b"%d-%d" % (key, number) * 20, b"%d" % key, partition=0)
            producer.flush(30)
            if number % 3 == 1:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
            layout.seal("table", 0)
        last = ROUNDS - 1 if (ROUNDS - 1) % 3 != 1 else ROUNDS - 2
        expected = {b"%d" % key: b"%d-%d" % (key, last) * 20 for key in range(KEYS)}
        deadline = time.monotonic() + 60
        while len(found := read_with_librdkafka(server.address)) > KEYS:
            assert time.monotonic() < deadline, f"{len(found)} records are still there"
            assert dict(found) == expected, "at no moment another last value"
            time.sleep(0.1)
        sealed = [one for one in layout.describe("table").segments if one.state == "SEALED"]
    assert len(found) == KEYS
    assert dict(found) == expected
    assert dict(read_with_kafka_python(server.address)) == expected
    assert sum(one.size_bytes for one in sealed) < 2 * ROUNDS * 4096 + 2 * KEYS * 400
    server.sigterm()
    result = CliRunner().invoke(main, ["check", str(server.data)])
    assert result.exit_code == 0, result.output
    server.start()
    assert dict(read_with_librdkafka(server.address)) == expected
