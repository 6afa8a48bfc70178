"""The new consumer group protocol (KIP-848) through librdkafka: what holds for classic groups, and more.

The scenarios of `test_client_groups` are run once more with it, against the broker of the session. Those here that
kill the broker start their own; like all tests here they hold on Apache Kafka too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest

from tests.clients.adapter_base import READ_COMMITTED, Consumer, Record
from tests.clients.adapter_confluent import Confluent, ConfluentConsumer
from tests.clients.features import shows
from tests.clients.fixtures import Broker, Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.scenario_tools import eventually, send_all, take, values
from tests.clients.test_client_groups import (
    PARTITIONS,
    fill,
    next_offsets,
    poll_all,
    settle,
    test_a_group_without_members_keeps_offsets_of_assigned_readers,
    test_a_static_member_comes_back_to_its_partitions,
    test_committed_offsets_resume,
    test_exactly_once_loop_with_redo,
    test_members_share_and_the_one_left_takes_all,
    test_offsets_of_an_aborted_transaction_are_not_committed,
)
from tests.clients.test_client_restart import kill_and_start, server
from tests.support.broker_process import ServerProcess

__all__ = (
    "server",
    "test_a_group_without_members_keeps_offsets_of_assigned_readers",
    "test_a_static_member_comes_back_to_its_partitions",
    "test_committed_offsets_resume",
    "test_exactly_once_loop_with_redo",
    "test_members_share_and_the_one_left_takes_all",
    "test_offsets_of_an_aborted_transaction_are_not_committed",
)

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]


class NewConsumer(ConfluentConsumer):
    pass


class NewProtocol(Confluent):
    """librdkafka with group.protocol=consumer. Sessions and heartbeats are the broker's business then."""

    name = "confluent-kafka, new protocol"
    shows = "groups of KIP-848"

    def consumer(
        self,
        *,
        isolation: str = READ_COMMITTED,
        group: str | None = None,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        max_wait_ms: int = 100,
        assignor: str | None = None,
    ) -> Consumer:
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.protocol": "consumer",
            "group.id": group or "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": max_wait_ms,
            "log_level": 0,
        }
        if instance_id is not None:
            config["group.instance.id"] = instance_id
        if assignor is not None:
            config["group.remote.assignor"] = assignor
        return NewConsumer(confluent_kafka.Consumer(config))


@pytest.fixture
def clients(broker: Broker) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(NewProtocol(broker.bootstrap), stack)


@pytest.fixture
def opened(server: ServerProcess) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(NewProtocol(server.address), stack)


def described(raw: RawKafka, group: str) -> Any:
    return raw.call("consumer_group_describe", 1, group_ids=[group]).groups[0]


@shows("groups of KIP-848")
def test_it_is_the_new_protocol(clients: Opened, raw: RawKafka, topic: TopicFactory, unique: Unique) -> None:
    name, group = topic(partitions=2), unique("group")
    member = clients.consumer(group=group, assignor="range")
    member.subscribe(name)
    settle([member], [2])
    found = described(raw, group)
    assert (found.group_state, found.assignor_name, len(found.members)) == ("Stable", "range", 1)


@shows("groups of KIP-848")
def test_a_pattern_takes_topics_as_they_come(clients: Opened, raw: RawKafka, unique: Unique) -> None:
    prefix, group = unique("prefix"), unique("group")
    for number in range(2):
        raw.create_topic(f"{prefix}.{number}", 2)
    raw.create_topic(unique("other"), 1)
    first, second = clients.consumer(group=group), clients.consumer(group=group)
    first.subscribe(f"^{prefix}.*")
    settle([first], [4])
    second.subscribe(f"^{prefix}.*")
    settle([first, second], [2, 2])
    raw.create_topic(f"{prefix}.new", 2)
    settle([first, second], [3, 3])
    producer = clients.producer()
    send_all(producer, (f"{prefix}.new", 0), [b"a"])
    producer.flush()
    found: list[bytes | None] = []
    eventually(lambda: bool(found), "it", step=lambda: found.extend(values(poll_all([first, second]))))
    assert found == [b"a"]


def refusal(consumer: Consumer) -> str:
    """What librdkafka says of the fatal error that its first heartbeats bring."""
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        eventually(lambda: False, "an error", step=lambda: consumer.poll(0.1))
    assert refused.value.args[0].code() == confluent_kafka.KafkaError._FATAL
    return str(refused.value)


def test_a_pattern_that_is_none_is_an_error(clients: Opened, unique: Unique) -> None:
    consumer = clients.consumer(group=unique("group"))
    consumer.subscribe(r"^(a)\1.*")  # librdkafka itself would take it
    assert "The regular expression is not valid" in refusal(consumer)


def test_an_assignor_nobody_has_is_an_error(clients: Opened, topic: TopicFactory, unique: Unique) -> None:
    consumer = clients.consumer(group=unique("group"), assignor="sticky")
    consumer.subscribe(topic())
    assert "The assignor or its version range is not supported" in refusal(consumer)


@shows("groups of KIP-848")
def test_one_after_the_other_changes_its_protocol(
    clients: Opened, broker: Broker, raw: RawKafka, topic: TopicFactory, unique: Unique
) -> None:
    """A rolling upgrade, and back again, while records come: all of them are read."""
    name, group = topic(partitions=PARTITIONS), unique("group")
    read: list[Record] = []
    written = 0
    with ExitStack() as stack:
        old = Opened(Confluent(broker.bootstrap), stack)
        members: list[Consumer] = []

        def step() -> None:
            found = poll_all(members)
            read.extend(found)
            for member in members:
                mine = {at: end for at, end in next_offsets(found).items() if at in member.assignment()}
                with contextlib.suppress(confluent_kafka.KafkaException):  # it may be another's by now
                    member.commit(mine)

        for protocol in (old, old, clients, clients, old, old):
            if len(members) == 2:
                members.pop(0).close()
            members.append(protocol.consumer(group=group))
            members[-1].subscribe(name)
            read += settle(members, [4] if len(members) == 1 else [2, 2])
            fill(clients, name, 5)
            written += 5
            everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(written)}
            eventually(
                lambda: {(record.partition, record.offset) for record in read} == everything,  # noqa: B023
                f"all of {written} in each",
                step=step,
            )
            kinds = [int(isinstance(member, NewConsumer)) for member in members]
            found = described(raw, group)
            if any(kinds):
                assert sorted(member.member_type for member in found.members) == sorted(kinds)
            else:
                assert found.error_code.name == "group_id_not_found", "it is a classic group"


@shows("groups of KIP-848")
def test_members_go_on_after_a_kill(opened: Opened, server: ServerProcess, unique: Unique) -> None:
    name, group = unique("topic"), unique("group")
    with RawKafka(server.address) as raw:
        raw.create_topic(name, PARTITIONS)
    members = [opened.consumer(group=group) for _ in range(2)]
    for member in members:
        member.subscribe(name)
    settle(members, [2, 2])
    shares = [member.assignment() for member in members]
    with RawKafka(server.address) as raw:
        epoch = described(raw, group).group_epoch
    fill(opened, name, 5)
    kill_and_start(server, group)
    found: list[Any] = []
    eventually(lambda: len(found) >= 5 * PARTITIONS, "all", step=lambda: found.extend(poll_all(members)))
    assert [member.assignment() for member in members] == shares
    for member in members:
        member.commit({at: offset for at, offset in next_offsets(found).items() if at in member.assignment()})
    with RawKafka(server.address) as raw:
        now = described(raw, group)
    assert (now.group_state, now.group_epoch, len(now.members)) == ("Stable", epoch, 2)


@shows("groups of KIP-848")
def test_a_transaction_with_offsets_over_a_kill(
    opened: Opened, server: ServerProcess, unique: Unique
) -> None:
    """Consume, transform, produce; the broker dies between the offsets and the commit, which holds all the same.

    Each transaction has its own producer: once a broker died, librdkafka 2.16 sends no group offsets any more.
    """
    name, output, group, transactional_id = unique("topic"), unique("output"), unique("group"), unique("tx")
    with RawKafka(server.address) as raw:
        raw.create_topic(name, 1)
        raw.create_topic(output, 1)
    source = opened.producer()
    send_all(source, (name, 0), [b"%d" % number for number in range(10)])
    source.flush()
    consumer = opened.consumer(group=group)
    consumer.subscribe(name)
    end = 0
    while end < 10:
        records = take(consumer, 1)[:5]
        producer = opened.producer(transactional_id=transactional_id)
        producer.begin()
        for record in records:
            assert record.value is not None
            producer.send(output, 0, b"out " + record.value)
        producer.flush()
        producer.send_offsets(consumer, next_offsets(records))
        kill_and_start(server, group)
        producer.commit()
        end = next_offsets(records)[(name, 0)]
        eventually(lambda: consumer.committed((name, 0)) == end, "the offset")  # noqa: B023
        consumer.seek((name, 0), end)
    reader = opened.consumer()
    reader.assign([(output, 0)])
    assert values(take(reader, 10)) == [b"out %d" % number for number in range(10)]
