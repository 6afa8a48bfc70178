"""Every limit reached over real sockets: its error, bounded memory, and others who go on meanwhile.

What the others feel of it, as p99 with and without: python -m tests.bounds. SEALOG_BOUNDS_IDS: how many transactional
ids one client asks for (a million, on demand).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from tests.bounds.nuisances import produce_of_one_batch
from tests.clients.fixtures import Broker
from tests.clients.raw_batches import batch
from tests.clients.raw_kafka import ConnectionClosed, RawKafka, api_key, encode_request
from tests.clients.raw_transactions import RawTransactions
from tests.clients.scenario_tools import eventually
from tests.support.broker_process import BrokerProcess

OK = ErrorCode.none
MIB = 1 << 20
IDS = int(os.environ.get("SEALOG_BOUNDS_IDS", "3000"))
CONNECTIONS = 2_000
OPEN = 10_000

CONFIG = f"""
[limits]
connections = {CONNECTIONS + 10}
transactional_ids = {OPEN + IDS}
open_transactions = {OPEN}
producers_per_topic = 500
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("bounds")
    config = folder / "config.toml"
    config.write_text(CONFIG)
    with BrokerProcess(folder / "data", args=["--config", str(config)]) as process:
        with RawKafka(process.address) as raw:
            raw.create_topic("t", 4)
            raw.create_topic("others", 1)
        yield process


def rss_bytes(broker: BrokerProcess) -> int:
    assert broker.process is not None
    found = Broker(broker.address, True, broker.process.pid).rss_bytes()
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def others_go_on(broker: BrokerProcess) -> Iterator[None]:
    """One who was there before, and one who comes after, write and read."""
    with RawKafka(broker.address) as there:
        yield
        for raw in (there, RawKafka(broker.address)):
            offset = raw.produce("others", {0: batch([b"x"])})[0].base_offset
            assert raw.fetch("others", 0, offset).records
        raw.close()


def test_connections(broker: BrokerProcess) -> None:
    """2,000 idle ones cost little; the one above the limit is closed, and nobody else."""
    before = rss_bytes(broker)
    opened: list[socket.socket] = []
    address = ("127.0.0.1", broker.port)
    try:
        opened += [socket.create_connection(address, 10) for _ in range(CONNECTIONS)]
        asked = encode_request("api_versions", 0, 7, "raw", {})
        for one in opened[:: CONNECTIONS // 20]:
            one.sendall(struct.pack(">i", len(asked)) + asked)
            assert one.recv(8)[4:] == struct.pack(">i", 7)
        crowd = [socket.create_connection(address, 10) for _ in range(20)]
        closed = 0
        for one in crowd:
            one.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                closed += one.recv(1) == b""
        assert 10 <= closed < 20
        for one in crowd:
            one.close()
        assert rss_bytes(broker) - before < CONNECTIONS * 64 * 1024
    finally:
        for one in opened:
            one.close()


def _pipelined(raw: RawKafka, requests: list[bytes]) -> list[bytes]:
    raw.send_bytes(b"".join(struct.pack(">i", len(one)) + one for one in requests))
    return [raw.read_frame() for _ in requests]


def test_open_transactions_and_a_client_that_opens_and_never_ends(broker: BrokerProcess) -> None:
    """10,000 open ones, then POLICY_VIOLATION; they take bounded memory, and who ends one makes room."""
    before = rss_bytes(broker)
    with RawKafka(broker.address) as raw:
        identities: list[tuple[str, int, int]] = []
        for start in range(0, OPEN + 1, 500):
            names = [f"open-{number}" for number in range(start, min(start + 500, OPEN + 1))]
            answers = _pipelined(
                raw,
                [
                    encode_request(
                        "init_producer_id",
                        1,
                        number,
                        "raw",
                        {"transactional_id": name, "transaction_timeout": 600_000},
                    )
                    for number, name in enumerate(names)
                ],
            )
            for name, answer in zip(names, answers, strict=True):
                _, _, error, producer_id, epoch = struct.unpack(">iihqh", answer)
                assert error == OK
                identities.append((name, producer_id, epoch))
        added = [
            encode_request(
                "add_partitions_to_txn",
                0,
                number,
                "raw",
                {
                    "v3_and_below_transactional_id": name,
                    "v3_and_below_producer_id": producer_id,
                    "v3_and_below_producer_epoch": epoch,
                    "v3_and_below_topics": [{"name": "t", "partitions": [number % 4]}],
                },
            )
            for number, (name, producer_id, epoch) in enumerate(identities)
        ]
        answers = [
            one for start in range(0, OPEN + 1, 500) for one in _pipelined(raw, added[start : start + 500])
        ]
        codes = [struct.unpack(">h", answer[-2:])[0] for answer in answers]
        assert codes == [OK] * OPEN + [ErrorCode.policy_violation]
        assert rss_bytes(broker) - before < OPEN * 8 * 1024
        name, producer_id, epoch = identities[0]
        assert raw.end_txn(name, producer_id, epoch, commit=False, version=3).error_code is OK
        assert struct.unpack(">h", _pipelined(raw, added[-1:])[0][-2:])[0] == OK
        # Those who never end are ended by their timeout, or by a successor, who need not wait.
        again = [
            encode_request(
                "init_producer_id",
                1,
                number,
                "raw",
                {"transactional_id": name, "transaction_timeout": 600_000},
            )
            for number, (name, _, _) in enumerate(identities[:500])
        ]
        assert {struct.unpack_from(">h", answer, 8)[0] for answer in _pipelined(raw, again)} == {OK}


def test_many_transactional_ids(broker: BrokerProcess) -> None:
    """Up to the limit, each for some hundred bytes; then POLICY_VIOLATION, and who is there goes on."""
    before = rss_bytes(broker)
    with RawKafka(broker.address) as raw:
        codes: list[int] = []
        for start in range(0, OPEN + IDS + 500, 500):
            answers = _pipelined(
                raw,
                [
                    encode_request(
                        "init_producer_id",
                        1,
                        number,
                        "raw",
                        {"transactional_id": f"id-{number}", "transaction_timeout": 60_000},
                    )
                    for number in range(start, start + 500)
                ],
            )
            codes += [struct.unpack_from(">h", answer, 8)[0] for answer in answers]
        assert set(codes) == {OK, ErrorCode.policy_violation}
        allowed = codes.count(OK)
        assert codes == [OK] * allowed + [ErrorCode.policy_violation] * (len(codes) - allowed)
        # As many are there before as other tests of this module have left.
        assert IDS - 10 <= allowed <= OPEN + IDS
        assert RawTransactions(raw, "id-0").produce("t", [b"x"]).error_code is OK
    assert rss_bytes(broker) - before < 16 * MIB + allowed * 4 * 1024


def test_producers_of_a_topic(broker: BrokerProcess) -> None:
    """Idempotent producers without end, all of them busy: THROTTLING_QUOTA_EXCEEDED, and memory stays."""
    with RawKafka(broker.address) as raw:
        raw.create_topic("busy", 1)
        codes = []
        before = 0
        for number in range(800):
            data = batch([b"x"], pid=1_000_000 + number, epoch=0, sequence=0)
            codes.append(raw.produce("busy", {0: data})[0].error_code)
            if number == 500:
                before = rss_bytes(broker)
        assert codes == [OK] * 500 + [ErrorCode.throttling_quota_exceeded] * 300
        assert rss_bytes(broker) - before < 8 * MIB
        # Those that are remembered go on.
        data = batch([b"y"], pid=1_000_000, epoch=0, sequence=1)
        assert raw.produce("busy", {0: data})[0].error_code is OK


def test_a_slow_reader_that_never_drains(broker: BrokerProcess) -> None:
    """It asks for much, pipelined, and reads nothing: the broker holds no more for it than its limit allows."""
    with RawKafka(broker.address) as raw:
        for _ in range(24):
            assert raw.produce("t", {2: batch([bytes(900_000)])})[2].error_code is OK
        before = rss_bytes(broker)
        slow = RawKafka(broker.address)
        fetch = encode_request(
            "fetch",
            11,
            1,
            "slow",
            {
                "replica_id": -1,
                "max_wait": 0,
                "min_bytes": 1,
                "max_bytes": 8 * MIB,
                "isolation_level": 0,
                "session_id": 0,
                "session_epoch": -1,
                "rack_id": "",
                "topics": [
                    {
                        "topic": "t",
                        "partitions": [
                            {
                                "partition": 2,
                                "current_leader_epoch": -1,
                                "fetch_offset": 0,
                                "log_start_offset": -1,
                                "partition_max_bytes": 8 * MIB,
                            }
                        ],
                    }
                ],
            },
        )
        slow.socket.settimeout(1.0)
        with contextlib.suppress(OSError, ConnectionClosed):
            for _ in range(3_000):
                slow.send_bytes(struct.pack(">i", len(fetch)) + fetch)
        for _ in range(20):
            assert raw.produce("others", {0: batch([b"x"])})[0].error_code is OK
        assert rss_bytes(broker) - before < 80 * MIB
        slow.close()


def test_a_request_of_100_mb_and_one_above(broker: BrokerProcess) -> None:
    """The largest that is allowed is read and refused by what is in it; one byte more closes the connection at once."""
    before = rss_bytes(broker)
    limit = 100 * MIB
    with RawKafka(broker.address, timeout_s=60) as raw:
        head, size = produce_of_one_batch(limit)
        raw.send_bytes(head)
        piece = bytes(4 * MIB)
        for start in range(0, size, len(piece)):
            raw.send_bytes(piece[: min(len(piece), size - start)])
        answer = raw.read_frame()
        error = struct.unpack_from(">h", answer, 4 + 4 + 3 + 4 + 4)[0]
        assert error == ErrorCode.unsupported_for_message_format, "zeros are no batch"
    with RawKafka(broker.address) as raw:
        raw.send_bytes(struct.pack(">i", limit + 1))
        assert raw.is_closed_by_peer()
    # Piece by piece, in turns after the answer: what the request took is given back.
    eventually(lambda: rss_bytes(broker) - before < 32 * MIB, "memory given back")


def test_a_batch_of_100_mb_is_too_large(broker: BrokerProcess) -> None:
    """It is refused by its size, and the connection goes on."""
    with RawKafka(broker.address, timeout_s=60) as raw:
        head, size = produce_of_one_batch(100 * MIB)
        raw.send_bytes(head + struct.pack(">qiib", 0, size - 12, -1, 2))
        piece = bytes(4 * MIB)
        for start in range(17, size, len(piece)):
            raw.send_bytes(piece[: min(len(piece), size - start)])
        assert struct.unpack_from(">h", raw.read_frame(), 4 + 4 + 3 + 4 + 4)[0] == ErrorCode.message_too_large
        assert raw.produce("t", {0: batch([b"x"])})[0].error_code is OK


def test_batches_that_will_be_refused_take_no_memory(broker: BrokerProcess) -> None:
    """Five at once, of which 20 MB each have come: others write meanwhile, and each hears in the end what it should."""
    before = rss_bytes(broker)
    opened = [RawKafka(broker.address, timeout_s=60) for _ in range(5)]
    piece = bytes(4 * MIB)
    for raw in opened:
        head, size = produce_of_one_batch(24 * MIB)
        raw.send_bytes(head + struct.pack(">qiib", 0, size - 12, -1, 2))
    for _ in range(5):
        for raw in opened:
            raw.send_bytes(piece)
        with RawKafka(broker.address) as other:
            assert other.produce("others", {0: batch([b"x"])})[0].error_code is OK
    assert rss_bytes(broker) - before < 32 * MIB
    for raw in opened:
        left = size - 17 - 5 * len(piece)
        raw.send_bytes(piece[:left])
        assert struct.unpack_from(">h", raw.read_frame(), 4 + 4 + 3 + 4 + 4)[0] == ErrorCode.message_too_large
        raw.close()


def test_100_batches_of_a_megabyte_are_taken(broker: BrokerProcess) -> None:
    with RawKafka(broker.address, timeout_s=60) as raw:
        raw.create_topic("many", 100)
        sent = batch([bytes(1_000_000)])
        for offset in (0, 1):
            answers = raw.produce("many", dict.fromkeys(range(100), sent))
            assert {(one.error_code, one.base_offset) for one in answers.values()} == {(OK, offset)}


def test_a_request_without_records_has_a_smaller_limit(broker: BrokerProcess) -> None:
    """Its connection is closed as soon as it says what it is."""
    with RawKafka(broker.address) as raw:
        raw.send_bytes(struct.pack(">ihh", 100 * MIB, api_key("metadata"), 4))
        assert raw.is_closed_by_peer()


def test_all_large_requests_together_have_a_limit(broker: BrokerProcess) -> None:
    """1 GiB: of eleven of 100 MB that arrive at once one is closed, and there is room again when others have gone."""
    head, _ = produce_of_one_batch(100 * MIB)
    opened: list[RawKafka] = []

    def arriving() -> int:
        """Eleven are sent; how many are not closed. In whatever order they are read, and what requests before took is
        given back in the course of time."""
        while len(opened) < 11:
            opened.append(RawKafka(broker.address))
            opened[-1].send_bytes(head)
            opened[-1].socket.setblocking(False)
        with RawKafka(broker.address) as other:
            assert other.produce("t", {0: batch([b"x"])})[0].error_code is OK
        for raw in list(opened):
            with contextlib.suppress(BlockingIOError):
                with contextlib.suppress(ConnectionResetError):
                    assert raw.socket.recv(1) == b""
                raw.close()
                opened.remove(raw)
        return len(opened)

    try:
        eventually(lambda: arriving() == 10, "ten of eleven")
    finally:
        for raw in opened:
            raw.close()

    def has_room() -> bool:
        with RawKafka(broker.address) as raw:
            raw.send_bytes(head)
            raw.socket.settimeout(0.2)
            try:
                return raw.socket.recv(1) != b""
            except TimeoutError:
                return True

    eventually(has_room, "room for another one")
