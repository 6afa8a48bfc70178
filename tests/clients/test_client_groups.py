"""Consumer groups and the exactly-once loop, through every client."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.clients.adapter_base import Consumer, Partition, Producer, Record
from tests.clients.features import shows
from tests.clients.fixtures import Opened
from tests.clients.scenario_tools import eventually, send_all, take, take_rest, transaction, values

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]
PARTITIONS = 4


def fill(clients: Opened, name: str, per_partition: int, *, first: int = 0) -> None:
    producer = clients.producer()
    for partition in range(PARTITIONS):
        numbers = range(first, first + per_partition)
        send_all(producer, (name, partition), [b"%d.%d" % (partition, n) for n in numbers])
    producer.flush()


def poll_all(members: Sequence[Consumer]) -> list[Record]:
    """Every member must be polled: that is where clients rejoin their group."""
    return [record for member in members for record in member.poll(0.05)]


def settle(members: Sequence[Consumer], sizes: Sequence[int]) -> list[Record]:
    """Poll until the members hold this many partitions each, none held twice; what they read on the way."""
    found: list[Record] = []

    def done() -> bool:
        held = [member.assignment() for member in members]
        return sorted(map(len, held)) == sorted(sizes) and len(set().union(*held)) == sum(sizes)

    eventually(done, f"assignment of {sizes}", step=lambda: found.extend(poll_all(members)))
    return found


def next_offsets(records: Sequence[Record]) -> dict[Partition, int]:
    offsets: dict[Partition, int] = {}
    for record in records:
        key = (record.topic, record.partition)
        offsets[key] = max(offsets.get(key, 0), record.offset + 1)
    return offsets


@shows("consumer groups")
def test_members_share_and_the_one_left_takes_all(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name, group = topic(partitions=PARTITIONS), unique("group")
    first = clients.consumer(group=group)
    first.subscribe(name)
    settle([first], [PARTITIONS])
    second = clients.consumer(group=group)
    second.subscribe(name)
    settle([first, second], [2, 2])

    fill(clients, name, 25)
    found: list[Record] = []
    eventually(lambda: len(found) >= 100, "all", step=lambda: found.extend(poll_all([first, second])))
    assert set(Counter(values(found)).values()) == {1}
    first.commit({tp: offset for tp, offset in next_offsets(found).items() if tp in first.assignment()})
    second.commit({tp: offset for tp, offset in next_offsets(found).items() if tp in second.assignment()})

    second.close()
    assert settle([first], [PARTITIONS]) == []
    fill(clients, name, 1)
    assert sorted(record.partition for record in take(first, PARTITIONS)) == list(range(PARTITIONS))


@shows("consumer groups")
def test_committed_offsets_resume(clients: Opened, topic: TopicFactory, unique: Unique) -> None:
    name, group = topic(partitions=PARTITIONS), unique("group")
    fill(clients, name, 10)
    first = clients.consumer(group=group)
    first.subscribe(name)
    found = take(first, 10 * PARTITIONS)
    for partition in range(PARTITIONS):
        assert first.committed((name, partition)) is None
    stop_at = {(name, partition): 2 * partition for partition in range(PARTITIONS)}
    first.commit(stop_at)
    assert {tp: first.committed(tp) for tp in stop_at} == stop_at
    first.close()
    assert len(found) == 10 * PARTITIONS

    second = clients.consumer(group=group)
    second.subscribe(name)
    rest = take(second, sum(10 - offset for offset in stop_at.values()))
    for partition in range(PARTITIONS):
        offsets = [record.offset for record in rest if record.partition == partition]
        assert offsets == list(range(2 * partition, 10))


@shows("consumer groups")
def test_a_group_without_members_keeps_offsets_of_assigned_readers(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    name, group = topic(partitions=PARTITIONS), unique("group")
    fill(clients, name, 5)
    first = clients.consumer(group=group)
    first.assign([(name, 1)])
    take(first, 5)
    first.commit({(name, 1): 3})
    first.close()
    second = clients.consumer(group=group)
    second.assign([(name, 1)], from_committed=True)
    assert [record.offset for record in take(second, 2)] == [3, 4]


@shows("static members")
def test_a_static_member_comes_back_to_its_partitions(
    clients: Opened, topic: TopicFactory, unique: Unique
) -> None:
    """It restarts within its session: nobody else's assignment moves, and it gets its own again (KIP-345)."""
    name, group = topic(partitions=PARTITIONS), unique("group")
    stays = clients.consumer(group=group, instance_id="stays", session_timeout_ms=30_000)
    stays.subscribe(name)
    settle([stays], [PARTITIONS])
    restarts = clients.consumer(group=group, instance_id="restarts", session_timeout_ms=30_000)
    restarts.subscribe(name)
    settle([stays, restarts], [2, 2])
    before = stays.assignment(), restarts.assignment()

    restarts.close()
    assert poll_all([stays]) == []
    again = clients.consumer(group=group, instance_id="restarts", session_timeout_ms=30_000)
    again.subscribe(name)

    def step() -> None:
        poll_all([stays, again])
        assert stays.assignment() == before[0]

    eventually(lambda: again.assignment() == before[1], "its old partitions", step=step)
    fill(clients, name, 1)
    found: list[Record] = []
    eventually(lambda: len(found) >= PARTITIONS, "all", step=lambda: found.extend(poll_all([stays, again])))
    assert len(found) == PARTITIONS


@shows("offsets in transactions")
def test_offsets_of_an_aborted_transaction_are_not_committed(
    clients: Opened, topic: TopicFactory, unique: Unique, sealog_only: Callable[[str], None]
) -> None:
    if clients.client.name == "kafkajs":
        sealog_only(
            "kafkajs fails on CONCURRENT_TRANSACTIONS, Apache Kafka's answer until the markers are written"
        )
    name, output, group = topic(partitions=PARTITIONS), topic(), unique("group")
    partition = (name, 0)
    fill(clients, name, 10)
    consumer = clients.consumer(group=group)
    consumer.subscribe(name)
    settle([consumer], [PARTITIONS])
    consumer.commit({partition: 2})
    producer = clients.producer(transactional_id=unique("tx"))

    producer.begin()
    producer.send(output, 0, b"no")
    producer.send_offsets(consumer, {partition: 5})
    producer.abort()
    assert consumer.committed(partition) == 2

    producer.begin()
    producer.send(output, 0, b"yes")
    producer.send_offsets(consumer, {partition: 7})
    producer.commit()
    # Apache Kafka applies them after it has answered the commit: aiokafka asks without require_stable.
    eventually(lambda: consumer.committed(partition) == 7, "the committed offset")

    producer.begin()
    producer.send_offsets(consumer, {partition: 9})
    producer.commit()
    eventually(lambda: consumer.committed(partition) == 9, "the offset of a transaction without records")


class Loop:
    """Consume, transform, produce: a batch of input per transaction, its offsets committed in it."""

    def __init__(
        self, clients: Opened, name: str, output: Partition, group: str, transactional_id: str
    ) -> None:
        self.clients = clients
        self.output = output
        self.name = name
        self.group = group
        self.producer = clients.producer(transactional_id=transactional_id)
        self.join()

    def join(self) -> None:
        self.consumer = self.clients.consumer(group=self.group)
        self.consumer.subscribe(self.name)

    def write(self, records: Sequence[Record]) -> None:
        self.producer.begin()
        for record in records:
            assert record.value is not None
            self.producer.send(*self.output, b"out " + record.value)
        self.producer.send_offsets(self.consumer, next_offsets(records))

    def rewind(self, records: Sequence[Record]) -> None:
        if not self.clients.can("seek_in_group"):
            self.consumer.close()
            self.join()
            return
        for partition in next_offsets(records):
            self.consumer.seek(partition, self.consumer.committed(partition) or 0)


@shows("exactly-once loop")
@pytest.mark.parametrize("crash", ["abort", "fence"])
def test_exactly_once_loop_with_redo(
    clients: Opened, topic: TopicFactory, unique: Unique, crash: str
) -> None:
    """Every third transaction fails: aborted, or left open by a loop that its successor fences."""
    name, output, group = topic(partitions=PARTITIONS), (topic(), 0), unique("group")
    transactional_id = unique("tx")
    fill(clients, name, 30)
    loop = Loop(clients, name, output, group, transactional_id)
    done = rounds = 0
    while done < 30 * PARTITIONS:
        records: list[Record] = []
        eventually(lambda: bool(records), "more input", step=lambda: records.extend(loop.consumer.poll(0.2)))  # noqa: B023
        if clients.can("seek_in_group"):
            records = keep_part(loop.consumer, records)
        rounds += 1
        loop.write(records)
        if rounds % 3 != 1:
            loop.producer.commit()
            done += len(records)
        elif crash == "abort":
            loop.producer.abort()
            loop.rewind(records)
        else:
            loop.consumer.close()
            loop = Loop(clients, name, output, group, transactional_id)
    assert rounds > 3

    reader = clients.consumer()
    reader.assign([output])
    got = take_rest(clients, reader, output)
    expected = {b"out %d.%d" % (p, n) for p in range(PARTITIONS) for n in range(30)}
    assert Counter(values(got)) == Counter(expected)
    for partition in range(PARTITIONS):
        wanted = [b"out %d.%d" % (partition, n) for n in range(30)]
        assert [value for value in values(got) if value in wanted] == wanted
        last = (name, partition)
        eventually(lambda: loop.consumer.committed(last) == 30, "all committed")  # noqa: B023


def keep_part(consumer: Consumer, records: Sequence[Record], size: int = 17) -> list[Record]:
    """Work on a part of what a poll gave, so that there are many transactions; seek back for the rest."""
    kept = list(records[:size])
    ends = next_offsets(kept)
    for record in records[size:]:
        partition = (record.topic, record.partition)
        if partition not in ends or record.offset == ends[partition]:
            consumer.seek(partition, record.offset)
            ends.setdefault(partition, record.offset)
    return kept


@shows("offsets in transactions")
def test_group_lag_is_zero_when_all_is_read(
    clients: Opened, topic: TopicFactory, unique: Unique, sealog_only: Callable[[str], None]
) -> None:
    sealog_only(
        "behind Apache Kafka's last record lies a marker, so end offset - next record's offset is not 0"
    )
    name, output, group = topic(partitions=PARTITIONS), topic(), unique("group")
    source: Producer = clients.producer(transactional_id=unique("tx"))
    partitions = [(name, partition) for partition in range(PARTITIONS)]
    for _ in range(3):
        transaction(source, {partition: [b"x"] * 4 for partition in partitions})
    consumer = clients.consumer(group=group)
    consumer.subscribe(name)
    records = take(consumer, 12 * PARTITIONS)
    sink = clients.producer(transactional_id=unique("tx"))
    sink.begin()
    sink.send(output, 0, b"all")
    sink.send_offsets(consumer, next_offsets(records))
    sink.commit()
    for partition in partitions:
        _, end = consumer.begin_and_end(partition)
        assert consumer.committed(partition) == end == 12
