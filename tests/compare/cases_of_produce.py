"""Produce outside transactions: plain and idempotent batches, and those that are refused."""

import gzip
from collections.abc import Mapping
from uuid import UUID

from tests.clients.raw_batches import GZIP, TIMESTAMP_MS, batch, batch_of, record
from tests.compare.cases import case, served, some
from tests.compare.cases_of_data import NO_TOPIC, UNKNOWN_TOPIC, fetch
from tests.compare.side import Side


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
