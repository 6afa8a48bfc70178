"""Stock clients that lag behind retention, and a stranger who reads the files of the running broker meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition
from kafka.errors import OffsetOutOfRangeError

from broker.cli import main
from broker.client import LayoutClient
from storage.sealed import open_sealed
from tests.support.broker_process import BrokerProcess
from wire.records import iterate_records


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_reader_behind_retention_is_told_where_the_log_starts(tmp_path: Path) -> None:
    config = tmp_path / "sealog.toml"
    config.write_text("retention_check_interval_ms = 50\n")
    with BrokerProcess(tmp_path / "data", args=["--config", str(config)]) as server:
        admin = AdminClient({"bootstrap.servers": server.address})
        admin.create_topics([NewTopic("t", 1)])["t"].result(30)
        producer = Producer({"bootstrap.servers": server.address, "transactional.id": "p"})
        producer.init_transactions(30)
        with LayoutClient(server.address) as layout:
            for number in range(6):
                producer.begin_transaction()
                producer.produce("t", b"%d" % number, partition=0)
                producer.flush(30)
                producer.abort_transaction(30) if number == 4 else producer.commit_transaction(30)
                if number % 2:
                    layout.seal("t", 0)

        lagging = KafkaConsumer(
            bootstrap_servers=server.address,
            auto_offset_reset="none",
            isolation_level="read_committed",
            max_poll_records=1,
        )
        partition = KafkaPythonPartition("t", 0)
        lagging.assign([partition])
        lagging.seek(partition, 1)
        until(lambda: bool(lagging.poll(100)), "nothing was read")

        # The outcomes of the running broker's segments, read from its files alone.
        folder = next((server.data / "topics").iterdir())
        until(lambda: len(list(folder.glob("*.settled"))) == 3, "there are no sidecars")
        found = []
        for path in sorted(folder.glob("*.seg"))[:3]:
            with open_sealed(str(path)) as segment:
                assert segment.topic == "t"
                found += [r.value for b in segment.committed(0) for r in iterate_records(b.data)]
        assert found == [b"0", b"1", b"2", b"3", b"5"]
        result = CliRunner().invoke(main, ["dump", str(server.data / "t"), "--records", "--json"])
        assert result.exit_code == 0, result.output
        assert result.output.count('"outcome": "aborted"') == 1

        resource = ConfigResource(
            ConfigResource.Type.TOPIC,
            "t",
            incremental_configs=[
                ConfigEntry("retention.bytes", "8000", incremental_operation=AlterConfigOpType.SET)
            ],
        )
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)
        until(lambda: lagging.beginning_offsets([partition])[partition] == 4, "nothing was deleted")
        lagging.seek(partition, 1)
        with pytest.raises(OffsetOutOfRangeError) as raised:
            until(lambda: bool(lagging.poll(100)), "neither an answer nor an error")
        assert raised.value.args[0] == {partition: 1}
        lagging.close()

        strict = Consumer(
            {"bootstrap.servers": server.address, "group.id": "g", "auto.offset.reset": "error"}
        )
        strict.assign([TopicPartition("t", 0, 1)])
        message = strict.poll(30)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        assert strict.get_watermark_offsets(TopicPartition("t", 0), 30) == (4, 6)
        strict.close()

        patient = Consumer(
            {"bootstrap.servers": server.address, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        patient.assign([TopicPartition("t", 0, 1)])
        message = patient.poll(30)
        assert message is not None
        assert message.error() is None
        assert (message.offset(), message.value()) == (5, b"5"), "4 was aborted"
        patient.close()
        until(lambda: len(list(folder.glob("*.s*"))) == 3, "a segment, its sidecar, and the active one")
        server.sigterm()
        result = CliRunner().invoke(main, ["check", str(server.data)])
        assert result.exit_code == 0, result.output
        assert "sealed, settled" in result.output
