"""Transactions protocol 1, by hand: what kafka-python, aiokafka and librdkafka speak, at its sharp edges.

Every expectation holds on Apache Kafka 4.3.1 too, unless a test says `sealog_only`.
"""

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.raw_kafka import RawKafka
from tests.clients.raw_transactions import (
    RawTransactions,
    committed_offset,
    read_committed,
    settled_offset,
)

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]
SealogOnly = Callable[[str], None]
PRODUCE = 9
END = 3
ROUNDS = 200


@pytest.fixture
def producer(raw: RawKafka, unique: Unique) -> RawTransactions:
    return RawTransactions(raw, unique("v1"))


def add(producer: RawTransactions, topic: str) -> None:
    """AddPartitionsToTxn, asked again while Apache Kafka is still writing the last transaction's markers."""
    while (codes := producer.add_partitions(topic)) == {0: ErrorCode.concurrent_transactions}:
        pass
    assert codes == {0: ErrorCode.none}


def test_epoch_stays_and_sequences_run_on(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    name = topic()
    for number in range(5):
        add(producer, name)
        response = producer.produce(name, [b"%d" % number], sequence=number, version=PRODUCE)
        assert response.error_code is ErrorCode.none
        assert producer.end(commit=True, version=END).error_code is ErrorCode.none
    assert read_committed(raw, name, 5) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_succeeds_and_the_opposite_fails(
    topic: TopicFactory, producer: RawTransactions, commit: bool
) -> None:
    name = topic()
    add(producer, name)
    producer.produce(name, [b"a"], version=PRODUCE)
    for _ in range(3):
        assert producer.end(commit=commit, version=END).error_code is ErrorCode.none
    assert producer.end(commit=not commit, version=END).error_code is ErrorCode.invalid_txn_state


def test_ending_what_never_began_fails(producer: RawTransactions) -> None:
    for commit in (True, False):
        assert producer.end(commit=commit, version=END).error_code is ErrorCode.invalid_txn_state


def test_partitions_are_added_all_or_none(topic: TopicFactory, producer: RawTransactions) -> None:
    name = topic(partitions=2)
    assert producer.add_partitions(name, [0, 77]) == {
        0: ErrorCode.operation_not_attempted,
        77: ErrorCode.unknown_topic_or_partition,
    }
    refused = producer.produce(name, [b"x"], version=PRODUCE)
    assert refused.error_code is ErrorCode.invalid_txn_state
    assert producer.add_partitions(name, [0, 1]) == {0: ErrorCode.none, 1: ErrorCode.none}
    assert producer.produce(name, [b"x"], partition=1, version=PRODUCE).error_code is ErrorCode.none
    assert producer.end(commit=True, version=END).error_code is ErrorCode.none


def test_offsets_in_a_transaction(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions, unique: Unique
) -> None:
    name, group = topic(), unique("group")
    assert producer.add_offsets(group) is ErrorCode.none
    while producer.commit_offset(group, name, 5, version=3) is not ErrorCode.none:
        # The first request to a new group may find its coordinator still starting.
        raw.call("find_coordinator", 4, key_type=0, coordinator_keys=[group])
    assert committed_offset(raw, group, name) == (-1, ErrorCode.unstable_offset_commit)
    assert producer.end(commit=True, version=END).error_code is ErrorCode.none
    assert settled_offset(raw, group, name) == 5


def test_fencing_errors_follow_the_version(topic: TopicFactory, producer: RawTransactions) -> None:
    """Clients of the first versions know only INVALID_PRODUCER_EPOCH (KIP-588)."""
    name = topic()
    add(producer, name)
    producer.produce(name, [b"a"], version=PRODUCE)
    assert producer.init_again().error_code is ErrorCode.none
    assert producer.end(commit=True, version=1).error_code is ErrorCode.invalid_producer_epoch
    assert producer.end(commit=True, version=2).error_code is ErrorCode.producer_fenced
    assert producer.add_partitions(name, version=1) == {0: ErrorCode.invalid_producer_epoch}
    assert producer.add_partitions(name, version=2) == {0: ErrorCode.producer_fenced}
    late = producer.produce(name, [b"late"], sequence=1, version=PRODUCE)
    assert late.error_code is ErrorCode.invalid_producer_epoch


@pytest.mark.parametrize(("version", "expected"), [(3, 47), (4, 90)])
def test_a_fenced_producer_cannot_bump_itself_back(
    raw: RawKafka, producer: RawTransactions, version: int, expected: int
) -> None:
    """KIP-360: InitProducerId with a pid and an old epoch is a zombie's, and must not fence its successor."""
    assert producer.init_again().error_code is ErrorCode.none
    response = raw.call(
        "init_producer_id",
        version,
        transactional_id=producer.transactional_id,
        transaction_timeout=60_000,
        producer_id=producer.pid,
        producer_epoch=producer.epoch,
    )
    assert response.error_code == expected


def test_a_producer_can_bump_its_own_epoch(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    """KIP-360: how a client recovers from a failed batch. What was open is aborted."""
    name = topic()
    add(producer, name)
    producer.produce(name, [b"a"], version=PRODUCE)
    while True:
        response = raw.call(
            "init_producer_id",
            4,
            transactional_id=producer.transactional_id,
            transaction_timeout=60_000,
            producer_id=producer.pid,
            producer_epoch=producer.epoch,
        )
        if response.error_code is not ErrorCode.concurrent_transactions:
            break
    assert (response.error_code, response.producer_id) == (ErrorCode.none, producer.pid)
    assert response.producer_epoch > producer.epoch
    producer.epoch = response.producer_epoch
    add(producer, name)
    assert producer.produce(name, [b"b"], version=PRODUCE).error_code is ErrorCode.none
    assert producer.end(commit=True, version=END).error_code is ErrorCode.none
    assert read_committed(raw, name, 1) == [b"b"]


def test_the_next_transaction_starts_at_once(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions, sealog_only: SealogOnly
) -> None:
    sealog_only(
        "Apache Kafka answers CONCURRENT_TRANSACTIONS until the last transaction's markers are written"
    )
    name = topic()
    for number in range(ROUNDS):
        assert producer.add_partitions(name) == {0: ErrorCode.none}
        response = producer.produce(name, [b"%d" % number], sequence=number, version=PRODUCE)
        assert response.error_code is ErrorCode.none
        ended = raw.end_txn(
            producer.transactional_id, producer.pid, producer.epoch, commit=number % 4 != 3, version=END
        )
        assert ended.error_code is ErrorCode.none
    kept = [b"%d" % number for number in range(ROUNDS) if number % 4 != 3]
    assert read_committed(raw, name, len(kept)) == kept


def test_a_new_instance_is_never_told_to_wait(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions, sealog_only: SealogOnly
) -> None:
    sealog_only("Apache Kafka answers CONCURRENT_TRANSACTIONS until what it fenced is aborted")
    name = topic()
    for number in range(50):
        assert producer.add_partitions(name) == {0: ErrorCode.none}
        assert producer.produce(name, [b"x"], version=PRODUCE).error_code is ErrorCode.none
        if number % 2:
            assert producer.end(commit=False, version=END).error_code is ErrorCode.none
        response = raw.init_producer(producer.transactional_id)
        assert (response.error_code, response.producer_id) == (ErrorCode.none, producer.pid)
        assert response.producer_epoch > producer.epoch
        producer.epoch = response.producer_epoch
    assert read_committed(raw, name, 0) == []


def test_a_record_behind_the_end_is_refused_at_once(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions, sealog_only: SealogOnly
) -> None:
    sealog_only("until its markers are written, Apache Kafka lets a late record join the ended transaction")
    name = topic()
    for number in range(20):
        assert producer.add_partitions(name) == {0: ErrorCode.none}
        response = producer.produce(name, [b"%d" % number], sequence=number, version=PRODUCE)
        assert response.error_code is ErrorCode.none
        assert producer.end(commit=True, version=END).error_code is ErrorCode.none
        late = producer.produce(name, [b"late"], sequence=number + 1, version=PRODUCE)
        assert late.error_code is ErrorCode.invalid_txn_state
    assert read_committed(raw, name, 20) == [b"%d" % number for number in range(20)]


def test_commits_add_no_offsets(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions, sealog_only: SealogOnly
) -> None:
    sealog_only("Apache Kafka adds a marker per transaction and partition")
    name = topic(partitions=3)
    for number in range(10):
        assert set(producer.add_partitions(name, [0, 1, 2]).values()) == {ErrorCode.none}
        for partition in range(3):
            producer.produce(name, [b"x"], partition=partition, sequence=number, version=PRODUCE)
        assert producer.end(commit=True, version=END).error_code is ErrorCode.none
        for partition in range(3):
            assert raw.list_offset(name, partition, -2) == 0
            assert raw.list_offset(name, partition, -1) == number + 1
            assert raw.list_offset(name, partition, -1, committed=True) == number + 1
