"""What is done inside transactions: AddOffsetsToTxn, TxnOffsetCommit, Produce."""

from tests.clients.raw_batches import batch
from tests.compare.cases import case, served
from tests.compare.cases_of_transactions import end, write
from tests.compare.side import Side

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
