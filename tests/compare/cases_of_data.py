"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.clients.raw_batches import TIMESTAMP_MS, batch
from tests.compare.cases import case, served, some
from tests.compare.servers import OLD_TOPIC
from tests.compare.side import Side

NO_TOPIC = UUID(int=0)
UNKNOWN_TOPIC = UUID(int=0x5EA106)
EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3


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


@case(served("fetch"))
def fetch_out_of_range(side: Side, version: int) -> None:
    topic = side.topic()
    side.values(topic, b"a", b"b", b"c")
    side.settled(topic)
    side.call(
        "delete_records",
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}],
        timeout=15_000,
    )
    for offset in (0, 1, 2, 3, 4, -1, 100):
        fetch(side, version, {(topic, 0): offset})


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
