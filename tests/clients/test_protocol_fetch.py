"""What a fetch may and may not answer: the edges that one client or another can't live with."""

import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from uuid import UUID

import crc32c
import pytest
from kio.schema.errors import ErrorCode

from tests.clients.fixtures import Broker
from tests.clients.raw_batches import HEADER, HEADER_SIZE, batch, parse
from tests.clients.raw_kafka import RawKafka
from tests.clients.raw_transactions import RawTransactions
from tests.clients.scenario_tools import eventually

TopicFactory = Callable[..., str]
Unique = Callable[[str], str]
SealogOnly = Callable[[str], None]
SIZES = (1, 4, 2, 1, 3)


@pytest.fixture
def producer(raw: RawKafka, unique: Unique) -> RawTransactions:
    return RawTransactions(raw, unique("tx"))


def write(producer: RawTransactions, topic: str, values: list[bytes], *, commit: bool) -> None:
    response = producer.produce(topic, values)
    while response.error_code is ErrorCode.concurrent_transactions:
        response = producer.produce(topic, values)
    assert response.error_code is ErrorCode.none
    if commit:
        producer.commit()
    else:
        producer.abort()


@pytest.mark.parametrize("committed", [False, True])
def test_every_offset_gets_the_batch_that_holds_it_and_none_below(
    raw: RawKafka, topic: TopicFactory, committed: bool
) -> None:
    name = topic()
    for size in SIZES:
        assert raw.produce(name, {0: batch([b"x"] * size)})[0].error_code is ErrorCode.none
    end = sum(SIZES)
    for offset in range(end):
        got = list(parse(raw.fetch(name, 0, offset, committed=committed).records))
        assert got[0].base_offset <= offset <= got[0].last_offset
        assert got[-1].last_offset == end - 1
        assert all(each.crc_ok for each in got)
        for before, after in pairwise(got):
            assert after.base_offset == before.last_offset + 1


@pytest.mark.parametrize("version", range(4, 19))
def test_nothing_to_read_is_empty_and_not_null(raw: RawKafka, topic: TopicFactory, version: int) -> None:
    """librdkafka fails on null records."""
    name = topic()
    raw.produce(name, {0: batch([b"x"])})
    for offset, error in ((1, ErrorCode.none), (5, ErrorCode.offset_out_of_range)):
        partition = fetch_version(raw, name, offset, version)
        assert (partition.error_code, partition.records) == (error, b"")


def fetch_version(raw: RawKafka, topic: str, offset: int, version: int) -> Any:
    """Fetch partition 0 in any version from 4 to 18; from 13 on topics go by id."""
    partition: dict[str, Any] = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    if version >= 5:
        partition["log_start_offset"] = -1
    if version >= 9:
        partition["current_leader_epoch"] = -1
    if version >= 12:
        partition["last_fetched_epoch"] = -1
    if version >= 17:
        partition["replica_directory_id"] = UUID(int=0)
    if version >= 18:
        partition["high_watermark"] = (1 << 63) - 1
    request: dict[str, Any] = {"max_wait": 1, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 1}
    if version < 15:
        request["replica_id"] = -1
    if version >= 7:
        request |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": []}
    if version >= 11:
        request["rack_id"] = ""
    if version < 13:
        request["topics"] = [{"topic": topic, "partitions": [partition]}]
    else:
        request["topics"] = [{"topic_id": topic_id(raw, topic), "partitions": [partition]}]
    return raw.call("fetch", version, **request).responses[0].partitions[0]


def topic_id(raw: RawKafka, topic: str) -> UUID:
    response = raw.call("metadata", 12, topics=[{"name": topic, "topic_id": None}])
    found: UUID = response.topics[0].topic_id
    assert found
    return found


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_every_version_carries_the_records(raw: RawKafka, topic: TopicFactory, version: int) -> None:
    name = topic()
    raw.produce(name, {0: batch([b"a", b"b"])})
    partition = fetch_version(raw, name, 1, version)
    assert [each.values for each in parse(partition.records)] == [[b"a", b"b"]]
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)


def test_an_unknown_topic_id_is_named_as_such(raw: RawKafka) -> None:
    response = raw.call(
        "fetch",
        13,
        replica_id=-1,
        session_epoch=-1,
        topics=[{"topic_id": UUID(int=7), "partitions": [{"partition": 0, "current_leader_epoch": -1}]}],
    )
    code = response.error_code or response.responses[0].partitions[0].error_code
    assert code == ErrorCode.unknown_topic_id


def control_batch(offset: int, leader_epoch: int, pid: int, epoch: int, timestamp_ms: int) -> bytes:
    """The one control batch that a log without markers may send, byte by byte."""
    key = struct.pack(">hh", 0, 0)
    value = struct.pack(">hi", 0, 0)
    body = b"\x00\x00\x00" + b"\x08" + key + b"\x0c" + value + b"\x00"
    record = bytes([len(body) * 2]) + body
    after_crc = struct.pack(">hiqqqhii", 0x30, 0, timestamp_ms, timestamp_ms, pid, epoch, -1, 1) + record
    head = struct.pack(">qiibI", offset, len(after_crc) + 9, leader_epoch, 2, crc32c.crc32c(after_crc))
    return head + after_crc


def test_an_aborted_tail_is_one_control_batch(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions, sealog_only: SealogOnly
) -> None:
    sealog_only("it stands where Apache Kafka sends the aborted records themselves and their markers")
    name = topic()
    write(producer, name, [b"kept", b"kept"], commit=True)
    leader_epoch = next(parse(raw.fetch(name, 0, 0).records)).leader_epoch
    for size in (3, 1, 2):
        write(producer, name, [b"no"] * size, commit=False)
    # Nobody waits for the records of an aborted transaction to become durable, and none are shown before.
    eventually(lambda: raw.list_offset(name, 0, -1, committed=True) == 8, "the aborted tail is durable")
    for offset in range(8):
        got = raw.fetch(name, 0, offset)
        assert not got.aborted_transactions
        batches = list(parse(got.records))
        tail = batches[-1]
        assert [each.is_control for each in batches] == ([False, True] if offset < 2 else [True])
        assert tail.base_offset == tail.last_offset == 7
        assert tail.pid == producer.pid
        timestamp_ms = HEADER.unpack_from(tail.data)[7]
        assert tail.data == control_batch(7, leader_epoch, tail.pid, tail.epoch, timestamp_ms)
    assert raw.fetch(name, 0, 8).records == b""

    write(producer, name, [b"kept too"], commit=True)
    batches = list(parse(raw.fetch(name, 0, 0).records))
    assert [each.values for each in batches] == [[b"kept", b"kept"], [b"kept too"]]
    inside = list(parse(raw.fetch(name, 0, 4).records))
    assert [each.values for each in inside] == [[b"kept too"]]


def test_read_uncommitted_gets_the_log_as_it_is(
    raw: RawKafka, topic: TopicFactory, producer: RawTransactions, sealog_only: SealogOnly
) -> None:
    sealog_only("Apache Kafka's log holds markers as well")
    name = topic()
    write(producer, name, [b"a"], commit=True)
    write(producer, name, [b"b"], commit=False)
    producer.produce(name, [b"c"])
    # Inside a transaction the answer comes before the record is durable, which it must be to be shown.
    eventually(lambda: raw.list_offset(name, 0, -1) == 3, "the open record is durable")
    got = raw.fetch(name, 0, 0, committed=False)
    assert [each.values for each in parse(got.records)] == [[b"a"], [b"b"], [b"c"]]
    assert not got.aborted_transactions
    assert (got.last_stable_offset, got.high_watermark) == (2, 3)


def test_offsets_of_the_ends(raw: RawKafka, topic: TopicFactory, producer: RawTransactions) -> None:
    name = topic()
    raw.produce(name, {0: batch([b"x"] * 3)})
    assert producer.produce(name, [b"open"]).error_code is ErrorCode.none
    raw.produce(name, {0: batch([b"behind"])})
    assert raw.list_offset(name, 0, -2) == 0
    assert raw.list_offset(name, 0, -1) == 5
    assert raw.list_offset(name, 0, -1, committed=True) == 3
    got = raw.fetch(name, 0, 3)
    assert (got.last_stable_offset, got.high_watermark, got.records) == (3, 5, b"")
    producer.commit()


def test_an_empty_answer_is_held_for_the_whole_wait(
    broker: Broker, raw: RawKafka, topic: TopicFactory, producer: RawTransactions
) -> None:
    """Also while the high watermark moves: a read_committed reader waits for the last stable offset."""
    name = topic()
    assert producer.produce(name, [b"open"]).error_code is ErrorCode.none
    with RawKafka(broker.bootstrap) as reader, ThreadPoolExecutor(1) as pool:
        started = time.monotonic()
        waiting = pool.submit(reader.fetch, name, 0, 0, max_wait_ms=600)
        time.sleep(0.2)
        raw.produce(name, {0: batch([b"behind"])})
        got = waiting.result()
        waited_s = time.monotonic() - started
    assert got.records == b""
    assert waited_s >= 0.6
    producer.commit()


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_the_end_of_a_transaction_wakes_waiting_readers(
    broker: Broker, topic: TopicFactory, producer: RawTransactions, end: str
) -> None:
    """They would wait for longer than their sockets do."""
    name = topic(partitions=2)
    for partition in (0, 1):
        assert producer.produce(name, [b"x"], partition=partition).error_code is ErrorCode.none
    readers = [RawKafka(broker.bootstrap, timeout_s=30) for _ in range(10)]
    with ThreadPoolExecutor(len(readers)) as pool:
        waiting = [
            pool.submit(reader.fetch, name, number % 2, 0, max_wait_ms=120_000)
            for number, reader in enumerate(readers)
        ]
        time.sleep(0.3)
        assert not any(each.done() for each in waiting)
        if end == "commit":
            producer.commit()
        else:
            producer.abort()
        for each in waiting:
            got = each.result()
            assert got.last_stable_offset > 0
            assert got.records
    for reader in readers:
        reader.close()


def test_a_plain_record_wakes_waiting_readers(broker: Broker, raw: RawKafka, topic: TopicFactory) -> None:
    name = topic()
    for committed in (True, False):
        with RawKafka(broker.bootstrap, timeout_s=30) as reader, ThreadPoolExecutor(1) as pool:
            end = raw.list_offset(name, 0, -1)
            waiting = pool.submit(reader.fetch, name, 0, end, committed=committed, max_wait_ms=120_000)
            time.sleep(0.2)
            raw.produce(name, {0: batch([b"x"])})
            assert len(list(parse(waiting.result().records))) == 1


def test_requests_in_one_write_are_answered_in_order(raw: RawKafka, topic: TopicFactory) -> None:
    name = topic()
    answers = [
        raw.send(
            "produce",
            9,
            {
                "acks": -1,
                "timeout": 15_000,
                "topic_data": [
                    {"name": name, "partition_data": [{"index": 0, "records": batch([b"%d" % number])}]}
                ],
            },
        )
        for number in range(100)
    ]
    offsets = [answer().responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == list(range(100))
    values = [value for each in parse(raw.fetch(name, 0, 0).records) for value in each.values]
    assert values == [b"%d" % number for number in range(100)]


def test_one_large_batch_passes_any_limit(raw: RawKafka, topic: TopicFactory) -> None:
    """The first batch comes whole even when it exceeds every limit of the request (KIP-74)."""
    name = topic()
    raw.produce(name, {0: batch([bytes(300_000)])})
    raw.produce(name, {0: batch([b"small"])})
    response = raw.call(
        "fetch",
        11,
        replica_id=-1,
        max_wait=100,
        min_bytes=1,
        max_bytes=1000,
        session_epoch=-1,
        rack_id="",
        topics=[
            {
                "topic": name,
                "partitions": [{"partition": 0, "current_leader_epoch": -1, "partition_max_bytes": 1000}],
            }
        ],
    )
    records = response.responses[0].partitions[0].records
    first = next(parse(records))
    assert len(first.data) > 300_000
    assert first.data[HEADER_SIZE:].count(0) > 299_000


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_end_of_a_leader_epoch(raw: RawKafka, topic: TopicFactory, version: int) -> None:
    """OffsetForLeaderEpoch (KIP-320): after every change of epoch a reader asks it before it reads on."""
    name = topic()
    raw.produce(name, {0: batch([b"x"] * 3)})
    epoch = next(parse(raw.fetch(name, 0, 0).records)).leader_epoch

    def ask(leader_epoch: int, current: int = -1) -> tuple[ErrorCode, int, int]:
        partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": leader_epoch}
        request = {"topics": [{"topic": name, "partitions": [partition]}]}
        if version >= 3:
            request["replica_id"] = -1
        answer = raw.call("offset_for_leader_epoch", version, **request).topics[0].partitions[0]
        return answer.error_code, answer.leader_epoch, answer.end_offset

    assert ask(epoch) == (ErrorCode.none, epoch, 3)
    assert ask(epoch, current=epoch) == (ErrorCode.none, epoch, 3)
    assert ask(epoch + 1) == (ErrorCode.none, -1, -1)
    assert ask(epoch, current=epoch + 1)[0] is ErrorCode.unknown_leader_epoch
