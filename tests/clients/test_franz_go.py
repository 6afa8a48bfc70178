"""What franz-go alone has: transactions v2 (KIP-890) in a tight loop, and one client as both ends of a transaction.

Its GroupTransactSession consumes, produces and commits the offsets of what it polled; a rebalance or an abort sets
it back to what was committed last.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.adapter_base import READ_COMMITTED, Partition, Record
from tests.clients.adapter_go import FranzGo
from tests.clients.features import shows
from tests.clients.fixtures import Broker, Opened
from tests.clients.raw_kafka import RawKafka
from tests.clients.remote import RemoteConsumer, RemoteHandle, RemoteProducer
from tests.clients.scenario_tools import eventually, send_all, take, take_rest, values
from tests.clients.test_client_groups import PARTITIONS, fill
from tests.clients.test_client_restart import create, kill_and_start, server
from tests.support.broker_process import ServerProcess

__all__ = ("server",)

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]


@pytest.fixture
def clients(broker: Broker) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(FranzGo(broker.bootstrap), stack)


@pytest.fixture
def opened(server: ServerProcess) -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(FranzGo(server.address), stack)


class Session(RemoteConsumer):
    def __init__(self, handle: RemoteHandle) -> None:
        super().__init__(handle)
        self.producer = RemoteProducer(handle)

    def end(self, *, commit: bool) -> bool:
        """Whether the transaction was committed: where a rebalance got in between it never is."""
        committed: bool = self.handle.call("end", commit=commit)
        return committed


class Sessions:
    """Opens sessions of one group and transactional id on one topic; whoever comes later fences who was before."""

    def __init__(
        self, clients: Opened, stack: ExitStack, name: str, group: str, transactional_id: str
    ) -> None:
        self._options = {
            "bootstrap": clients.client.bootstrap,
            "isolation": READ_COMMITTED,
            "group": group,
            "instance_id": None,
            "session_timeout_ms": 10_000,
            "max_wait_ms": 100,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": 60_000,
        }
        self._name = name
        self._stack = stack

    def open(self) -> Session:
        session = Session(FranzGo.open("session", **self._options))
        self._stack.callback(session.close)
        session.subscribe(self._name)
        return session


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def some(session: Session) -> list[Record]:
    found: list[Record] = []
    eventually(lambda: bool(found), "more input", step=lambda: found.extend(session.poll(0.2)))
    return found


def write(session: Session, output: Partition, records: list[Record]) -> None:
    session.producer.begin()
    for record in records:
        assert record.value is not None
        session.producer.send(*output, b"out " + record.value)


def check_output(clients: Opened, output: Partition, per_partition: int) -> None:
    reader = clients.consumer()
    reader.assign([output])
    got = values(take_rest(clients, reader, output))
    wanted = [[b"out %d.%d" % (p, n) for n in range(per_partition)] for p in range(PARTITIONS)]
    assert Counter(got) == Counter(value for values in wanted for value in values)
    for expected in wanted:
        assert [value for value in got if value in expected] == expected


@shows("transactions v2 (KIP-890)")
def test_fifty_transactions_in_a_tight_loop(
    clients: Opened, raw: RawKafka, topic: TopicFactory, unique: Unique
) -> None:
    """Each EndTxn v5 answers with the next epoch, and the next transaction begins at once (franz-go issue 928)."""
    name, transactional_id = topic(partitions=2), unique("tx")
    producer = clients.producer(transactional_id=transactional_id)

    epochs = []
    for number in range(50):
        producer.begin()
        send_all(producer, (name, 0), [b"%d" % number])
        send_all(producer, (name, 1), [b"%d" % number] * (number % 2))
        if number in (0, 49):
            producer.flush()
            found = raw.call("describe_transactions", 0, transactional_ids=[transactional_id])
            epochs.append(found.transaction_states[0].producer_epoch)
        if number % 5 == 4:
            producer.abort()
        else:
            producer.commit()
    assert epochs[1] == epochs[0] + 49
    consumer = clients.consumer()
    consumer.assign([(name, 0)])
    assert values(take(consumer, 40)) == [b"%d" % number for number in range(50) if number % 5 != 4]


def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    clients: Opened, stack: ExitStack, topic: TopicFactory, unique: Unique
) -> None:
    name, output = topic(partitions=PARTITIONS), (topic(), 0)
    source = clients.producer()
    send_all(source, (name, 0), [b"0.%d" % number for number in range(5)])
    source.flush()
    session = Sessions(clients, stack, name, unique("group"), unique("tx")).open()
    records = some(session)
    write(session, output, records)
    assert not session.end(commit=False)
    assert session.committed((name, 0)) is None
    again = some(session)
    assert again[0].offset == 0
    write(session, output, again)
    assert session.end(commit=True)
    eventually(lambda: session.committed((name, 0)) == again[-1].offset + 1, "the committed offset")


@shows("exactly-once loop")
@shows("offsets in transactions")
@pytest.mark.parametrize("crash", ["abort", "fence"])
def test_exactly_once_loop_with_redo(
    clients: Opened, stack: ExitStack, topic: TopicFactory, unique: Unique, crash: str
) -> None:
    """Every third transaction fails: aborted, or left open by a session that its successor fences."""
    name, output = topic(partitions=PARTITIONS), (topic(), 0)
    fill(clients, name, 30)
    sessions = Sessions(clients, stack, name, unique("group"), unique("tx"))
    session = sessions.open()
    done = rounds = 0
    while done < 30 * PARTITIONS:
        records = some(session)
        rounds += 1
        write(session, output, records)
        if rounds % 3 != 1:
            done += len(records) if session.end(commit=True) else 0
        elif crash == "abort":
            session.end(commit=False)
        else:
            session.producer.flush()
            left, session = session, sessions.open()
            left.close()
    assert rounds > 3
    check_output(clients, output, 30)
    for partition in range(PARTITIONS):
        at = (name, partition)
        eventually(lambda: session.committed(at) == 30, "all committed")  # noqa: B023


@shows("exactly-once loop")
def test_two_sessions_share_and_lose_nothing_when_one_leaves(
    clients: Opened, stack: ExitStack, topic: TopicFactory, unique: Unique
) -> None:
    """A rebalance in the middle of a transaction: it is aborted, and whoever has the partition then does it again."""
    name, output, group = topic(partitions=PARTITIONS), (topic(), 0), unique("group")
    fill(clients, name, 30)
    first, second = (Sessions(clients, stack, name, group, unique("tx")).open() for _ in range(2))
    sessions = [first, second]

    def turn() -> None:
        for session in sessions:
            if records := session.poll(0.1):
                write(session, output, records)
                session.end(commit=True)

    eventually(lambda: len(first.assignment()) == len(second.assignment()) == 2, "a share each", step=turn)
    fill(clients, name, 30, first=30)
    write(second, output, some(second))
    sessions.remove(first)
    first.close()

    def all_committed() -> bool:
        return all(second.committed((name, partition)) == 60 for partition in range(PARTITIONS))

    second.end(commit=True)
    eventually(all_committed, "all committed", step=turn)
    check_output(clients, output, 60)


@shows("riding over a kill")
def test_a_session_rides_over_kills(
    opened: Opened, stack: ExitStack, server: ServerProcess, unique: Unique
) -> None:
    """Killed with a transaction open, which goes on and is committed with its offsets."""
    name, output, group = unique("topic"), (unique("topic"), 0), unique("group")
    create(server, name, PARTITIONS)
    create(server, output[0], 1)
    fill(opened, name, 20)
    session = Sessions(opened, stack, name, group, unique("tx")).open()
    done = kills = 0
    while done < 20 * PARTITIONS:
        records = some(session)
        write(session, output, records)
        if kills < 2:
            session.producer.flush()
            kill_and_start(server, group)
            kills += 1
        done += len(records) if session.end(commit=True) else 0
    check_output(opened, output, 20)
