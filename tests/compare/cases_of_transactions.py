"""Transactions of both protocols, step by step, and what is refused in each state."""

from collections.abc import Sequence

from tests.clients.raw_batches import batch
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


# -- AddOffsetsToTxn


@case(served("add_offsets_to_txn"))
def groups_are_added(side: Side, version: int) -> None:
    producer = side.transactions()
    name, pid, epoch = producer.transactional_id, producer.pid, producer.epoch
    for other in (
        (side.name("unknown"), pid, epoch),
        ("", pid, epoch),
        (name, pid + 1000, epoch),
        (name, pid, epoch + 1),
        (name, pid, epoch - 1),
        (name, pid, epoch),
        (name, pid, epoch),
    ):
        for group in (side.name("group"), ""):
            side.call(
                "add_offsets_to_txn",
                version,
                transactional_id=other[0],
                producer_id=other[1],
                producer_epoch=other[2],
                group_id=group,
            )
    end(producer, 4, commit=False)


# -- TxnOffsetCommit


@case(served("txn_offset_commit"))
def offsets_in_the_wrong_state(side: Side, version: int) -> None:
    topic = side.topic()
    group = side.name("group")
    producer = side.transactions()
    producer.commit_offset(group, topic, 1, version=version)  # before AddOffsetsToTxn
    producer.add_offsets(group)
    producer.commit_offset(group, topic, 2, version=version)
    producer.commit_offset(side.name("another"), topic, 2, version=version)
    end(producer, 4)
    side.ended(producer.transactional_id)
    producer.commit_offset(group, topic, 3, version=version)  # after the end
    end(producer, 4, commit=False)


@case(served("txn_offset_commit"))
def offsets_that_are_refused(side: Side, version: int) -> None:
    topic = side.topic()
    group = side.name("group")
    producer = side.transactions()
    producer.add_offsets(group)
    name, pid, epoch = producer.transactional_id, producer.pid, producer.epoch
    none = side.name("none")

    def commit(name: str, pid: int, epoch: int, topics, group: str = group, **member) -> None:  # type: ignore[no-untyped-def]
        side.call(
            "txn_offset_commit",
            version,
            transactional_id=name,
            group_id=group,
            producer_id=pid,
            producer_epoch=epoch,
            **({"generation_id": -1, "member_id": "", "group_instance_id": None} | member),
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": 4,
                            "committed_leader_epoch": -1,
                            "committed_metadata": metadata,
                        }
                        for index in indexes
                    ],
                }
                for topic, indexes, metadata in topics
            ],
        )

    good = [(topic, [0], "m")]
    commit(side.name("unknown"), pid, epoch, good)
    commit("", pid, epoch, good)
    commit(name, pid + 1000, epoch, good)
    commit(name, pid, epoch + 1, good)
    commit(name, pid, epoch - 1, good)
    commit(name, pid, epoch, [])
    commit(name, pid, epoch, [(topic, [], None)])
    commit(name, pid, epoch, good, group="")
    commit(name, pid, epoch, [(none, [0], "")])
    commit(name, pid, epoch, [(topic, [0, 1], None), (none, [0], "")])
    commit(name, pid, epoch, [(topic, [0], "m" * 5000)])
    commit(name, pid, epoch, good, member_id="nobody", generation_id=3)
    commit(name, pid, epoch, good, member_id="nobody")
    commit(name, pid, epoch, good, generation_id=3)
    commit(name, pid, epoch, good, member_id="nobody", generation_id=3, group_instance_id="instance")
    commit(name, pid, epoch, good)
    commit(name, pid, epoch, good)
    end(producer, 4)


# -- Produce inside transactions


@case(served("produce"))
def produce_in_a_transaction(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    producer = side.transactions()

    def produce(**options) -> None:  # type: ignore[no-untyped-def]
        options = {"epoch": producer.epoch, "sequence": 0, "name": producer.transactional_id} | options
        records = batch(
            [b"x"],
            pid=options.get("pid", producer.pid),
            epoch=options["epoch"],
            sequence=options["sequence"],
            transactional=options.get("transactional", True),
        )
        side.call(
            "produce",
            version,
            transactional_id=options["name"],
            acks=-1,
            timeout=15_000,
            topic_data=[
                {
                    "name": topic,
                    "topic_id": side.topics[topic],
                    "partition_data": [{"index": options.get("partition", 0), "records": records}],
                }
            ],
        )

    producer.epoch = side.init_producer(
        producer.transactional_id
    ).producer_epoch  # so that there is an older one
    produce(partition=1)  # not added in the first protocol
    producer.add_partitions(topic)
    produce()
    produce()  # a repeat
    produce(sequence=5)  # a gap
    produce(sequence=1, epoch=producer.epoch + 1)
    produce(sequence=1, epoch=producer.epoch - 1)
    produce(sequence=1, name=None)
    produce(sequence=0, pid=producer.pid + 1000)
    produce(sequence=1, transactional=False)
    produce(sequence=1)
    end(producer, 4)
    side.settled(topic)
    side.ended(producer.transactional_id)
    produce(sequence=2)  # outside a transaction, in the first protocol
    produce(sequence=2 if version < 12 else 3, transactional=False)
    end(producer, 4, commit=False)


@case([3, 11, 13])
def produce_under_another_name(side: Side, version: int) -> None:
    topic = side.topic()
    producer = side.transactions()
    producer.add_partitions(topic)
    for name in (side.name("unknown"), ""):
        records = batch([b"x"], pid=producer.pid, epoch=producer.epoch, sequence=0, transactional=True)
        side.call(
            "produce",
            version,
            transactional_id=name,
            acks=-1,
            timeout=15_000,
            topic_data=[
                {
                    "name": topic,
                    "topic_id": side.topics[topic],
                    "partition_data": [{"index": 0, "records": records}],
                }
            ],
        )


@case([9, 12])
def produce_after_the_epoch_has_moved(side: Side, version: int) -> None:
    topic = side.topic()
    producer = side.transactions()
    write(producer, topic, 5, b"a")
    old = producer.epoch
    end(producer, 5)
    side.settled(topic)
    side.ended(producer.transactional_id)
    producer.produce(topic, [b"late"], sequence=1, version=version, epoch=old)
    if version < 12:
        producer.add_partitions(topic)
    producer.produce(topic, [b"b"], sequence=3, version=version)
    producer.produce(topic, [b"b"], sequence=0, version=version)
    end(producer, 5)
    side.settled(topic)
    side.ended(producer.transactional_id)
    side.fetch(topic, 0, 0)
