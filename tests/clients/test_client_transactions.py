"""Transactions as applications see them, through every client: all or nothing, in order, nothing twice."""

from collections.abc import Callable

import pytest

from tests.clients.adapter_base import READ_UNCOMMITTED
from tests.clients.features import shows
from tests.clients.fixtures import Opened
from tests.clients.scenario_tools import (
    COMPRESSIONS,
    HANG_S,
    eventually,
    send_all,
    take,
    take_rest,
    transaction,
    values,
)

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]


@shows("transactional produce")
@shows("read_committed")
def test_committed_transactions_are_read_whole_and_in_order(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name = topic(partitions=2)
    producer = clients.producer(transactional_id=unique("tx"))
    for number in range(5):
        transaction(producer, {(name, 0): [b"a%d" % number, b"b%d" % number], (name, 1): [b"c%d" % number]})
    consumer = clients.consumer()
    consumer.assign([(name, 0), (name, 1)])
    records = take(consumer, 15)
    assert values(r for r in records if r.partition == 0) == [
        letter + b"%d" % n for n in range(5) for letter in (b"a", b"b")
    ]
    assert values(r for r in records if r.partition == 1) == [b"c%d" % n for n in range(5)]


@shows("compression")
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_inside_transactions(
    clients: Opened, topic: TopicFactory, unique: Unique, compression: str
) -> None:
    """Also next to uncompressed ones, of a predecessor and of a successor with the same transactional id."""
    name, transactional_id = topic(), unique("tx")
    for each in ("none", compression, "none"):
        producer = clients.producer(transactional_id=transactional_id, compression=each)
        transaction(producer, {(name, 0): [b"aborted " * 50]}, commit=False)
        transaction(producer, {(name, 0): [each.encode() * 50] * 3})
        producer.close()
    consumer = clients.consumer()
    consumer.assign([(name, 0)])
    expected = [each.encode() * 50 for each in ("none", compression, "none") for _ in range(3)]
    assert values(take(consumer, len(expected))) == expected


@shows("read_committed")
def test_aborted_run_in_the_middle_is_never_read(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name = topic()
    producer = clients.producer(transactional_id=unique("tx"))
    transaction(producer, {(name, 0): [b"first"]})
    transaction(producer, {(name, 0): [b"no"] * 5}, commit=False)
    transaction(producer, {(name, 0): [b"no"] * 2}, commit=False)
    transaction(producer, {(name, 0): [b"last"]})
    consumer = clients.consumer()
    consumer.assign([(name, 0)])
    assert values(take(consumer, 2)) == [b"first", b"last"]


@shows("read_committed")
@pytest.mark.parametrize("committed_before", [0, 2])
def test_reader_gets_past_an_aborted_tail(
    clients: Opened, topic: TopicFactory, unique: Unique, committed_before: int
) -> None:
    """Its position reaches the end of the log, from any start, and a later commit reaches it."""
    name = topic()
    partition = (name, 0)
    producer = clients.producer(transactional_id=unique("tx"))
    if committed_before:
        transaction(producer, {partition: [b"kept"] * committed_before})
    for _ in range(3):
        transaction(producer, {partition: [b"no"] * 4}, commit=False)
    consumer = clients.consumer()
    consumer.assign([partition])
    last = committed_before + 11
    # A broker need not hurry to make aborted records durable, and shows no end beyond what is.
    eventually(lambda: consumer.begin_and_end(partition)[1] > last, "the end of the aborted run")
    assert values(take_rest(clients, consumer, partition)) == [b"kept"] * committed_before

    inside = clients.consumer()
    inside.assign([partition])
    for start in (last, last - 2, committed_before + 1):
        inside.seek(partition, start)
        assert take_rest(clients, inside, partition) == []

    transaction(producer, {partition: [b"later"]})
    assert values(take(consumer, 1)) == [b"later"]
    assert values(take(inside, 1)) == [b"later"]


@shows("read_committed")
def test_undecided_records_are_for_read_uncommitted_only(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name = topic()
    partition = (name, 0)
    producer = clients.producer(transactional_id=unique("tx"))
    producer.begin()
    send_all(producer, partition, [b"open 1", b"open 2"])
    producer.flush()
    plain = clients.producer()
    plain.send(name, 0, b"plain")
    plain.flush()

    careless = clients.consumer(isolation=READ_UNCOMMITTED)
    careless.assign([partition])
    assert values(take(careless, 3)) == [b"open 1", b"open 2", b"plain"]
    careful = clients.consumer()
    careful.assign([partition])
    assert careful.poll(0.5) == []
    if clients.can("position"):
        assert careful.position(partition) == 0

    producer.commit()
    assert values(take(careful, 3)) == [b"open 1", b"open 2", b"plain"]


@shows("transactional produce")
def test_aborted_records_stay_visible_to_read_uncommitted(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name = topic()
    producer = clients.producer(transactional_id=unique("tx"))
    transaction(producer, {(name, 0): [b"no"]}, commit=False)
    transaction(producer, {(name, 0): [b"yes"]})
    careless = clients.consumer(isolation=READ_UNCOMMITTED)
    careless.assign([(name, 0)])
    assert values(take(careless, 2)) == [b"no", b"yes"]


@shows("transactional produce")
def test_a_transaction_spans_three_topics(clients: Opened, topic: TopicFactory, unique: Unique) -> None:
    partitions = [(topic(partitions=2), 0), (topic(), 0), (topic(partitions=3), 2)]
    producer = clients.producer(transactional_id=unique("tx"))
    transaction(producer, {partition: [b"no"] for partition in partitions}, commit=False)
    transaction(producer, {partition: [partition[0].encode()] for partition in partitions})
    producer.begin()
    for name, index in partitions:
        producer.send(name, index, b"open")
    producer.flush()
    consumer = clients.consumer()
    consumer.assign(partitions)
    records = take(consumer, 3)
    assert {(r.topic, r.partition): r.value for r in records} == {
        (name, index): name.encode() for name, index in partitions
    }
    producer.commit()
    assert values(take(consumer, 3)) == [b"open"] * 3


@shows("transactional produce")
@shows("read_committed")
def test_interleaved_transactions_are_decided_one_by_one(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name = topic()
    partition = (name, 0)
    committing, aborting, late = (clients.producer(transactional_id=unique("tx")) for _ in range(3))
    for producer in (late, committing, aborting):
        producer.begin()
    for number in range(3):
        for producer, letter in ((late, b"l"), (committing, b"c"), (aborting, b"a")):
            producer.send(name, 0, letter + b"%d" % number)
            producer.flush()
    committing.commit()
    aborting.abort()
    consumer = clients.consumer()
    consumer.assign([partition])
    assert consumer.poll(0.3) == []
    late.commit()
    assert values(take(consumer, 6)) == [b"l0", b"c0", b"l1", b"c1", b"l2", b"c2"]


@shows("fencing")
def test_a_second_producer_with_the_same_id_fences_the_first(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name, transactional_id = topic(), unique("tx")
    first = clients.producer(transactional_id=transactional_id)
    first.begin()
    first.send(name, 0, b"of the first, before")
    first.flush()
    second = clients.producer(transactional_id=transactional_id)
    transaction(second, {(name, 0): [b"of the second"]})

    with pytest.raises(Exception) as caught:
        first.commit()
    assert clients.client.is_fenced(caught.value), repr(caught.value)

    transaction(second, {(name, 0): [b"of the second, again"]})
    consumer = clients.consumer()
    consumer.assign([(name, 0)])
    assert values(take(consumer, 2)) == [b"of the second", b"of the second, again"]


@shows("fencing")
def test_a_fenced_producer_can_write_nothing(clients: Opened, topic: TopicFactory, unique: Unique) -> None:
    name, transactional_id = topic(), unique("tx")
    first = clients.producer(transactional_id=transactional_id)
    transaction(first, {(name, 0): [b"before"]})
    second = clients.producer(transactional_id=transactional_id)

    def write() -> None:
        first.begin()
        first.send(name, 0, b"zombie")
        # Not flush(): confluent-kafka 2.16.1 answers it with a SystemError once the producer is fenced.
        first.commit()

    with pytest.raises(Exception) as caught:
        write()
    assert clients.client.is_fenced(caught.value), repr(caught.value)
    transaction(second, {(name, 0): [b"after"]})
    careless = clients.consumer(isolation=READ_UNCOMMITTED)
    careless.assign([(name, 0)])
    assert values(take(careless, 2)) == [b"before", b"after"]


@shows("transactional produce")
def test_an_idle_open_transaction_is_aborted_by_its_timeout(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name = topic()
    partition = (name, 0)
    idle = clients.producer(transactional_id=unique("tx"), transaction_timeout_ms=1_000)
    idle.begin()
    idle.send(name, 0, b"idle")
    idle.flush()
    plain = clients.producer()
    plain.send(name, 0, b"behind it")
    plain.flush()
    consumer = clients.consumer()
    consumer.assign([partition])
    assert values(take(consumer, 1)) == [b"behind it"]


@shows("read_committed")
def test_a_commit_wakes_a_waiting_reader(clients: Opened, topic: TopicFactory, unique: Unique) -> None:
    """The reader's fetch may wait for twice the time after which the test calls it hung."""
    name = topic()
    producer = clients.producer(transactional_id=unique("tx"))
    consumer = clients.consumer(
        max_wait_ms=int(HANG_S * 2000) if clients.client.name != "kafka-python" else 20_000
    )
    consumer.assign([(name, 0)])
    assert consumer.poll(0.5) == []
    for number in range(3):
        producer.begin()
        producer.send(name, 0, b"%d" % number)
        producer.flush()
        assert consumer.poll(0.1) == []
        producer.commit()
        assert values(take(consumer, 1)) == [b"%d" % number]


@shows("transactional produce")
def test_an_empty_transaction_changes_nothing(clients: Opened, topic: TopicFactory, unique: Unique) -> None:
    name = topic()
    producer = clients.producer(transactional_id=unique("tx"))
    for commit in (True, False, True):
        transaction(producer, {}, commit=commit)
    transaction(producer, {(name, 0): [b"one"]})
    consumer = clients.consumer()
    consumer.assign([(name, 0)])
    assert values(take(consumer, 1)) == [b"one"]


@shows("transactional produce")
def test_commits_add_no_offsets(
    clients: Opened, topic: TopicFactory, unique: Unique, sealog_only: Callable[[str], None]
) -> None:
    sealog_only(
        "Apache Kafka adds a marker per transaction and partition, so end - start exceeds the records"
    )
    name = topic(partitions=2)
    partitions = [(name, 0), (name, 1)]
    producer = clients.producer(transactional_id=unique("tx"))
    for number in range(20):
        transaction(producer, {partitions[0]: [b"x"] * 3, partitions[1]: [b"y"] * (number % 3)})
    consumer = clients.consumer(group=unique("group"))
    consumer.assign(partitions)
    records = take(consumer, 79)
    assert len(records) == 79
    ends = {}
    for partition in partitions:
        start, end = consumer.begin_and_end(partition)
        got = [record.offset for record in records if (record.topic, record.partition) == partition]
        assert got == list(range(start, end))
        if clients.can("position"):
            assert consumer.position(partition) == end
        ends[partition] = end
    # Lag as every monitor computes it: end offset less committed offset, for the offsets of records read.
    consumer.commit({p: max(r.offset for r in records if r.partition == p[1]) + 1 for p in partitions})
    for partition in partitions:
        assert consumer.committed(partition) == ends[partition]


@shows("read_committed")
def test_a_reader_started_after_the_commit_sees_it_at_once(
    clients: Opened, topic: TopicFactory, unique: Unique, sealog_only: Callable[[str], None]
) -> None:
    sealog_only("Apache Kafka answers EndTxn before the last stable offset covers the records")
    name = topic()
    partition = (name, 0)
    producer = clients.producer(transactional_id=unique("tx"))
    consumer = clients.consumer()
    consumer.assign([partition])
    for number in range(30):
        transaction(producer, {partition: [b"%d" % number]})
        assert consumer.begin_and_end(partition) == (0, number + 1)
    assert values(take_rest(clients, consumer, partition)) == [b"%d" % number for number in range(30)]
