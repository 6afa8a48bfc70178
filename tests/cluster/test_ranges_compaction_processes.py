"""Three real processes that compact, each with a worker of its own: stock clients, kills, a node that was away."""

from __future__ import annotations

import json
import os

from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.cli import main
from tests.cluster.brokers import Brokers
from tests.cluster.test_ranges_retention_processes import PATIENCE_S, wait_until
from tests.crash.isolated import isolated

KEYS = 40
PARTITIONS = 2
TABLE = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "65536",
    "delete.retention.ms": "600000",
}


class CompactingBrokers(Brokers):
    groups = "ranges"
    config = "compaction_interval_ms = 200\nretention_check_interval_ms = 300\n"


def write(brokers, table, rounds, *, transactional):
    """Rounds over all keys; some are deleted. Transactions that are aborted stand between those that are not."""
    config = {
        "bootstrap.servers": brokers.bootstrap,
        "enable.idempotence": True,
        "compression.type": "zstd",
        "batch.size": 10_000,
    }
    if transactional:
        config["transactional.id"] = "writer"
    producer = Producer(config)
    if transactional:
        producer.init_transactions(PATIENCE_S)
    for number in range(rounds):
        aborted = transactional and number % 3 == 1
        if transactional:
            producer.begin_transaction()
        for key in range(KEYS):
            value = None if (number + key) % 9 == 0 else b"%d.%d." % (key, len(table)) + os.urandom(400)
            name = b"key-%d" % key
            if aborted:
                producer.produce("table", b"aborted", name, partition=key % PARTITIONS)
            else:
                table[name] = value
                producer.produce("table", value, name, partition=key % PARTITIONS)
            producer.poll(0)
        if transactional:
            (producer.abort_transaction if aborted else producer.commit_transaction)(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def read(brokers):
    """(how many records, the table that they make)"""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition("table", number, 0) for number in range(PARTITIONS)])
    count, table, ended = 0, {}, set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "the end was never reached"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
                continue
            count += 1
            table[message.key()] = message.value()
        return count, {key: value for key, value in table.items() if value is not None}
    finally:
        consumer.close()


def expected(table):
    return {key: value for key, value in table.items() if value is not None}


def generations(brokers, node):
    folder = brokers.folder / str(node) / "ranges"
    return sum(path.name.count(".") == 2 for path in folder.glob("*/*.seg"))


def through_compaction(folder):
    with CompactingBrokers(folder) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("table", PARTITIONS, 3, config=TABLE)])["table"].result(PATIENCE_S)
        table = {}
        write(brokers, table, 12, transactional=True)
        write(brokers, table, 30, transactional=False)
        wait_until(
            lambda: all(generations(brokers, node) > 1 for node in brokers.nodes), "nothing is compacted"
        )
        wait_until(lambda: read(brokers)[0] < 16 * KEYS, "too much is left")
        assert read(brokers)[1] == expected(table)

        away = (brokers.leader() + 1) % 3
        brokers.kill(away)
        write(brokers, table, 20, transactional=False)
        others = [node for node in brokers.nodes if node != away]
        wait_until(lambda: read(brokers)[0] < 20 * KEYS, "too much is left")
        assert read(brokers)[1] == expected(table)
        brokers.launch(away)
        brokers.leader()
        wait_until(
            lambda: "replaced by the leader's segments" in brokers.log(away), "it was to fetch segments"
        )
        # It leads with what it has.
        for node in others[:1]:
            brokers.kill(node)
        write(brokers, table, 2, transactional=True)
        assert read(brokers)[1] == expected(table)
        brokers.launch(others[0])
        brokers.leader()
    for node in brokers.nodes:
        root = str(folder / str(node))
        checked = CliRunner().invoke(main, ["check", root])
        assert checked.exit_code == 0, checked.output
        assert "ok" in checked.output
        for one in (folder / str(node) / "ranges").iterdir():
            dumped = CliRunner().invoke(main, ["dump", str(one), "--json"])
            assert dumped.exit_code == 0, dumped.output[-2000:]
            kinds = {json.loads(line)["kind"] for line in dumped.output.splitlines()}
            assert {"segment", "batch", "entry"} <= kinds


def test_a_table_on_three_nodes(tmp_path):
    isolated(through_compaction, tmp_path)
