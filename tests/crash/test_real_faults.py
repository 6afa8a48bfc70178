"""Faults of a real machine under a real process: no room, flushes that fail, a process that stands still, no file
descriptors left, a clock that is set back, and kills in the midst of starts, rolls, splits and snapshots.

SEALOG_STOP_SECONDS: how long the process stands still (a minute, on demand). SEALOG_KILLS_AT: how many kills per kind.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from broker.client import LayoutClient
from tests.clients.raw_batches import batch, parse
from tests.clients.raw_kafka import ConnectionClosed, RawKafka
from tests.clients.raw_transactions import RawTransactions
from tests.support import shim
from tests.support.broker_process import BrokerProcess
from wire.errors import KafkaError

OK = ErrorCode.none
STOP_SECONDS = float(os.environ.get("SEALOG_STOP_SECONDS", "2"))
KILLS = int(os.environ.get("SEALOG_KILLS_AT", "3"))


class Writing:
    """Values that were written, and which of them were acknowledged; both are compared with what is there."""

    def __init__(self, broker: BrokerProcess, topic: str = "t", size: int = 1000) -> None:
        self.broker = broker
        self.topic = topic
        self.size = size
        self.number = 0
        self.acked: list[bytes] = []

    def write(self, raw: RawKafka) -> ErrorCode:
        value = b"%08d" % self.number + bytes(self.size)
        self.number += 1
        code: ErrorCode = raw.produce(self.topic, {0: batch([value])})[0].error_code
        if code is OK:
            self.acked.append(value)
        return code

    def write_until(
        self, raw: RawKafka, wanted: Callable[[ErrorCode], bool], limit: int = 20_000
    ) -> ErrorCode:
        for _ in range(limit):
            code = self.write(raw)
            if wanted(code):
                return code
        raise AssertionError(f"{limit} writes, and not what was waited for")

    def check(self) -> None:
        """What was acknowledged is there, in order, each once; and nothing that was never sent."""
        with RawKafka(self.broker.address) as raw:
            end = raw.list_offset(self.topic, 0, -1)
            found: list[bytes] = []
            offset = 0
            while offset < end:
                answer = raw.fetch(self.topic, 0, offset)
                assert answer.error_code is OK, answer.error_code
                for one in parse(answer.records):
                    assert one.crc_ok
                    found += [value or b"" for value in one.values]
                    offset = one.base_offset + len(one.values)
        assert sorted(found) == found, "out of order"
        assert len(set(found)) == len(found), "doubled"
        assert set(self.acked) <= set(found), (
            f"{len(set(self.acked) - set(found))} acknowledged records are lost"
        )
        assert all(int(value[:8]) < self.number for value in found)


def serving(raw_address: str) -> RawKafka:
    return RawKafka(raw_address, timeout_s=30)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[tuple[BrokerProcess, shim.Faults]]:
    faults = shim.Faults(tmp_path / "faults")
    with BrokerProcess(tmp_path / "data", preload=[shim.require("faults")], env=faults.env) as broker:
        yield broker, faults


def is_refused(code: ErrorCode) -> bool:
    assert code in (OK, ErrorCode.kafka_storage_error), code
    return code is ErrorCode.kafka_storage_error


def test_no_room_and_room_again(faulty: tuple[BrokerProcess, shim.Faults]) -> None:
    """Writers hear KAFKA_STORAGE_ERROR while the disk is full, readers go on, and when there is room so do writers."""
    broker, faults = faulty
    writing = Writing(broker, size=20_000)
    with serving(broker.address) as raw:
        raw.create_topic("t")
        assert writing.write(raw) is OK
        faults.set(("allocate", 28, -1, "/topics/"))
        writing.write_until(raw, is_refused)
        assert is_refused(writing.write(raw))
        writing.check()
        faults.clear()
        writing.write_until(raw, lambda code: code is OK, limit=20)
        assert writing.write(raw) is OK
    writing.check()
    broker.sigkill()
    broker.start()
    writing.check()


def test_a_real_disk_is_full_and_grows(tmp_path: Path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "sealog-test", disk], check=False)
    if mounted.returncode:
        pytest.skip("no small file system can be mounted here; test_no_room_and_room_again has the shim's")
    try:
        with BrokerProcess(disk / "data", log=tmp_path / "log") as broker, serving(broker.address) as raw:
            writing = Writing(broker, size=50_000)
            raw.create_topic("t")
            writing.write_until(raw, is_refused)
            writing.check()
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            writing.write_until(raw, lambda code: code is OK, limit=20)
            writing.check()
            broker.sigkill()
            broker.start()
            writing.check()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_failed_flush_ends_writing_for_good_and_says_so(faulty: tuple[BrokerProcess, shim.Faults]) -> None:
    broker, faults = faulty
    writing = Writing(broker)
    with serving(broker.address) as raw:
        raw.create_topic("t")
        raw.create_topic("other")
        assert writing.write(raw) is OK
        faults.set(("flush", 5, 1, ".seg"))
        assert is_refused(writing.write(raw))
        faults.clear()
        # The next flush would succeed, and that would be a lie.
        assert is_refused(writing.write(raw))
        assert "takes no more writes until a restart" in broker.log_tail()
        assert raw.produce("other", {0: batch([b"x"])})[0].error_code is OK
        writing.check()
    broker.sigkill()
    broker.start()
    with serving(broker.address) as raw:
        assert writing.write(raw) is OK
    writing.check()


def test_a_failed_flush_of_the_metadata_log_ends_transactions_and_says_so(
    faulty: tuple[BrokerProcess, shim.Faults],
) -> None:
    broker, faults = faulty
    with serving(broker.address) as raw:
        raw.create_topic("t")
        producer = RawTransactions(raw, "tx")
        assert producer.produce("t", [b"lost?"], version=12).error_code is OK
        faults.set(("flush", 5, 1, "/metadata/"))
        assert producer.end(commit=True).error_code is ErrorCode.coordinator_not_available
        faults.clear()
        assert producer.end(commit=True).error_code is not OK
        assert "the metadata store has failed" in broker.log_tail()
    broker.sigkill()
    broker.start()
    with serving(broker.address) as raw:
        # Whatever the verdict is, it is one, and a new transaction goes through.
        again = RawTransactions(raw, "tx")
        assert again.produce("t", [b"after"], version=12).error_code is OK
        again.commit()
        seen = [value for one in parse(raw.fetch("t", 0, 0).records) for value in one.values]
        assert seen in ([b"after"], [b"lost?", b"after"])


def test_a_process_that_stands_still_goes_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, serving(broker.address) as raw:
        raw.create_topic("t")
        producer = RawTransactions(raw, "tx", timeout_ms=900_000)
        assert producer.produce("t", [b"before"], version=12).error_code is OK
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)
        ended = raw.send(
            "end_txn",
            5,
            {
                "transactional_id": "tx",
                "producer_id": producer.pid,
                "producer_epoch": producer.epoch,
                "committed": True,
            },
        )
        time.sleep(STOP_SECONDS)
        broker.process.send_signal(signal.SIGCONT)
        assert ended().error_code is OK
        writing = Writing(broker, topic="u")
        raw.create_topic("u")
        assert writing.write(raw) is OK
        writing.check()
        assert [one.values for one in parse(raw.fetch("t", 0, 0).records)] == [[b"before"]]


class FewDescriptors(BrokerProcess):
    """May open so many files and sockets."""

    descriptors = 60

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {self.descriptors}; exec "$@"', "sh", *super().command()]


def test_no_file_descriptors_left(tmp_path: Path) -> None:
    """Those who are connected go on, a roll that can open no file is put off, others get in when there is room."""
    with FewDescriptors(tmp_path / "data") as broker:
        writing = Writing(broker, size=40_000)
        with serving(broker.address) as raw:
            topic = {
                "name": "t",
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [{"name": "segment.bytes", "value": "65536"}],
            }
            assert raw.call("create_topics", 5, topics=[topic], timeout=15_000).topics[0].error_code is OK
            assert writing.write(raw) is OK
            crowd = []
            for _ in range(2 * broker.descriptors):
                with contextlib.suppress(OSError):
                    crowd.append(RawKafka(broker.address, timeout_s=5))
            for _ in range(20):
                assert writing.write(raw) is OK
            writing_check_over(raw, writing)
            for one in crowd:
                one.close()
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError, ConnectionClosed), serving(broker.address) as raw:
                assert writing.write(raw) is OK
                break
            assert time.monotonic() < deadline, "nobody gets in any more"
            time.sleep(0.05)
        writing.check()
        broker.sigkill()
        broker.start()
        writing.check()


def writing_check_over(raw: RawKafka, writing: Writing) -> None:
    """Over a connection that is there: no other can be made."""
    answer = raw.fetch(writing.topic, 0, 0)
    assert answer.error_code is OK
    assert next(parse(answer.records)).values == [writing.acked[0]]


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_clock_is_set(tmp_path: Path, hours: int) -> None:
    """Back: nothing waits for the hour to come round again. Ahead: as if the hour had passed, and nothing is lost."""
    clock = shim.SetClock(tmp_path / "clock")
    with (
        BrokerProcess(tmp_path / "data", preload=[shim.require("clock")], env=clock.env) as broker,
        serving(broker.address) as raw,
    ):
        writing = Writing(broker)
        raw.create_topic("t")
        raw.create_topic("x")
        assert writing.write(raw) is OK
        committing = RawTransactions(raw, "commits", timeout_ms=900_000)
        assert committing.produce("x", [b"committed"], version=12).error_code is OK
        left = RawTransactions(raw, "left", timeout_ms=1_500)
        assert left.produce("x", [b"left alone"], version=12).error_code is OK
        clock.ahead(hours * 3_600_000)
        time.sleep(0.05)
        assert writing.write(raw) is OK
        ended = committing.end(commit=True).error_code
        assert ended is OK or hours > 0
        # What nobody ends is ended by its timeout, not an hour later.
        deadline = time.monotonic() + 20
        while raw.list_offset("x", 0, -1, committed=True) < 2:
            assert time.monotonic() < deadline, "an open transaction holds its readers"
            time.sleep(0.05)
        writing.check()
        broker.sigkill()
        broker.start()
        writing.check()


# ---- kills in the midst of ----------------------------------------------------------------------------------


def small_topic(raw: RawKafka, name: str, **configs: str) -> None:
    topic = {
        "name": name,
        "num_partitions": 4,
        "replication_factor": 1,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    answer = raw.call("create_topics", 5, topics=[topic], timeout=15_000).topics[0]
    assert answer.error_code in (OK, ErrorCode.topic_already_exists)


def _splits(broker: BrokerProcess, stop: threading.Event, chance: random.Random) -> None:
    while not stop.is_set():
        try:
            with LayoutClient(broker.address, timeout_s=5.0) as client:
                while not stop.is_set():
                    if chance.random() < 0.5:
                        client.split("t", [chance.randint(1, 3)])
                    else:
                        client.merge("t", 0, 3)
        except (OSError, KafkaError):
            stop.wait(0.01)


@pytest.mark.parametrize("midst", ["start", "roll", "split", "snapshot", "compaction"])
def test_kills_in_the_midst(tmp_path: Path, midst: str) -> None:
    """The same load, with settings under which one kind of work goes on all the time."""
    config = tmp_path / "config.toml"
    config.write_text(
        "snapshot_log_bytes = 4096\n" if midst == "snapshot" else "compaction_interval_ms = 20\n"
    )
    broker = BrokerProcess(tmp_path / "data", args=["--config", str(config)])
    chance = random.Random(f"{midst} {KILLS}")
    writing = Writing(broker, size=8_000)
    stop = threading.Event()
    beside = threading.Thread(target=_splits, args=(broker, stop, chance), daemon=True)
    configs = {"segment.bytes": "65536"} if midst != "snapshot" else {}
    if midst == "compaction":
        configs |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    try:
        for number in range(KILLS):
            broker.start()
            if midst == "split" and number == 0:
                with serving(broker.address) as raw:
                    small_topic(raw, "t", **configs)
                beside.start()
            with contextlib.suppress(ConnectionClosed, OSError), serving(broker.address) as raw:
                small_topic(raw, "t", **configs)
                killer = threading.Timer(chance.uniform(0.05, 0.5), broker.sigkill)
                killer.start()
                try:
                    keyed_load(raw, writing) if midst == "compaction" else plain_load(raw, writing)
                finally:
                    killer.join()
            if midst == "start":
                for _ in range(3):
                    broker.launch()
                    time.sleep(chance.uniform(0.0, 0.6))
                    broker.sigkill()
        stop.set()
        broker.start()
        if midst == "compaction":
            check_keys(broker, writing)
        else:
            writing.check()
    finally:
        stop.set()
        broker.end()


def plain_load(raw: RawKafka, writing: Writing) -> None:
    number = 0
    while True:
        assert writing.write(raw) is OK
        # Something for the metadata store, too.
        number += 1
        raw.call(
            "offset_commit",
            7,
            group_id=f"g-{number % 50}",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                {
                    "name": "t",
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": number,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "x" * 200,
                        }
                    ],
                }
            ],
        )


def keyed_load(raw: RawKafka, writing: Writing) -> None:
    while True:
        key = b"%d" % (writing.number % 5)
        value = b"%08d" % writing.number + bytes(writing.size)
        writing.number += 1
        if raw.produce("t", {0: batch([(key, value)])})[0].error_code is OK:
            writing.acked.append(value)


def check_keys(broker: BrokerProcess, writing: Writing) -> None:
    """The last acknowledged value of every key, or one that was sent after it, is the last of it."""
    last: dict[int, int] = {}
    with serving(broker.address) as raw:
        end, offset = raw.list_offset("t", 0, -1), 0
        while offset < end:
            for one in parse(raw.fetch("t", 0, offset).records):
                for value in one.values:
                    number = int((value or b"0")[:8])
                    last[number % 5] = max(number, last.get(number % 5, -1))
                offset = one.last_offset + 1
    for value in writing.acked:
        number = int(value[:8])
        assert last.get(number % 5, -1) >= number, f"{number} was acknowledged, and its key has {last}"
