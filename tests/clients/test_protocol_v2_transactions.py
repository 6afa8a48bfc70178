"""Transactions protocol 2 (KIP-890 part 2), by hand: no stock Python client speaks it yet, Java and Go do.

Every expectation holds on Apache Kafka 4.3.1 too, unless a test says `sealog_only`.
"""

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.fixtures import Broker
from tests.clients.raw_batches import batch
from tests.clients.raw_kafka import RawKafka
from tests.clients.raw_transactions import RawTransactions, committed_offset, read_committed, settled_offset

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]


@pytest.fixture
def group(raw: RawKafka, unique: Unique) -> str:
    """A group whose coordinator is up."""
    name = unique("group")
    for _ in range(100):
        response = raw.call("find_coordinator", 4, key_type=0, coordinator_keys=[name])
        if response.coordinators[0].error_code is ErrorCode.none:
            break
    return name


@pytest.fixture
def producer(raw: RawKafka, unique: Unique) -> RawTransactions:
    return RawTransactions(raw, unique("v2"))


def test_the_protocol_is_announced_as_a_finalized_feature(raw: RawKafka) -> None:
    response = raw.call("api_versions", 4, client_software_name="raw", client_software_version="1")
    features = {each.name: each.max_version_level for each in response.finalized_features}
    assert features["transaction.version"] == 2
    assert response.finalized_features_epoch >= 0
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    assert supported["transaction.version"][1] >= 2
    ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    for key, version in {0: 12, 22: 5, 26: 5, 28: 5, 24: 5, 25: 4}.items():
        low, high = ranges[key]
        assert low <= version <= high


def test_produce_adds_its_partition_and_each_end_bumps_the_epoch(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    name = topic(partitions=2)
    for number in range(5):
        epoch = producer.epoch
        for partition in (0, 1):
            assert producer.produce(name, [b"%d" % number], partition=partition).error_code is ErrorCode.none
            again = producer.produce(name, [b"more"], partition=partition, sequence=1)
            assert again.error_code is ErrorCode.none
        producer.commit()
        assert producer.epoch == epoch + 1
    for partition in (0, 1):
        values = read_committed(raw, name, 10, partition)
        assert values == [value for number in range(5) for value in (b"%d" % number, b"more")]


def test_sequences_start_at_zero_after_each_bump(topic: TopicFactory, producer: RawTransactions) -> None:
    name = topic()
    assert producer.produce(name, [b"a", b"b"]).error_code is ErrorCode.none
    gap = producer.produce(name, [b"x"], sequence=3)
    assert gap.error_code is ErrorCode.out_of_order_sequence_number
    producer.commit()
    continued = producer.produce(name, [b"x"], sequence=2)
    assert continued.error_code is ErrorCode.out_of_order_sequence_number
    assert producer.produce(name, [b"c"]).error_code is ErrorCode.none
    producer.commit()


def test_a_repeated_batch_is_stored_once(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    name = topic()
    first = producer.produce(name, [b"a", b"b"])
    assert producer.produce(name, [b"c"], sequence=2).error_code is ErrorCode.none
    repeat = producer.produce(name, [b"a", b"b"])
    assert (repeat.error_code, repeat.base_offset) == (ErrorCode.none, first.base_offset)
    producer.commit()
    assert read_committed(raw, name, 3) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_answers_as_the_first_did(
    broker: Broker, topic: TopicFactory, producer: RawTransactions, commit: bool
) -> None:
    """A client that lost the answer asks again with its old epoch; the opposite end is an error by then."""
    name = topic()
    assert producer.produce(name, [b"a"]).error_code is ErrorCode.none
    first = producer.end(commit=commit)
    assert (first.error_code, first.producer_epoch) == (ErrorCode.none, producer.epoch + 1)
    for _ in range(3):
        repeat = producer.end(commit=commit)
        assert (repeat.error_code, repeat.producer_id) == (ErrorCode.none, producer.pid)
        assert repeat.producer_epoch == producer.epoch + 1
    opposite = producer.end(commit=not commit).error_code
    # Apache Kafka fences a commit after an abort in later versions (KAFKA-20785).
    fences = broker.is_sealog and not commit
    assert opposite is (ErrorCode.producer_fenced if fences else ErrorCode.invalid_txn_state)
    # None of this touched the next transaction.
    producer.epoch = first.producer_epoch
    assert producer.produce(name, [b"b"]).error_code is ErrorCode.none
    producer.commit()


def test_ends_with_epochs_of_others(topic: TopicFactory, producer: RawTransactions) -> None:
    name = topic()
    for _ in range(3):
        assert producer.produce(name, [b"a"]).error_code is ErrorCode.none
        producer.commit()
    assert producer.end(commit=True, epoch=producer.epoch - 2).error_code is ErrorCode.producer_fenced
    assert producer.end(commit=True, epoch=producer.epoch + 1).error_code is ErrorCode.producer_fenced
    stranger = producer.raw.end_txn(producer.transactional_id, producer.pid + 1000, 0, commit=True)
    assert stranger.error_code is ErrorCode.invalid_producer_id_mapping
    unknown = producer.raw.end_txn(producer.transactional_id + "-other", producer.pid, 0, commit=True)
    assert unknown.error_code is ErrorCode.invalid_producer_id_mapping


def test_an_empty_abort_bumps_the_epoch(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    """A record that never left the client makes it abort a transaction that the broker never heard of."""
    name = topic()
    for _ in range(2):
        epoch = producer.epoch
        producer.abort()
        assert producer.epoch == epoch + 1
        assert producer.end(commit=False, epoch=epoch).producer_epoch == producer.epoch
    assert producer.produce(name, [b"a"]).error_code is ErrorCode.none
    producer.commit()
    producer.abort()
    assert producer.produce(name, [b"b"]).error_code is ErrorCode.none
    producer.commit()
    assert read_committed(raw, name, 2) == [b"a", b"b"]


def test_an_empty_commit_is_refused_without_harm(
    broker: Broker, raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    """There is nothing to commit, so a client that believes otherwise must not be told that it was."""
    name = topic()
    if broker.is_sealog:
        # Its records may be on their way: the Java client's sender can let the commit go first.
        assert producer.end(commit=True).error_code is ErrorCode.coordinator_load_in_progress
    assert producer.end(commit=True).error_code is ErrorCode.invalid_txn_state
    assert producer.produce(name, [b"a"]).error_code is ErrorCode.none
    producer.commit()
    if broker.is_sealog:
        assert producer.end(commit=True).error_code is ErrorCode.coordinator_load_in_progress
    assert producer.end(commit=True).error_code is ErrorCode.invalid_txn_state
    assert producer.produce(name, [b"b"]).error_code is ErrorCode.none
    producer.commit()
    assert read_committed(raw, name, 2) == [b"a", b"b"]


def test_stale_epochs_write_nothing(
    raw: RawKafka, topic: TopicFactory, group: str, producer: RawTransactions
) -> None:
    name = topic()
    assert producer.produce(name, [b"a"]).error_code is ErrorCode.none
    producer.commit()
    stale = producer.epoch - 1
    # Until its markers are written, Apache Kafka takes the late record into the committed transaction.
    assert producer.end(commit=True, epoch=stale).error_code is ErrorCode.none
    late = producer.produce(name, [b"late"], sequence=1, epoch=stale)
    assert late.error_code is ErrorCode.invalid_producer_epoch
    for epoch in (stale, producer.epoch + 1):
        code = producer.commit_offset(group, name, 3, epoch=epoch)
        assert code is ErrorCode.invalid_producer_epoch
    assert producer.produce(name, [b"b"]).error_code is ErrorCode.none
    producer.commit()
    assert read_committed(raw, name, 2) == [b"a", b"b"]
    assert committed_offset(raw, group, name) == (-1, ErrorCode.none)


def test_initialising_again_fences_and_aborts(
    raw: RawKafka, topic: TopicFactory, group: str, producer: RawTransactions
) -> None:
    """The bump is 2 with a transaction open: one ends it, one is the new instance's."""
    name = topic()
    assert producer.produce(name, [b"of the old"]).error_code is ErrorCode.none
    response = producer.init_again()
    assert (response.error_code, response.producer_id) == (ErrorCode.none, producer.pid)
    assert response.producer_epoch == producer.epoch + 2

    late = producer.produce(name, [b"late"], sequence=1)
    assert late.error_code is ErrorCode.invalid_producer_epoch
    assert producer.end(commit=True).error_code is ErrorCode.producer_fenced
    assert producer.end(commit=True, version=1).error_code is ErrorCode.invalid_producer_epoch
    assert producer.commit_offset(group, name, 3) is ErrorCode.invalid_producer_epoch
    assert producer.add_partitions(name, version=3) == {0: ErrorCode.producer_fenced}
    assert producer.add_partitions(name, version=0) == {0: ErrorCode.invalid_producer_epoch}

    producer.epoch = response.producer_epoch
    assert producer.produce(name, [b"of the new"]).error_code is ErrorCode.none
    producer.commit()
    assert read_committed(raw, name, 1) == [b"of the new"]


def test_initialising_again_with_nothing_open_bumps_by_one(producer: RawTransactions) -> None:
    response = producer.init_again()
    assert (response.error_code, response.producer_epoch) == (ErrorCode.none, producer.epoch + 1)


def test_offsets_need_no_add_offsets(
    raw: RawKafka, topic: TopicFactory, group: str, producer: RawTransactions
) -> None:
    name = topic()
    assert producer.commit_offset(group, name, 7) is ErrorCode.none
    assert committed_offset(raw, group, name) == (-1, ErrorCode.unstable_offset_commit)
    assert committed_offset(raw, group, name, stable=False) == (-1, ErrorCode.none)
    producer.commit()
    assert settled_offset(raw, group, name) == 7

    assert producer.commit_offset(group, name, 9) is ErrorCode.none
    producer.abort()
    assert settled_offset(raw, group, name) == 7

    assert (
        producer.commit_offset(group, name, 9, generation=3, member="nobody") is ErrorCode.unknown_member_id
    )
    producer.abort()
    assert settled_offset(raw, group, name) == 7


def test_offsets_are_there_when_the_commit_is_answered(
    raw: RawKafka,
    topic: TopicFactory,
    group: str,
    producer: RawTransactions,
    sealog_only: Callable[[str], None],
) -> None:
    sealog_only("Apache Kafka frees the offsets some milliseconds after it has answered EndTxn")
    name = topic()
    for offset in range(1, 20):
        assert producer.commit_offset(group, name, offset) is ErrorCode.none
        producer.commit()
        assert committed_offset(raw, group, name) == (offset, ErrorCode.none)


def test_older_versions_still_have_to_add_first(
    topic: TopicFactory, group: str, producer: RawTransactions
) -> None:
    name = topic()
    assert producer.produce(name, [b"x"], version=11).error_code is ErrorCode.transaction_abortable
    assert producer.produce(name, [b"x"], version=9).error_code is ErrorCode.invalid_txn_state
    assert producer.commit_offset(group, name, 1, version=4) is ErrorCode.transaction_abortable
    assert producer.commit_offset(group, name, 1, version=3) is ErrorCode.invalid_txn_state


def test_produce_under_a_foreign_or_missing_id(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    missing = producer.produce(topic(), [b"x"], transactional_id=None)
    assert missing.error_code is ErrorCode.transactional_id_authorization_failed


def test_first_batch_of_a_transaction_has_sequence_zero(
    topic: TopicFactory, producer: RawTransactions
) -> None:
    """What protocol 2 adds over protocol 1: a lost first batch can't go unnoticed."""
    response = producer.produce(topic(), [b"x"], sequence=5)
    assert response.error_code is ErrorCode.out_of_order_sequence_number


def test_after_a_timeout_the_old_epoch_can_only_abort(
    broker: Broker, raw: RawKafka, topic: TopicFactory, group: str, unique: Unique
) -> None:
    name = topic()
    producer = RawTransactions(raw, unique("v2"), timeout_ms=500)
    assert producer.produce(name, [b"idle"]).error_code is ErrorCode.none
    blocked = raw.fetch(name, 0, 0, committed=False)
    assert (blocked.last_stable_offset, blocked.high_watermark) == (0, 1)
    plain = RawTransactions(raw, unique("v2"))
    assert plain.produce(name, [b"after it"]).error_code is ErrorCode.none
    plain.commit()
    assert read_committed(raw, name, 1) == [b"after it"]

    late = producer.produce(name, [b"late"], sequence=1)
    assert late.error_code is ErrorCode.invalid_producer_epoch
    commit = producer.end(commit=True).error_code
    assert commit is (ErrorCode.producer_fenced if broker.is_sealog else ErrorCode.invalid_txn_state)
    producer.abort()
    assert producer.produce(name, [b"again"]).error_code is ErrorCode.none
    producer.commit()
    assert read_committed(raw, name, 2) == [b"after it", b"again"]


@pytest.mark.parametrize("timeout_ms", [0, -1, 1_000_000_000])
def test_impossible_timeouts_are_refused(raw: RawKafka, unique: Unique, timeout_ms: int) -> None:
    response = raw.init_producer(unique("v2"), timeout_ms=timeout_ms)
    assert response.error_code is ErrorCode.invalid_transaction_timeout


def test_plain_batches_of_a_transactional_producer_stay_plain(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    """Idempotent, without the transactional bit: visible at once, whatever request carried it."""
    name = topic()
    data = batch([b"plain"], pid=producer.pid, epoch=producer.epoch, sequence=0)
    response = raw.produce(name, {0: data}, transactional_id=producer.transactional_id)[0]
    assert response.error_code is ErrorCode.none
    assert read_committed(raw, name, 1) == [b"plain"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_record_behind_the_end_is_refused_at_once(
    raw: RawKafka,
    topic: TopicFactory,
    producer: RawTransactions,
    commit: bool,
    sealog_only: Callable[[str], None],
) -> None:
    sealog_only("until its markers are written, Apache Kafka lets a late record join the ended transaction")
    name = topic()
    for number in range(20):
        assert producer.produce(name, [b"%d" % number]).error_code is ErrorCode.none
        old = producer.epoch
        ended = producer.end(commit=commit)
        late = producer.produce(name, [b"late"], sequence=1, epoch=old)
        assert late.error_code is ErrorCode.invalid_producer_epoch
        producer.epoch = ended.producer_epoch
    assert read_committed(raw, name, 20 if commit else 0) == [b"%d" % n for n in range(20) if commit]
