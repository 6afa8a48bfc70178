"""A whole node in virtual time: what a commit costs, and what it guarantees (design, sections 4 and 5)."""

from __future__ import annotations

import pytest
from support.sim_node import SimNode
from support.sim_producer import (
    Producer,
    create_topic,
    fetch_fields,
    list_offset,
    read_all,
)

from wire.apis import ApiKey
from wire.errors import ErrorCode

FLUSH_MS = 5.0

both_protocols = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])


def commit_in_flight(world: SimNode, producer: Producer) -> tuple[float, dict[str, int]]:
    """(virtual ms from EndTxn to its answer, flushes per path meanwhile)."""
    world.scheduler.advance(10_000)  # whatever was lingering is flushed and settled
    before = world.disk.flushes.copy()
    began = world.scheduler._now_ms
    number = producer.end_request(True)
    client = producer.client
    world.scheduler.run_until(lambda: number in client.answers)
    assert producer.take_end(client.answers[number]) is ErrorCode.none
    return client.answered_at_ms[number] - began, dict(world.disk.flushes - before)


@both_protocols
@pytest.mark.parametrize("width", [1, 10, 100])
def test_a_commit_costs_one_flush_delay_however_many_partitions(width: int, v2: bool) -> None:
    """One flush of the metadata log and one of the range, side by side: one delay, not two."""
    world = SimNode(flush_delay_ms=FLUSH_MS, flush_linger_ms=60_000)
    client = world.client()
    create_topic(client, "t", width)
    producer = Producer(client, "p", v2=v2)
    producer.init()
    assert set(producer.send("t", {p: [b"x"] for p in range(width)}).values()) == {ErrorCode.none}
    world.scheduler.run_ready()
    world.disk.most_flushes_in_flight = 0
    # No waiting for lingering flushes here: the records are still unflushed when the commit comes.
    before = world.disk.flushes.copy()
    began = world.scheduler._now_ms
    number = producer.end_request(True)
    world.scheduler.run_until(lambda: number in client.answers)
    flushed = world.disk.flushes - before
    assert client.answers[number].error_code is ErrorCode.none
    assert client.answered_at_ms[number] - began == FLUSH_MS
    assert sorted(path.split("/")[0] for path in flushed) == ["metadata", "topics"]
    assert set(flushed.values()) == {1}
    assert world.disk.most_flushes_in_flight == 2


def test_three_topics_cost_one_flush_delay_as_well() -> None:
    world = SimNode(flush_delay_ms=FLUSH_MS, flush_linger_ms=60_000)
    client = world.client()
    producer = Producer(client, "p")
    producer.init()
    for topic in ("a", "b", "c"):
        create_topic(client, topic, 3)
        producer.send(topic, {p: [b"x"] for p in range(3)})
    before = world.disk.flushes.copy()
    began = world.scheduler._now_ms
    number = producer.end_request(True)
    world.scheduler.run_until(lambda: number in client.answers)
    assert client.answered_at_ms[number] - began == FLUSH_MS
    assert sum((world.disk.flushes - before).values()) == 4


def test_a_commit_whose_data_is_durable_already_flushes_the_metadata_log_alone() -> None:
    world = SimNode(flush_delay_ms=FLUSH_MS)
    client = world.client()
    create_topic(client, "t", 2)
    producer = Producer(client, "p")
    producer.init()
    producer.send("t", {0: [b"x"], 1: [b"y"]})
    taken_ms, flushed = commit_in_flight(world, producer)
    assert taken_ms == FLUSH_MS
    assert [path.split("/")[0] for path in flushed] == ["metadata"]


@both_protocols
def test_nothing_is_visible_before_the_commit_and_all_of_it_after(v2: bool) -> None:
    world = SimNode(flush_delay_ms=FLUSH_MS)
    client, reader = world.client(), world.client()
    create_topic(client, "t", 2)
    producer = Producer(client, "p", v2=v2)
    producer.init()
    producer.send("t", {0: [b"a", b"b"], 1: [b"c"]})
    world.scheduler.advance(1000)
    assert list_offset(reader, "t", committed=True) == 0
    assert list_offset(reader, "t", committed=False) == 2
    assert read_all(reader, "t", committed=False)[0] == [b"a", b"b"]
    assert producer.end() is ErrorCode.none
    assert read_all(reader, "t", 0) == ([b"a", b"b"], 2)
    assert read_all(reader, "t", 1) == ([b"c"], 1)


def test_a_waiting_fetch_is_woken_by_the_commit() -> None:
    world = SimNode(flush_delay_ms=FLUSH_MS)
    client, reader = world.client(), world.client()
    create_topic(client, "t")
    producer = Producer(client, "p")
    producer.init()
    producer.send("t", {0: [b"a"]})
    world.scheduler.advance(100)
    number = reader.send(ApiKey.FETCH, 11, **fetch_fields("t", 0, max_wait_ms=60_000))
    world.scheduler.advance(100)
    assert number not in reader.answers
    ended = producer.end_request(True)
    world.scheduler.run_until(lambda: ended in client.answers and number in reader.answers)
    assert reader.answered_at_ms[number] == client.answered_at_ms[ended]


def test_an_empty_fetch_is_held_for_the_whole_wait_and_a_little_more() -> None:
    """kafka-go cuts its own deadline to whole milliseconds and reconnects on an early answer."""
    world = SimNode()
    client = world.client()
    create_topic(client, "t")
    began = world.scheduler._now_ms
    number = client.send(ApiKey.FETCH, 11, **fetch_fields("t", 0, max_wait_ms=250))
    world.scheduler.run_until(lambda: number in client.answers)
    assert 250 < client.answered_at_ms[number] - began < 260


@both_protocols
def test_the_next_transaction_starts_at_once(v2: bool) -> None:
    """No CONCURRENT_TRANSACTIONS for a transaction that has ended (T6). More in test_known_faults.py."""
    world = SimNode()
    client = world.client()
    create_topic(client, "t")
    producer = Producer(client, "p", v2=v2)
    producer.init()
    for round_number in range(20):
        assert producer.send("t", {0: [b"%d" % round_number]}) == {0: ErrorCode.none}
        assert producer.end(commit=round_number % 2 == 0) is ErrorCode.none
    assert read_all(client, "t")[0] == [b"%d" % n for n in range(0, 20, 2)]


def test_a_request_that_comes_during_an_end_waits_for_it() -> None:
    """InitProducerId while EndTxn is in flight: answered late, not with CONCURRENT_TRANSACTIONS."""
    world = SimNode(flush_delay_ms=FLUSH_MS)
    client, other = world.client(), world.client()
    create_topic(client, "t")
    producer = Producer(client, "p")
    producer.init()
    producer.send("t", {0: [b"a"]})
    ended = producer.end_request(True)
    second = Producer(other, "p")
    assert second.init() is ErrorCode.none
    assert client.answers[ended].error_code is ErrorCode.none
    assert second.epoch == client.answers[ended].producer_epoch + 1
    assert read_all(client, "t")[0] == [b"a"]


@both_protocols
def test_offsets_hold_no_holes_after_commits(v2: bool) -> None:
    """redpanda issue 25918 (an end that is one too high) is in test_known_faults.py, with aborts and restarts."""
    world = SimNode()
    client = world.client()
    create_topic(client, "t")
    producer = Producer(client, "p", v2=v2)
    producer.init()
    for _ in range(7):
        producer.send("t", {0: [b"a", b"b"]})
        producer.end()
    assert list_offset(client, "t") - list_offset(client, "t", at=-2) == 14


def test_a_failed_log_flush_aborts_the_commit_and_never_answers_success() -> None:
    world = SimNode(flush_linger_ms=60_000)
    client = world.client()
    create_topic(client, "t")
    producer = Producer(client, "p")
    producer.init()
    producer.send("t", {0: [b"a"]})
    world.disk.fail("flush", "topics/")
    assert producer.end() is ErrorCode.kafka_storage_error
    assert producer.send("t", {0: [b"b"]})[0] is not ErrorCode.none


def test_a_failed_metadata_flush_answers_no_success_and_recovery_decides_once() -> None:
    world = SimNode(flush_linger_ms=60_000)
    client = world.client()
    create_topic(client, "t")
    producer = Producer(client, "p")
    producer.init()
    producer.send("t", {0: [b"a"]})
    world.disk.fail("flush", "metadata/")
    assert producer.end() is ErrorCode.coordinator_not_available
    world.kill()
    client = world.client()
    first = read_all(client, "t")
    assert first[1] == list_offset(client, "t", committed=False), "nothing may stay undecided"
    world.kill()
    assert read_all(world.client(), "t") == first, "a verdict never changes (T4)"
