"""Apache Kafka's own command line tools, unchanged, as an operator would use them on this broker."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.raw_kafka import RawKafka
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import KafkaTools
from wire.batch import TRANSACTIONAL_BIT
from wire.records import Record, build_batch


class Served(NamedTuple):
    """A broker to run the tools on; Apache Kafka where SEALOG_TEST_BOOTSTRAP names one, to prove the tests."""

    tools: KafkaTools
    process: BrokerProcess | None

    @property
    def is_sealog(self) -> bool:
        return self.process is not None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if bootstrap := os.environ.get("SEALOG_TEST_BOOTSTRAP"):
        yield Served(KafkaTools(bootstrap), None)
        return
    with BrokerProcess(tmp_path_factory.mktemp("tools") / "data") as process:
        yield Served(KafkaTools(process.address), process)
        process.sigterm()


@pytest.fixture
def tools(served: Served) -> KafkaTools:
    return served.tools


def rows(text: str, first_word: str) -> list[list[str]]:
    """The words of every line that begins with this one."""
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first_word]]


def offsets(tools: KafkaTools, topic: str, *args: str) -> list[int]:
    """kafka-get-offsets, by partition."""
    lines = tools.run("get-offsets", "--topic", topic, *args).split()
    return [int(line.split(":")[2]) for line in sorted(lines)]


def test_topics_and_configs_are_kept_over_a_restart(
    served: Served, tools: KafkaTools, unique: Callable[[str], str]
) -> None:
    topic = unique("orders")
    created = tools.run(
        "topics", "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=90000000"
    )
    assert f"Created topic {topic}." in created
    again = tools.run("topics", "--create", "--topic", topic, fails=True)
    assert "already exists" in again
    tools.run("topics", "--alter", "--topic", topic, "--partitions", "5")
    assert "5 partition" in tools.run("topics", "--alter", "--topic", topic, "--partitions", "3", fails=True)
    altered = tools.run(
        "configs",
        "--alter",
        "--topic",
        topic,
        "--add-config",
        "max.message.bytes=2000000,cleanup.policy=[compact,delete],message.timestamp.type=LogAppendTime",
        "--delete-config",
        "retention.ms",
    )
    assert f"Completed updating config for topic {topic}." in altered
    refused = tools.run("configs", "--alter", "--topic", topic, "--add-config", "nonsense=1", fails=True)
    assert "InvalidConfigurationException" in refused
    if served.process is not None:
        served.process.restart()
    described = tools.run("topics", "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s+TopicId: \S+\s+PartitionCount: 5\s+ReplicationFactor: 1", described)
    assert re.findall(r"Partition: (\d)\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described) == list("01234")
    shown = tools.run("configs", "--describe", "--topic", topic)
    assert "cleanup.policy=compact,delete" in shown
    assert (
        "max.message.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000000, "
        in (shown)
    )
    assert "DEFAULT_CONFIG:message.max.bytes=1048588}" in shown
    assert "retention.ms" not in shown
    assert topic in tools.run("topics", "--list").split()
    tools.run("topics", "--delete", "--topic", topic)
    assert topic not in tools.run("topics", "--list").split()


def test_settings_of_the_broker(tools: KafkaTools) -> None:
    tools.run("configs", "--alter", "--broker", "1", "--add-config", "message.max.bytes=3000000")
    tools.run("configs", "--alter", "--broker-defaults", "--add-config", "message.max.bytes=2500000")
    shown = tools.run("configs", "--describe", "--broker", "1")
    assert "message.max.bytes=3000000" in shown
    assert (
        "DYNAMIC_BROKER_CONFIG:message.max.bytes=3000000, DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=2500000"
        in (shown)
    )
    tools.run("configs", "--alter", "--broker", "1", "--delete-config", "message.max.bytes")
    tools.run("configs", "--alter", "--broker-defaults", "--delete-config", "message.max.bytes")
    everything = tools.run("configs", "--describe", "--broker", "1", "--all")
    assert (
        "message.max.bytes=1048588 sensitive=false synonyms={DEFAULT_CONFIG:message.max.bytes=1048588}"
        in (everything)
    )
    assert "node.id=1" in everything


def test_produce_consume_and_delete_records(
    tools: KafkaTools, unique: Callable[[str], str], tmp_path: Path
) -> None:
    topic = unique("lines")
    tools.run("topics", "--create", "--topic", topic, "--partitions", "2")
    lines = "".join(f"key-{number % 3}:value-{number}\n" for number in range(30))
    tools.run(
        "console-producer",
        "--topic",
        topic,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "key.separator=:",
        stdin=lines,
    )
    ends = offsets(tools, topic)
    assert sum(ends) == 30
    read = tools.run(
        "console-consumer",
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "30",
        "--isolation-level",
        "read_committed",
        "--formatter-property",
        "print.key=true",
        "--formatter-property",
        "key.separator=:",
    )
    assert sorted(re.findall(r"^key-\d:value-\d+$", read, re.MULTILINE)) == sorted(lines.split())
    assert "Processed a total of 30 messages" in read
    assert offsets(tools, topic, "--time", "earliest") == [0, 0]
    wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 3}], "version": 1}
    partition = 0 if ends[0] >= 3 else 1
    wanted["partitions"][0]["partition"] = partition  # type: ignore[index]
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(wanted))
    deleted = tools.run("delete-records", "--offset-json-file", str(file))
    assert re.search(rf"partition: {topic}-{partition}\s+low_watermark: 3", deleted)
    assert sorted(offsets(tools, topic, "--time", "earliest")) == [0, 3]
    assert offsets(tools, topic) == ends
    sizes = tools.run("log-dirs", "--describe", "--topic-list", topic)
    found = json.loads(sizes[sizes.index('{"') :])
    (folder,) = found["brokers"][0]["logDirs"]
    assert {one["partition"] for one in folder["partitions"]} == {f"{topic}-0", f"{topic}-1"}
    assert sum(one["size"] for one in folder["partitions"]) > 300


def test_consumer_groups(tools: KafkaTools, unique: Callable[[str], str]) -> None:
    topic, group = unique("read"), unique("readers")
    tools.run("topics", "--create", "--topic", topic, "--partitions", "2")
    tools.run("producer-perf-test", *perf(topic, 100))
    consumer = tools.start("console-consumer", "--topic", topic, "--group", group, "--from-beginning")
    try:
        wait_until_stable(tools.bootstrap, group)
        (row,) = rows(tools.run("consumer-groups", "--describe", "--group", group, "--state"), group)
        assert row[-2:] == ["Stable", "1"], "state and members"
        members = tools.run("consumer-groups", "--describe", "--group", group, "--members")
        assert rows(members, group)[0][-1] == "2", "partitions of the one member"
        busy = tools.run("consumer-groups", "--delete", "--group", group)
        assert "GroupNotEmptyException" in busy
        kept = tools.run("consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
        assert "GroupSubscribedToTopicException" in kept or "subscribed to the topic" in kept
    finally:
        consumer.terminate()
        consumer.communicate(timeout=30)
    assert lag(tools, group, topic) == (100, 0)
    assert "Empty" in tools.run("consumer-groups", "--list", "--state").split(group)[1].split("\n")[0]
    assert group in tools.run("groups", "--list")
    tools.run(
        "consumer-groups", "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
    )
    assert lag(tools, group, topic) == (0, 100)
    tools.run("consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
    assert "was successful" in tools.run("consumer-groups", "--delete", "--group", group)
    assert group not in tools.run("consumer-groups", "--list").split()


def wait_until_stable(bootstrap: str, group: str) -> None:
    deadline = time.monotonic() + 30
    with RawKafka(bootstrap) as raw:
        while raw.call("describe_groups", 0, groups=[group]).groups[0].group_state != "Stable":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def lag(tools: KafkaTools, group: str, topic: str) -> tuple[int, int]:
    """(sum of the committed offsets, sum of the lag)."""
    described = tools.run("consumer-groups", "--describe", "--group", group)
    found = [row for row in rows(described, group) if row[1] == topic]
    assert len(found) == 2, described
    return sum(int(row[3]) for row in found), sum(int(row[5]) for row in found)


def perf(topic: str, records: int) -> list[str]:
    return ["--topic", topic, "--num-records", str(records), "--record-size", "100", "--throughput", "-1"]


def test_performance_tools(tools: KafkaTools, unique: Callable[[str], str]) -> None:
    topic = unique("perf")
    tools.run("topics", "--create", "--topic", topic, "--partitions", "4")
    plain = tools.run("producer-perf-test", *perf(topic, 2_000))
    assert "2000 records sent" in plain
    committed = tools.run(
        "producer-perf-test",
        *perf(topic, 2_000),
        "--transactional-id",
        unique("perf"),
        "--transaction-duration-ms",
        "50",
    )
    assert "2000 records sent" in committed
    read = tools.run("consumer-perf-test", "--topic", topic, "--num-records", "4000")
    figures = [line.split(", ") for line in read.splitlines() if line[:2] == "20"]
    assert int(figures[-1][4]) >= 4_000, read


def test_transactions(served: Served, tools: KafkaTools, unique: Callable[[str], str]) -> None:
    topic = unique("txn")
    first, second = unique("first"), unique("second")
    tools.run("topics", "--create", "--topic", topic)
    with RawKafka(tools.bootstrap) as raw:
        identities = {}
        for name in (first, second):
            producer = raw.init_producer(name)
            identities[name] = producer.producer_id, producer.producer_epoch
            data = build_batch(
                [Record(None, b"x", timestamp=int(time.time() * 1000))],
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                attributes=TRANSACTIONAL_BIT,
            )
            (result,) = raw.produce(topic, {0: data}, transactional_id=name).values()
            assert result.error_code is ErrorCode.none

        def states() -> dict[str, str]:
            listed = tools.run("transactions", "list")
            return {name: row[-1] for name in (first, second) for row in rows(listed, name)}

        assert states() == {first: "Ongoing", second: "Ongoing"}
        described = tools.run("transactions", "describe", "--transactional-id", first)
        assert f"{topic}-0" in described
        assert "Ongoing" in described
        producers = tools.run("transactions", "describe-producers", "--topic", topic, "--partition", "0")
        assert {row[0]: row[-1] for row in map(str.split, producers.splitlines()[1:])} == {
            str(identities[first][0]): "0",
            str(identities[second][0]): "1",
        }
        assert topic not in tools.run("transactions", "find-hanging", "--broker-id", "1")
        tools.run("transactions", "forceTerminateTransaction", "--transactionalId", second)
        assert raw.end_txn(second, *identities[second], commit=True).error_code is ErrorCode.producer_fenced
        tools.run("transactions", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
        assert raw.list_offset(topic, 0, -1, committed=True) == raw.list_offset(topic, 0, -1)
        assert states()[second] == "Empty", "an InitProducerId came after the abort"
        if served.is_sealog:
            # Apache Kafka writes a marker and lets the coordinator believe in an open transaction.
            assert states()[first] == "CompleteAbort"
            answer = raw.end_txn(first, *identities[first], commit=True)
            assert answer.error_code is ErrorCode.producer_fenced, "it ended the other way"
            assert raw.list_offset(topic, 0, -1) == 2, "no markers"


def test_what_the_broker_is(tools: KafkaTools) -> None:
    versions = tools.run("broker-api-versions")
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert "Fetch(1): 4 to 18 [usable: 18]" in versions
    assert "(id: 1 rack: null isFenced: false)" in versions
    assert re.search(r"Cluster ID: \S{22}", tools.run("cluster", "cluster-id"))
    assert re.search(r"transaction.version\s+.*FinalizedVersionLevel: 2", tools.run("features", "describe"))
