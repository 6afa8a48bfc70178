"""Whatever arrives, the broker answers it or hangs up on that one connection, serves on, and stays small."""

import random
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from kio.schema.errors import ErrorCode

from tests.clients.fixtures import Broker
from tests.clients.raw_batches import (
    CONTROL,
    TIMESTAMP_MS,
    batch,
    batch_of,
    old_message_set,
    parse,
    record,
    zip_bomb,
)
from tests.clients.raw_kafka import ConnectionClosed, RawKafka, api_key, encode_request
from tests.clients.raw_transactions import RawTransactions

TopicFactory = Callable[..., str]
MIB = 1 << 20
GROWTH_LIMIT_BYTES = 96 * MIB
BOMB_MIB = 256


@pytest.fixture(scope="module")
def first_rss(broker: Broker) -> int | None:
    return broker.rss_bytes()


@pytest.fixture(autouse=True)
def still_well(broker: Broker, first_rss: int | None, topic: TopicFactory) -> Iterator[None]:
    """After every test: a new connection can write and read, and the process has not grown out of bounds."""
    yield
    name = topic()
    with RawKafka(broker.bootstrap) as raw:
        assert raw.produce(name, {0: batch([b"well"])})[0].error_code is ErrorCode.none
        assert next(parse(raw.fetch(name, 0, 0).records)).values == [b"well"]
    rss = broker.rss_bytes()
    if rss is not None and first_rss is not None:
        assert rss - first_rss < GROWTH_LIMIT_BYTES, f"grew by {(rss - first_rss) // MIB} MiB"


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def header(key: int, version: int, correlation_id: int = 1) -> bytes:
    return struct.pack(">hhih", key, version, correlation_id, 3) + b"raw"


HANGS_UP = {
    "a negative length": struct.pack(">i", -5) + b"xxxxx",
    "a length of 2 GiB": struct.pack(">i", 0x7FFFFFFF) + bytes(1000),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an unknown api key": frame(header(999, 0)),
    "a negative api key": frame(header(-1, 0)),
    "a version from the future": frame(header(3, 99) + b"\x00"),
    "a negative version": frame(header(3, -1)),
    "an empty frame": frame(b""),
    "a header cut short": frame(header(3, 9)[:7]),
    "a client id longer than its frame": frame(struct.pack(">hhih", 3, 9, 1, 3000) + b"raw"),
    "a body cut short": frame(encode_request("metadata", 9, 1, "raw", {"topics": [{"name": "abc"}]})[:-6]),
    "an array of 2 billion": frame(header(3, 4) + struct.pack(">i", 0x7FFFFFFF)),
    "a string longer than its frame": frame(header(3, 4) + struct.pack(">ih", 1, 30_000) + b"abc"),
    "records longer than their frame": frame(
        header(0, 3) + struct.pack(">hhiih", -1, -1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, MIB)
    ),
}


@pytest.mark.parametrize("data", HANGS_UP.values(), ids=HANGS_UP.keys())
def test_the_broker_hangs_up(broker: Broker, data: bytes) -> None:
    with RawKafka(broker.bootstrap, timeout_s=20) as raw:
        raw.send_bytes(data)
        assert raw.is_closed_by_peer()


def test_others_are_not_disturbed(broker: Broker, raw: RawKafka, topic: TopicFactory) -> None:
    name = topic()
    for number, data in enumerate(HANGS_UP.values()):
        with RawKafka(broker.bootstrap) as bad:
            bad.send_bytes(data)
            response = raw.produce(name, {0: batch([b"%d" % number])})[0]
            assert (response.error_code, response.base_offset) == (ErrorCode.none, number)


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes(broker: Broker, seed: int) -> None:
    """They are read as a length, waited for or refused; nothing more can be asked."""
    source = random.Random(seed)
    with RawKafka(broker.bootstrap) as raw:
        for _ in range(20):
            try:
                raw.send_bytes(source.randbytes(source.choice([3, 100, 70_000])))
            except ConnectionClosed:
                break


@pytest.mark.parametrize("seed", range(4))
def test_random_bodies_behind_good_headers(broker: Broker, seed: int) -> None:
    """Each is answered (with an error or not) or its connection is closed; none takes the broker along."""
    source = random.Random(seed)
    apis = ("produce", "fetch", "list_offsets", "metadata", "offset_commit", "offset_fetch", "join_group")
    apis += ("init_producer_id", "add_partitions_to_txn", "end_txn", "txn_offset_commit", "create_topics")
    for api in apis:
        for version in (1, 3, 5):
            with RawKafka(broker.bootstrap, timeout_s=20) as raw:
                raw.send_frame(header(api_key(api), version) + source.randbytes(source.choice([0, 5, 200])))
                # What is half a request to one broker may be a whole one to another; don't wait for its answer.


def test_unknown_versions_of_api_versions_are_answered_in_version_0(raw: RawKafka) -> None:
    """Clients start with their newest version. Only key 18 may be listed, or franz-go goes astray."""
    raw.send_frame(header(18, 77, correlation_id=5) + b"\x00\x04abc\x041.0\x00")
    answer = raw.read_frame()
    correlation_id, error, count = struct.unpack_from(">ihi", answer)
    keys = [struct.unpack_from(">hhh", answer, 10 + 6 * index) for index in range(count)]
    assert (correlation_id, error) == (5, ErrorCode.unsupported_version)
    assert [key for key, _, _ in keys] == [18]
    # The connection goes on with a version the broker knows.
    response = raw.call("api_versions", 3, client_software_name="raw", client_software_version="1")
    assert response.error_code == 0


def test_a_frame_cut_off_by_a_close(broker: Broker) -> None:
    request = frame(encode_request("metadata", 9, 1, "raw", {"topics": None}))
    for size in (1, 3, 4, 10, len(request) - 1):
        with RawKafka(broker.bootstrap) as raw:
            raw.send_bytes(request[:size])


def test_a_frame_in_single_bytes(broker: Broker) -> None:
    request = frame(encode_request("metadata", 9, 1, "raw", {"topics": None}))
    with RawKafka(broker.bootstrap) as raw:
        for byte in request:
            raw.send_bytes(bytes([byte]))
        assert len(raw.read_frame()) > 20


def test_half_open_connections(broker: Broker) -> None:
    """200 peers that connect, send the start of something and fall silent."""
    opened = [RawKafka(broker.bootstrap) for _ in range(200)]
    for number, each in enumerate(opened):
        each.send_bytes((struct.pack(">i", 100_000) + bytes(5000))[: (number % 5) * 1000])
    with RawKafka(broker.bootstrap) as raw:
        for _ in range(20):
            assert raw.call("metadata", 9, topics=[]).brokers
    for each in opened:
        # An abortive close: the broker gets a reset instead of an end of stream.
        each.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()


def test_announced_sizes_are_not_reserved(
    broker: Broker, first_rss: int | None, sealog_only: Callable[[str], None]
) -> None:
    sealog_only("Apache Kafka reserves what is announced: with 512 MiB of heap it never recovers from this")
    opened = [RawKafka(broker.bootstrap) for _ in range(30)]
    for each in opened:
        each.send_bytes(struct.pack(">i", 60 * MIB) + bytes(100))
    with RawKafka(broker.bootstrap) as raw:
        assert raw.call("metadata", 9, topics=[]).brokers
    rss = broker.rss_bytes()
    for each in opened:
        each.close()
    if rss is not None and first_rss is not None:
        assert rss - first_rss < GROWTH_LIMIT_BYTES


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


GOOD = batch([b"one", b"two"])
CORRUPT = {ErrorCode.corrupt_message}
INVALID = {ErrorCode.invalid_record}
# Apache Kafka says INVALID_RECORD to these, where UNSUPPORTED_FOR_MESSAGE_FORMAT says what is wrong.
OLD_FORMAT = {ErrorCode.invalid_record, ErrorCode.unsupported_for_message_format}
REFUSED = {
    "a value with a flipped bit": (flipped(GOOD, len(GOOD) - 3), CORRUPT),
    "a checksum with a flipped bit": (flipped(GOOD, 18), CORRUPT),
    "message format 0": (old_message_set(0), OLD_FORMAT),
    "message format 1": (old_message_set(1), OLD_FORMAT),
    "two batches": (GOOD + GOOD, INVALID),
    "a control batch": (
        batch_of(record(0, bytes(4), bytes(6)), 1, pid=1, epoch=0, sequence=0, attributes=CONTROL),
        INVALID,
    ),
    "a batch larger than the topic takes": (batch([bytes(2 * MIB)]), {ErrorCode.message_too_large}),
}


@pytest.mark.parametrize(("data", "errors"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_bad_batch_is_refused(
    raw: RawKafka, topic: TopicFactory, data: bytes, errors: set[ErrorCode], version: int
) -> None:
    name = topic()
    assert raw.produce(name, {0: GOOD}, version=version)[0].error_code is ErrorCode.none
    assert raw.produce(name, {0: data}, version=version)[0].error_code in errors
    after = raw.produce(name, {0: GOOD}, version=version)[0]
    assert (after.error_code, after.base_offset) == (ErrorCode.none, 2)
    assert [each.values for each in parse(raw.fetch(name, 0, 0).records)] == [[b"one", b"two"]] * 2


CUT = {
    "half a batch": GOOD[: len(GOOD) // 2],
    "a length beyond its end": GOOD[:8] + struct.pack(">i", 10_000) + GOOD[12:],
    "a length of nothing": GOOD[:8] + struct.pack(">i", 0) + GOOD[12:],
    "fewer bytes than a header": GOOD[:20],
    "no batch": b"",
}


@pytest.mark.parametrize("data", CUT.values(), ids=CUT.keys())
def test_a_cut_batch_is_refused(raw: RawKafka, topic: TopicFactory, data: bytes) -> None:
    name = topic()
    response = raw.produce(name, {0: data}, version=9)[0]
    assert response.error_code in (ErrorCode.corrupt_message, ErrorCode.invalid_record)
    assert raw.list_offset(name, 0, -1) == 0


def test_one_bad_partition_leaves_the_others(raw: RawKafka, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    responses = raw.produce(name, {0: GOOD, 1: flipped(GOOD, 70), 2: GOOD, 9: GOOD}, version=9)
    assert {index: each.error_code for index, each in responses.items()} == {
        0: ErrorCode.none,
        1: ErrorCode.corrupt_message,
        2: ErrorCode.none,
        9: ErrorCode.unknown_topic_or_partition,
    }


def test_bad_acks(raw: RawKafka, topic: TopicFactory) -> None:
    response = raw.produce(topic(), {0: GOOD}, version=9, acks=7)[0]
    assert response.error_code is ErrorCode.invalid_required_acks


def test_a_zip_bomb_stays_packed(raw: RawKafka, topic: TopicFactory) -> None:
    """A quarter of a GiB in a quarter of a MiB: stored and returned as it came, never unpacked."""
    name = topic()
    bomb = zip_bomb(BOMB_MIB)
    assert len(bomb) < MIB
    assert raw.produce(name, {0: bomb})[0].error_code is ErrorCode.none
    got = next(parse(raw.fetch(name, 0, 0).records))
    assert got.crc_ok
    assert got.data[16:] == bomb[16:]


def test_a_look_up_by_time_survives_a_zip_bomb(raw: RawKafka, topic: TopicFactory) -> None:
    name = topic()
    assert raw.produce(name, {0: zip_bomb(BOMB_MIB)})[0].error_code is ErrorCode.none
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": TIMESTAMP_MS}
    response = raw.call("list_offsets", 7, replica_id=-1, topics=[{"name": name, "partitions": [partition]}])
    answer = response.topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (
        ErrorCode.none,
        0,
    ) or answer.error_code is not ErrorCode.none


def test_a_producer_without_an_id_of_the_broker(raw: RawKafka, topic: TopicFactory) -> None:
    """Made up by a client that never asked for one, in a transaction that nobody began."""
    name = topic()
    assert raw.init_producer("somebody").error_code is ErrorCode.none
    transactional = batch([b"x"], pid=1 << 40, epoch=0, sequence=0, transactional=True)
    response = raw.produce(name, {0: transactional}, transactional_id="nobody")[0]
    assert response.error_code is ErrorCode.invalid_producer_id_mapping
    assert raw.list_offset(name, 0, -1) == 0


def test_transactional_batches_never_land_outside_a_transaction(
    raw: RawKafka, topic: TopicFactory, unique: Callable[[str], str]
) -> None:
    name = topic()
    producer = RawTransactions(raw, unique("tx"))
    for version in (3, 9, 11):
        response = producer.produce(name, [b"x"], version=version)
        assert response.error_code is not ErrorCode.none
    assert raw.list_offset(name, 0, -1) == 0
    assert raw.list_offset(name, 0, -1, committed=True) == 0
