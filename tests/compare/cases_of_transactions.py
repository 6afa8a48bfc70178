"""Transactions of both protocols, step by step, and what is refused in each state."""

from collections.abc import Sequence

from tests.clients.raw_transactions import RawTransactions
from tests.compare.cases import case, served
from tests.compare.side import Side

FIRST_PROTOCOL = 4
"""The highest EndTxn of the first protocol; from 5 on each end bumps the epoch."""


def end(producer: RawTransactions, version: int, *, commit: bool = True, epoch: int | None = None) -> None:
    """EndTxn of any version; the epoch moves where the answer carries one."""
    answer = producer.raw.end_txn(
        producer.transactional_id,
        producer.pid,
        producer.epoch if epoch is None else epoch,
        commit=commit,
        version=version,
    )
    if getattr(answer, "producer_epoch", -1) >= 0 and answer.error_code == 0:
        producer.pid, producer.epoch = answer.producer_id, answer.producer_epoch


def write(producer: RawTransactions, topic: str, version: int, *values: bytes, sequence: int = 0) -> None:
    """A batch in a transaction of the protocol that EndTxn `version` belongs to."""
    if version <= FIRST_PROTOCOL:
        producer.add_partitions(topic)
    producer.produce(
        topic, values or [b"x"], sequence=sequence, version=11 if version <= FIRST_PROTOCOL else 12
    )


def add(
    side: Side,
    version: int,
    name: str,
    pid: int,
    epoch: int,
    topics: Sequence[tuple[str, Sequence[int]]],
    *,
    verify_only: bool = False,
) -> None:
    """AddPartitionsToTxn in either form."""
    wanted = [{"name": topic, "partitions": list(partitions)} for topic, partitions in topics]
    side.call(
        "add_partitions_to_txn",
        version,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=pid,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=wanted,
        transactions=[
            {
                "transactional_id": name,
                "producer_id": pid,
                "producer_epoch": epoch,
                "verify_only": verify_only,
                "topics": wanted,
            }
        ],
    )


def init(
    side: Side, version: int, name: str | None, pid: int = -1, epoch: int = -1, timeout_ms: int = 60_000
):  # type: ignore[no-untyped-def]
    return side.call(
        "init_producer_id",
        version,
        transactional_id=name,
        transaction_timeout=timeout_ms,
        producer_id=pid,
        producer_epoch=epoch,
    )


# -- InitProducerId


@case(served("init_producer_id"))
def init_producers(side: Side, version: int) -> None:
    name = side.name("txn")
    init(side, version, None)
    init(side, version, None, timeout_ms=0)
    init(side, version, None, timeout_ms=-1)
    init(side, version, "")
    for timeout_ms in (0, -1, 900_001, 900_000, 1):
        init(side, version, name, timeout_ms=timeout_ms)
    init(side, version, name)


@case([3, 4, 5])
def init_with_the_identity_of_a_forgotten_id(side: Side, version: int) -> None:
    init(side, version, side.name("txn"), 12345, 0)


@case([3, 4, 5])
def init_with_an_identity(side: Side, version: int) -> None:
    name = side.name("txn")
    init(side, version, None, 12345, 3)
    first = init(side, version, name)
    pid = first.producer_id
    init(side, version, name, pid, first.producer_epoch)
    init(side, version, name, pid, first.producer_epoch)  # its answer was lost
    init(side, version, name, pid, 7)
    init(side, version, name, pid + 1000, 0)
    init(side, version, name, pid, -1)
    init(side, version, name, -1, 0)
    init(side, version, name)
    init(side, version, name, pid, first.producer_epoch)


@case(served("init_producer_id"))
def init_aborts_and_fences(side: Side, version: int) -> None:
    topic = side.topic()
    producer = side.transactions()
    write(producer, topic, 5, b"lost")
    init(side, version, producer.transactional_id)
    side.settled(topic)
    side.list_offset(topic, 0, -1, committed=True)
    producer.produce(topic, [b"late"], sequence=1)
    producer.produce(topic, [b"late"], sequence=1, version=9)
    end(producer, 5)
    end(producer, 5, commit=False)
    end(producer, 1)


@case([3, 4, 5])
def init_of_the_holder_aborts(side: Side, version: int) -> None:
    topic = side.topic()
    producer = side.transactions()
    write(producer, topic, 4, b"lost")
    init(side, version, producer.transactional_id, producer.pid, producer.epoch)
    init(side, version, producer.transactional_id, producer.pid, producer.epoch)
    side.settled(topic)
    side.list_offset(topic, 0, -1, committed=True)


# -- EndTxn


@case(served("end_txn"))
def end_of_nothing(side: Side, version: int) -> None:
    producer = side.transactions()
    end(producer, version)
    end(producer, version, commit=False)
    end(producer, version, commit=False)
    end(producer, version, commit=True)


@case(served("end_txn"))
def ends_and_repeats(side: Side, version: int) -> None:
    topic = side.topic()
    producer = side.transactions()
    sequence = 0
    for commit in (True, False, True):
        write(producer, topic, version, b"x", sequence=sequence)
        sequence += version <= FIRST_PROTOCOL
        epoch = producer.epoch
        end(producer, version, commit=commit)
        end(producer, version, commit=commit, epoch=epoch)
        end(producer, version, commit=not commit, epoch=epoch)
    side.settled(topic)
    side.list_offset(topic, 0, -1, committed=True)


@case(served("end_txn"))
def ends_of_others(side: Side, version: int) -> None:
    topic = side.topic()
    producer = side.transactions()
    write(producer, topic, version)
    name, pid, epoch = producer.transactional_id, producer.pid, producer.epoch
    for commit in (True, False):
        for other in (
            (side.name("unknown"), pid, epoch),
            ("", pid, epoch),
            (name, pid + 1000, epoch),
            (name, -1, epoch),
            (name, pid, epoch + 1),
            (name, pid, epoch + 7),
            (name, pid, epoch - 1),
            (name, pid, -1),
        ):
            side.end_txn(*other, commit=commit, version=version)
    end(producer, version)


@case(served("end_txn"))
def ends_after_a_successor(side: Side, version: int) -> None:
    topic = side.topic()
    old = side.transactions()
    write(old, topic, version)
    new = side.transactions()
    end(old, version)
    end(old, version, commit=False)
    write(new, topic, version, b"y")
    end(new, version)
    end(old, version)
    end(old, version, commit=False)


@case(served("end_txn"))
def an_end_is_of_the_protocol_that_it_speaks(side: Side, version: int) -> None:
    """A transaction of one protocol ended by the other."""
    topic = side.topic()
    producer = side.transactions()
    producer.add_partitions(topic)
    producer.produce(topic, [b"x"], version=12)
    end(producer, version)
    producer.add_partitions(topic)
    end(producer, version, commit=False)


@case(served("end_txn"))
def only_offsets(side: Side, version: int) -> None:
    topic = side.topic()
    group = side.name("group")
    producer = side.transactions()
    if version <= FIRST_PROTOCOL:
        producer.add_offsets(group)
    producer.commit_offset(group, topic, 5, version=3 if version <= FIRST_PROTOCOL else 5)
    end(producer, version)
    fetched = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "require_stable": True,
        "groups": [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}],
    }
    side.until(
        lambda answer: answer.groups[0].topics[0].partitions[0].error_code == 0, "offset_fetch", 8, **fetched
    )


@case(served("end_txn"))
def a_group_without_offsets(side: Side, version: int) -> None:
    producer = side.transactions()
    producer.add_offsets(side.name("group"))
    end(producer, version)
    producer.add_offsets(side.name("group"))
    end(producer, version, commit=False)


# -- AddPartitionsToTxn


@case(served("add_partitions_to_txn"))
def partitions_are_added(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    producer = side.transactions()
    name, pid, epoch = producer.transactional_id, producer.pid, producer.epoch
    add(side, version, name, pid, epoch, [(topic, [0])], verify_only=True)
    add(side, version, name, pid, epoch, [])
    add(side, version, name, pid, epoch, [(topic, [0])])
    add(side, version, name, pid, epoch, [(topic, [0, 1])])
    add(side, version, name, pid, epoch, [(topic, [0, 1])], verify_only=True)
    add(side, version, name, pid, epoch, [])
    end(producer, 4)


@case(served("add_partitions_to_txn"))
def partitions_that_cannot_be_added(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    producer = side.transactions()
    name, pid, epoch = producer.transactional_id, producer.pid, producer.epoch
    none = side.name("none")
    add(side, version, name, pid, epoch, [(none, [0])])
    add(side, version, name, pid, epoch, [(topic, [0, 2])])
    add(side, version, name, pid, epoch, [(topic, [0]), (none, [0, 1])])
    add(side, version, name, pid, epoch, [(topic, [-1])])
    for other in (
        (side.name("unknown"), pid, epoch),
        ("", pid, epoch),
        (name, pid + 1000, epoch),
        (name, -1, epoch),
        (name, pid, epoch + 1),
        (name, pid, epoch - 1),
    ):
        add(side, version, *other, [(topic, [0])])
        add(side, version, *other, [(topic, [0])], verify_only=True)
    end(producer, 4)


@case([4, 5])
def several_transactions_in_one_request(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    one, two = side.transactions("one"), side.transactions("two")
    # Not an empty list: Apache Kafka never answers one.
    side.call(
        "add_partitions_to_txn",
        version,
        transactions=[
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.pid,
                "producer_epoch": epoch,
                "verify_only": verify,
                "topics": [{"name": topic, "partitions": [0, 1]}],
            }
            for each, epoch, verify in ((one, one.epoch, False), (two, two.epoch + 1, False))
        ],
    )
    end(one, 4)
