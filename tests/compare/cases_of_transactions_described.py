"""Transactions and producers as an administrator sees and ends them."""

from tests.clients.raw_batches import batch
from tests.compare.cases import case, served
from tests.compare.cases_of_data import fetch
from tests.compare.side import Side


@case(served("describe_producers"))
def described_producers(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)

    def describe(name: str, *partitions: int) -> None:
        side.call(
            "describe_producers", version, topics=[{"name": name, "partition_indexes": list(partitions)}]
        )

    describe(topic, 0)
    producer = side.transactions()
    producer.produce(topic, [b"x"])
    describe(topic, 0, 1, 5)
    producer.commit()
    side.settled(topic)
    pid = side.init_producer(None).producer_id
    side.quiet.produce(topic, {1: batch([b"a", b"b"], pid=pid, epoch=0, sequence=0)})
    describe(topic, 0, 1)
    describe(side.name("none"), 0)
    side.call("describe_producers", version, topics=[])


@case(served("describe_transactions"))
def described_transactions(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    producer = side.transactions()

    def describe(*names: str) -> None:
        side.call("describe_transactions", version, transactional_ids=list(names))

    producer.produce(topic, [b"x"])
    producer.produce(topic, [b"x"], partition=1)
    describe(producer.transactional_id)
    describe()  # not an unknown one: its start is -1, a moment that kio cannot read
    producer.commit()


@case(served("list_transactions"))
def listed_transactions(side: Side, version: int) -> None:
    topic = side.topic()
    side.transactions("idle")
    running, done = side.transactions("running"), side.transactions("done")
    running.produce(topic, [b"x"])
    done.produce(topic, [b"x"])
    done.abort()
    side.ended(done.transactional_id)

    def ask(states: list[str], pids: list[int], duration_ms: int = -1, pattern: str | None = None) -> None:
        side.call(
            "list_transactions",
            version,
            state_filters=states,
            producer_id_filters=pids,
            duration_filter=duration_ms,
            transactional_id_pattern=pattern,
        )

    ask([], [])
    ask(["Ongoing"], [])
    ask(["Ongoing", "Nonsense"], [])
    ask(["CompleteAbort", "Empty"], [])
    ask([], [running.pid])
    ask([], [running.pid + 5000])
    ask(["Ongoing"], [done.pid])
    if version >= 1:
        ask(["Ongoing"], [], duration_ms=3_600_000)
        ask(["Ongoing"], [], duration_ms=0)
    if version >= 2:
        for pattern in (f"{side.case}.*", "nothing.*", "", "["):
            ask([], [], pattern=pattern)
    running.abort()


@case(served("write_txn_markers"))
def markers_by_an_administrator(side: Side, version: int) -> None:
    topic = side.topic()
    producer = side.transactions()
    producer.produce(topic, [b"x"])

    def write(pid: int, epoch: int, name: str, partition: int = 0, *, commit: bool = False) -> None:
        side.call(
            "write_txn_markers",
            version,
            markers=[
                {
                    "producer_id": pid,
                    "producer_epoch": epoch,
                    "transaction_result": commit,
                    "topics": [{"name": name, "partition_indexes": [partition]}],
                    "coordinator_epoch": 0,
                    "transaction_version": 0,
                }
            ],
        )

    side.call("write_txn_markers", version, markers=[])
    write(producer.pid, producer.epoch, side.name("none"))
    write(producer.pid, producer.epoch, topic, 7)
    write(producer.pid, producer.epoch, topic)
    side.settled(topic)
    fetch(side, 12, {(topic, 0): 0}, committed=True)
