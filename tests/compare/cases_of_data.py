"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

import gzip
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.clients.raw_batches import GZIP, TIMESTAMP_MS, batch, batch_of, record
from tests.compare.cases import case, served, some
from tests.compare.servers import OLD_TOPIC
from tests.compare.side import Side

NO_TOPIC = UUID(int=0)
UNKNOWN_TOPIC = UUID(int=0x5EA106)
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3


def produce(
    side: Side,
    version: int,
    batches: Mapping[tuple[str, int], bytes | None],
    *,
    acks: int = -1,
    transactional_id: str | None = None,
    topic_id: UUID | None = None,
) -> None:
    side.call(
        "produce",
        version,
        transactional_id=transactional_id,
        acks=acks,
        timeout=15_000,
        topic_data=[
            {
                "name": topic,
                "topic_id": topic_id or side.topics.get(topic, UNKNOWN_TOPIC),
                "partition_data": [
                    {"index": partition, "records": records}
                    for (name, partition), records in batches.items()
                    if name == topic
                ],
            }
            for topic in dict.fromkeys(name for name, _ in batches)
        ],
    )


@case(served("produce"))
def produce_plain(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    produce(side, version, {(topic, 0): batch([b"a", b"b"])})
    produce(side, version, {(topic, 0): batch([b"c"])}, acks=1)
    produce(side, version, {(topic, 1): batch([(b"key", None)])})
    produce(side, version, {})
    produce(
        side,
        version,
        {(topic, 0): batch([b"d"]), (topic, 7): batch([b"e"]), (side.name("none"), 0): batch([b"f"])},
    )
    for acks in (2, -2, 7):
        produce(side, version, {(topic, 0): batch([b"g"])}, acks=acks)
    produce(side, version, {(topic, 0): b""})  # not null: Apache Kafka never answers that
    produce(side, version, {(topic, -1): batch([b"h"])})
    produce(side, version, {(topic, 0): batch([b"i"])}, transactional_id=side.name("txn"))
    fetch(side, 12, {(topic, 0): 0, (topic, 1): 0})


@case([13])
def produce_by_topic_id(side: Side, version: int) -> None:
    topic = side.topic()
    for topic_id in (UNKNOWN_TOPIC, NO_TOPIC):
        produce(side, version, {(topic, 0): batch([b"x"])}, topic_id=topic_id)


@case(some("produce"))
def produce_idempotent(side: Side, version: int) -> None:
    topic = side.topic()
    pid = side.init_producer(None).producer_id

    def send(sequence: int, *values: bytes, epoch: int = 0, pid: int = pid) -> None:
        produce(side, version, {(topic, 0): batch(values or [b"x"], pid=pid, epoch=epoch, sequence=sequence)})

    send(0, b"a", b"b")
    send(0, b"a", b"b")  # a duplicate
    send(0, b"a")  # half a duplicate
    send(3)  # a gap
    send(2)
    send(3)
    send(2)  # an older duplicate
    for sequence in range(4, 9):
        send(sequence)
    send(2)  # too old to be remembered
    send(8)
    send(9, epoch=2)  # a new epoch begins with 0
    send(0, epoch=2)
    send(9)  # an old epoch
    send(0, epoch=1)
    send(0, epoch=2)
    send(1, epoch=2)
    send(0, pid=pid + 5000)  # nobody has given it out
    send(5, pid=pid + 6000)
    send(-1, pid=pid + 7000)
    send(0, epoch=-1)
    produce(side, version, {(topic, 0): batch([b"x"], pid=-1, epoch=3, sequence=0)})
    fetch(side, 12, {(topic, 0): 0})


@case(some("produce"))
def produce_around_the_last_sequence(side: Side, version: int) -> None:
    """A producer that nobody knows here may begin anywhere; behind 2**31 - 1 comes 0."""
    topic = side.topic()
    pid = side.init_producer(None).producer_id
    last = 2**31 - 1
    for sequence, count in ((last - 1, 1), (last, 1), (0, 1), (last, 1), (last - 1, 2), (1, 1)):
        produce(side, version, {(topic, 0): batch([b"x"] * count, pid=pid, epoch=0, sequence=sequence)})


def _broken() -> dict[str, bytes]:
    good = batch([b"value"])
    packed = gzip.compress(record(0, None, b"value"))
    return {
        "a wrong checksum": good[:17] + b"\0\0\0\0" + good[21:],
        "cut": good[:-3],
        "a length of 0": good[:8] + b"\0\0\0\0" + good[12:],
        "a count of 2 for 1": batch_of(record(0, None, b"x"), 2),
        "no records": batch_of(b"", 0),
        "another base offset": b"\0\0\0\0\0\0\0\x05" + good[8:],
        "compressed": batch_of(packed, 1, attributes=GZIP),
        "compression 7": batch_of(packed, 1, attributes=7),
        "a control batch": batch_of(record(0, b"\0\0\0\1", b"\0\0\0\0\0\0"), 1, attributes=0x20),
        "two batches": good + good,
        "dirt": b"dirt" * 20,
        "two records of one offset": batch_of(record(0, None, b"x") * 2, 2),
        "transactional without a producer": batch([b"x"], transactional=True),
        "a time far ahead": batch([b"x"], timestamp_ms=TIMESTAMP_MS * 2),
        "no time": batch([b"x"], timestamp_ms=-1),
        "a time before all time": batch([b"x"], timestamp_ms=-5),
        "too large": batch([bytes(1_100_000)]),
    }


@case(some("produce"))
def produce_broken_batches(side: Side, version: int) -> None:
    topic = side.topic()
    for records in _broken().values():
        produce(side, version, {(topic, 0): records})


@case(some("produce"))
def produce_with_dirt_behind(side: Side, version: int) -> None:
    topic = side.topic()
    produce(side, version, {(topic, 0): batch([b"value"]) + b"dirt"})


@case(some("produce"))
def produce_under_the_settings_of_a_topic(side: Side, version: int) -> None:
    small = side.topic("small", **{"max.message.bytes": "100"})
    stamped = side.topic("stamped", **{"message.timestamp.type": "LogAppendTime"})
    narrow = side.topic("narrow", **{"message.timestamp.before.max.ms": "1000"})
    compacted = side.topic("compacted", **{"cleanup.policy": "compact"})
    for topic in (small, stamped, narrow):
        produce(side, version, {(topic, 0): batch([(b"key", bytes(20))])})
        produce(side, version, {(topic, 0): batch([bytes(200)])})
    produce(side, version, {(compacted, 0): batch([(b"key", b"value")])})


@case(some("produce"))
def produce_without_a_key_to_a_compacted_topic(side: Side, version: int) -> None:
    topic = side.topic("compacted", **{"cleanup.policy": "compact"})
    produce(side, version, {(topic, 0): batch([b"value"])})


# -- Fetch


def fetch(
    side: Side,
    version: int,
    offsets: Mapping[tuple[str, int], int],
    *,
    committed: bool = False,
    max_wait_ms: int = 0,
    topic_id: UUID | None = None,
    **options: Any,
) -> None:
    partition = {
        name: options.pop(name)
        for name in ("current_leader_epoch", "last_fetched_epoch", "partition_max_bytes", "log_start_offset")
        if name in options
    }
    values: dict[str, Any] = {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": 50 << 20,
        "session_id": 0,
        "session_epoch": -1,
        "rack_id": "",
    } | options
    side.call(
        "fetch",
        version,
        isolation_level=int(committed),
        topics=[
            {
                "topic": topic,
                "topic_id": topic_id or side.topics.get(topic, UNKNOWN_TOPIC),
                "partitions": [
                    {
                        "partition": index,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": 10 << 20,
                    }
                    | partition
                    for (name, index), offset in offsets.items()
                    if name == topic
                ],
            }
            for topic in dict.fromkeys(name for name, _ in offsets)
        ],
        **values,
    )


@case(served("fetch"))
def fetch_plain(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    fetch(side, version, {(topic, 0): 0})
    side.quiet.produce(topic, {0: batch([b"a", b"b", b"c"])})
    side.values(topic, b"d")
    for offset in (0, 1, 2, 3, 4, 5, -1, -2):
        for committed in (False, True):
            fetch(side, version, {(topic, 0): offset}, committed=committed)
    fetch(side, version, {(topic, 0): 0, (topic, 1): 0, (topic, 9): 0})
    fetch(side, version, {(topic, -1): 0})
    fetch(side, version, {(side.name("none"), 0): 0})
    fetch(side, version, {(topic, 0): 0, (side.name("none"), 0): 0})
    fetch(side, version, {})
    fetch(side, version, {(topic, 0): 0}, current_leader_epoch=side.leader_epoch(topic))
    fetch(side, version, {(topic, 0): 0}, current_leader_epoch=side.leader_epoch(topic) + 5)
    fetch(side, version, {(topic, 0): 0}, max_bytes=1)
    fetch(side, version, {(topic, 0): 0}, partition_max_bytes=1)
    fetch(side, version, {(topic, 0): 0}, partition_max_bytes=0)
    fetch(side, version, {(topic, 0): 0}, max_bytes=0)
    fetch(side, version, {(topic, 0): 4}, min_bytes=0, max_wait_ms=10_000)
    fetch(side, version, {(topic, 0): 4}, max_wait_ms=5)


@case(some("fetch"))
def fetch_with_leader_epochs(side: Side, version: int) -> None:
    first, present = side.epochs[OLD_TOPIC]
    side.topics[OLD_TOPIC] = topic_id_of(side, OLD_TOPIC)
    for epoch in (first, present, present + 1):
        fetch(side, version, {(OLD_TOPIC, 0): 0}, current_leader_epoch=epoch)


@case(some("fetch"))
def fetch_sessions(side: Side, version: int) -> None:
    """What is refused; that every fetch here is a full one is told apart in `differences`."""
    topic = side.topic()
    side.values(topic, b"a")
    fetch(side, version, {(topic, 0): 0}, session_id=12345, session_epoch=1)
    fetch(side, version, {(topic, 0): 0}, session_id=12345, session_epoch=0)
    fetch(side, version, {(topic, 0): 0}, session_id=12345, session_epoch=-1)
    fetch(side, version, {(topic, 0): 0}, session_id=0, session_epoch=5)
    fetch(side, version, {(topic, 0): 0}, session_id=0, session_epoch=0)


@case(range(13, 19))
def fetch_by_topic_id(side: Side, version: int) -> None:
    topic = side.topic()
    side.values(topic, b"a")
    for topic_id in (UNKNOWN_TOPIC, NO_TOPIC):
        fetch(side, version, {(topic, 0): 0}, topic_id=topic_id)


@case(served("fetch"))
def fetch_transactions(side: Side, version: int) -> None:
    """Both isolation levels over an open, an aborted and a committed transaction, from every offset."""
    topic = side.topic()
    producer = side.transactions()
    side.values(topic, b"before")
    producer.produce(topic, [b"lost 1", b"lost 2"])
    side.values(topic, b"between")
    for committed in (False, True):
        fetch(side, version, {(topic, 0): 0}, committed=committed)
        fetch(side, version, {(topic, 0): 2}, committed=committed)
    producer.abort()
    side.settled(topic)
    for committed in (False, True):
        fetch(side, version, {(topic, 0): 0}, committed=committed)
        fetch(side, version, {(topic, 0): 2}, committed=committed)
    producer.produce(topic, [b"kept"])
    producer.commit()
    side.settled(topic)
    for committed in (False, True):
        fetch(side, version, {(topic, 0): 0}, committed=committed)
    producer.produce(topic, [b"lost 3"])
    producer.abort()
    side.settled(topic)
    for committed in (False, True):
        fetch(side, version, {(topic, 0): 0}, committed=committed)


def topic_id_of(side: Side, topic: str) -> UUID:
    answer = side.quiet.call("metadata", 12, topics=[{"topic_id": NO_TOPIC, "name": topic}])
    topic_id: UUID = answer.topics[0].topic_id
    return topic_id


# -- ListOffsets


def list_offsets(
    side: Side,
    version: int,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    committed: bool = False,
    epoch: int = -1,
    replica: int = -1,
) -> None:
    side.call(
        "list_offsets",
        version,
        replica_id=replica,
        isolation_level=int(committed),
        topics=[
            {
                "name": topic,
                "partitions": [
                    {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
                ],
            }
        ],
    )


@case(served("list_offsets"))
def list_offsets_plain(side: Side, version: int) -> None:
    topic = side.topic()
    for timestamp in range(-8, 2):
        list_offsets(side, version, topic, timestamp)
    for time_ms in (5000, 9000, 7000):
        side.quiet.produce(topic, {0: batch([b"a", b"b"], timestamp_ms=time_ms)})
    for timestamp in (*range(-8, 1), 4999, 5000, 5001, 7000, 7001, 9000, 9001):
        for committed in (False, True):
            list_offsets(side, version, topic, timestamp, committed=committed)
    list_offsets(side, version, topic, LATEST, partition=3)
    list_offsets(side, version, topic, LATEST, partition=-1)
    list_offsets(side, version, side.name("none"), LATEST)
    list_offsets(side, version, "", LATEST)
    list_offsets(side, version, topic, LATEST, epoch=side.leader_epoch(topic) + 3)
    side.call("list_offsets", version, replica_id=-1, isolation_level=0, topics=[])
    side.call(
        "list_offsets", version, replica_id=-1, isolation_level=0, topics=[{"name": topic, "partitions": []}]
    )
    wanted = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    side.call(
        "list_offsets",
        version,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [wanted, wanted]}],
    )


@case(some("list_offsets"))
def list_offsets_with_leader_epochs(side: Side, version: int) -> None:
    first, present = side.epochs[OLD_TOPIC]
    for epoch in (first, present, present + 1):
        for timestamp in (EARLIEST, LATEST, MAX_TIMESTAMP, 0, TIMESTAMP_MS):
            list_offsets(side, version, OLD_TOPIC, timestamp, epoch=epoch)


@case(served("list_offsets"))
def list_offsets_of_transactions(side: Side, version: int) -> None:
    topic = side.topic()
    producer = side.transactions()
    producer.produce(topic, [b"open"])
    side.values(topic, b"plain")
    for committed in (False, True):
        for timestamp in (EARLIEST, LATEST, MAX_TIMESTAMP, 0, TIMESTAMP_MS):
            list_offsets(side, version, topic, timestamp, committed=committed)
    producer.commit()
    side.settled(topic)
    for committed in (False, True):
        for timestamp in (EARLIEST, LATEST):
            list_offsets(side, version, topic, timestamp, committed=committed)


# -- OffsetForLeaderEpoch


@case(served("offset_for_leader_epoch"))
def ends_of_leader_epochs(side: Side, version: int) -> None:
    first, present = side.epochs[OLD_TOPIC]
    topic = side.topic()
    only = side.leader_epoch(topic)

    def ask(topic: str, epoch: int, current: int = -1, partition: int = 0, replica: int = -1) -> None:
        side.call(
            "offset_for_leader_epoch",
            version,
            replica_id=replica,
            topics=[
                {
                    "topic": topic,
                    "partitions": [
                        {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
                    ],
                }
            ],
        )

    for epoch in (first, present, present + 1, -1):
        for current in (-1, first, present, present + 1):
            ask(OLD_TOPIC, epoch, current)
    ask(topic, only)
    ask(topic, only + 1)
    ask(topic, -1)
    ask(topic, only, partition=4)
    ask(topic, only, partition=-1)
    ask(topic, only, replica=-2)
    ask(side.name("none"), 0)
    side.call("offset_for_leader_epoch", version, replica_id=-1, topics=[])


# -- DeleteRecords


@case(served("delete_records"))
def deleted_records(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    side.values(topic, b"a", b"b", b"c")

    def delete(topic: str, offset: int, partition: int = 0) -> None:
        side.call(
            "delete_records",
            version,
            timeout=10_000,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
        )

    delete(topic, 0)
    delete(topic, 1)
    delete(topic, 1)
    delete(topic, 0)
    delete(topic, 9)
    delete(topic, -2)
    fetch(side, 12, {(topic, 0): 0})
    fetch(side, 12, {(topic, 0): 1})
    list_offsets(side, 7, topic, EARLIEST)
    delete(topic, -1)
    delete(topic, 0, partition=1)
    delete(topic, 0, partition=5)
    delete(side.name("none"), 0)
    side.call("delete_records", version, timeout=10_000, topics=[])
    fetch(side, 12, {(topic, 0): 3})
    list_offsets(side, 7, topic, EARLIEST)
    list_offsets(side, 7, topic, LATEST)
    list_offsets(side, 7, topic, MAX_TIMESTAMP)
